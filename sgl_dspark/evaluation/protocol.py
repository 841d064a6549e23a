"""Accept length, acceptance per slot, threshold sweep, calibration and draft cost of one draft (Sec. 4)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sgl_dspark.calibration.choose import fit_kind
from sgl_dspark.calibration.metrics import mean_ece
from sgl_dspark.calibration.records import RecordSet
from sgl_dspark.calibration.store import KindCalibration
from sgl_dspark.data.prompts import read_prompts
from sgl_dspark.data.template import ChatEncoder
from sgl_dspark.errors import DataError
from sgl_dspark.evaluation.report import Acceptance, summarise
from sgl_dspark.evaluation.runner import Decoding, Sample, SpeculativeRunner
from sgl_dspark.evaluation.sides import DraftSide
from sgl_dspark.model.target import TargetModel

Log = Callable[[str], None]
# Rounds below which a calibration says more about chance than about the draft.
LEAST_ROUNDS = 400


@dataclass(frozen=True)
class PromptSet:
    """Prompts of one name, as token ids."""

    name: str
    prompts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class SetResult:
    """One prompt set at one temperature and threshold.

    Attributes
    ----------
    name : str
    temperature, threshold : float
    acceptance : Acceptance
    prompts, tokens : int
        Answered, and emitted.
    skipped : int
        Prompts without room for an answer.
    seconds : float
    """

    name: str
    temperature: float
    threshold: float
    acceptance: Acceptance
    prompts: int
    tokens: int
    skipped: int
    seconds: float


@dataclass(frozen=True)
class Latency:
    """One round of offline decoding at a batch size: median milliseconds.

    Attributes
    ----------
    rows : int
    draft_ms, verify_ms : float
    """

    rows: int
    draft_ms: float
    verify_ms: float

    @property
    def draft_share(self) -> float:
        """Drafting as a share of the round."""
        return self.draft_ms / (self.draft_ms + self.verify_ms)


def load_sets(files: Sequence[Path], encoder: ChatEncoder, limit: int | None) -> list[PromptSet]:
    """Read prompt files, one set each, named by file; first turns are used, as the paper does.

    Raises
    ------
    DataError
        If a file is unusable or two have one name.
    """
    sets = []
    for file in files:
        records = read_prompts(file, limit)
        ids = (encoder.prompt_ids([{"role": "user", "content": r.turns[0]}]) for r in records)
        sets.append(PromptSet(file.stem, tuple(ids)))
    names = [s.name for s in sets]
    if len(set(names)) < len(names):
        raise DataError(f"two prompt files have one name ({', '.join(sorted(names))}); rename one of them.")
    return sets


class Evaluation:
    """Runs a draft over prompt sets and keeps what every round said.

    Parameters
    ----------
    target : TargetModel
    side : DraftSide
    rows : int
        Requests decoded together.
    max_positions : int
    log : callable
    """

    def __init__(self, target: TargetModel, side: DraftSide, rows: int, max_positions: int, log: Log) -> None:
        self._runner = SpeculativeRunner(target, side, rows, max_positions)
        self._gamma, self._log = side.gamma, log
        self.results: list[SetResult] = []
        self._samples: dict[tuple[str, float], list[Sample]] = {}

    def measure(self, prompts: PromptSet, decoding: Decoding) -> SetResult:
        """Answer one set and add its result."""
        started = time.perf_counter()
        samples = self._runner.run(prompts.prompts, decoding)
        rounds = [r for sample in samples for r in sample.rounds]
        skipped = sum(not sample.tokens for sample in samples)
        if not rounds:
            raise DataError(f"no prompt of {prompts.name} took a round; give --max-positions more room.")
        if skipped:
            self._log(f"{prompts.name}: {skipped} prompts are left out: they leave no room for an answer")
        result = SetResult(
            prompts.name,
            decoding.temperature,
            decoding.threshold,
            summarise(rounds, self._gamma),
            len(samples) - skipped,
            sum(len(sample.tokens) for sample in samples),
            skipped,
            time.perf_counter() - started,
        )
        self.results.append(result)
        # Calibration needs whole blocks.
        if decoding.threshold <= 0:
            self._samples[prompts.name, decoding.temperature] = samples
        slots = " ".join(f"{rate:.2f}" for rate in result.acceptance.conditional)
        self._log(
            f"{result.name} T={result.temperature:g} threshold {result.threshold:g}: "
            f"accept length {result.acceptance.mean_accept_len:.3f} over {result.acceptance.rounds} rounds, "
            f"conditional [{slots}], {result.seconds:.0f} s"
        )
        return result

    def records(self, temperature: float) -> tuple[RecordSet, RecordSet]:
        """Return the rounds at one temperature as calibration records: of even prompts, and of odd ones."""
        halves = []
        for parity in (0, 1):
            parts = [_records(s[parity::2], temperature > 0) for (_, t), s in self._samples.items() if t == temperature]
            halves.append(RecordSet.concat([p for p in parts if len(p)] or [RecordSet.empty(self._gamma)]))
        return halves[0], halves[1]


def _records(samples: Sequence[Sample], sampled: bool) -> RecordSet:
    rounds = [r for sample in samples for r in sample.rounds]
    if not rounds:
        return RecordSet.empty(1)
    logits = [row for sample in samples for row in sample.logits]
    kinds = [sampled] * len(rounds)
    # A slot behind an accepted end of turn was never a draft.
    return RecordSet.of(logits, [r.proposed for r in rounds], [r.num_correct_drafts for r in rounds], kinds)


def calibrate(fit: RecordSet, held_out: RecordSet) -> KindCalibration | None:
    """Fit STS on one half and judge it on the other; None with too few rounds."""
    if min(len(fit), len(held_out)) < LEAST_ROUNDS:
        return None
    return fit_kind(fit, held_out, "auto")


def measure_latency(target: TargetModel, side: DraftSide, prompts: PromptSet, rows: int, rounds: int = 12) -> Latency:
    """Time rounds at a batch size, greedy, whole blocks verified.

    Parameters
    ----------
    target, side
    prompts : PromptSet
        Asked again and again.
    rows : int
    rounds : int
        Timed, behind as many untimed ones.
    """
    longest = max(map(len, prompts.prompts))
    runner = SpeculativeRunner(target, side, rows, longest + (2 * rounds + 1) * (side.gamma + 1))
    # Prompts again and again: an answer that ends makes room for the next, so that every step has all its rows.
    endless = itertools.cycle(prompts.prompts)
    draft, verify = [], []
    for step in runner.steps(endless, Decoding(temperature=0.0), {}):
        if step.requests == rows:
            draft.append(step.drafting)
            verify.append(step.verifying)
        if len(draft) == 2 * rounds:
            break
    timed = slice(rounds, None)
    return Latency(rows, 1e3 * _median(draft[timed]), 1e3 * _median(verify[timed]))


def _median(values: Sequence[float]) -> float:
    return float(torch.tensor(values).median())


def to_json(
    results: Sequence[SetResult],
    calibrations: Mapping[float, KindCalibration],
    latencies: Sequence[Latency],
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything that an evaluation found, for JSON."""
    return {
        "about": dict(about),
        "results": [asdict(result) for result in results],
        "macro_mean": macro_means(results),
        "calibration": {
            f"{temperature:g}": {
                "method": kind.method,
                "temperatures": kind.map.temperatures.tolist(),
                "biases": kind.map.biases.tolist(),
                "mean_ece_before": mean_ece(list(kind.before)),
                "mean_ece_after": mean_ece(list(kind.after)),
                "before": [m.to_json() for m in kind.before],
                "after": [m.to_json() for m in kind.after],
            }
            for temperature, kind in calibrations.items()
        },
        "latency": [asdict(latency) | {"draft_share": latency.draft_share} for latency in latencies],
    }


def macro_means(results: Sequence[SetResult]) -> list[dict[str, float]]:
    """Plain means over the prompt sets, per temperature and threshold."""
    groups: dict[tuple[float, float], list[float]] = {}
    for result in results:
        key = (result.temperature, result.threshold)
        groups.setdefault(key, []).append(result.acceptance.mean_accept_len)
    return [
        {"temperature": temperature, "threshold": threshold, "mean_accept_len": sum(values) / len(values)}
        for (temperature, threshold), values in groups.items()
    ]


def decodings(
    temperatures: Sequence[float], thresholds: Sequence[float], max_new_tokens: int, seed: int
) -> list[Decoding]:
    """Whole blocks at every temperature; thresholds at the first one only, as the paper's sweep."""
    base = Decoding(max_new_tokens=max_new_tokens, seed=seed)
    found = [replace(base, temperature=t) for t in temperatures]
    return found + [replace(base, temperature=temperatures[0], threshold=t) for t in thresholds if t > 0]
