"""Figures of simulated runs, and their spread over seeds.

Definitions are those of ``dspark bench`` where both have a figure. Throughput counts tokens per *busy* second, prefill
included, so that an engine that waits for requests does not look slow; ``tok_s`` counts every second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np

from sgl_dspark.simulator.arrivals import Floats
from sgl_dspark.simulator.log import Log

NAN = float("nan")


@dataclass(frozen=True)
class Figures:
    """What one run came to; NaN where it has no value.

    Attributes
    ----------
    tok_s : float
        Emitted tokens per second from the start to the last token.
    busy_tok_s : float
        Emitted tokens per second of prefill and decode steps.
    decode_tok_s : float
        Tokens that decode steps emitted per second of decode steps.
    user_tok_s : float
        Mean over requests of (output - 1) / (last token - first token); prefill steps that interrupt it included.
    slow_user_tok_s : float
        Its 5th percentile: the speed that 95 % of requests reach.
    mean_verify_len : float
        Tokens verified per request and decode step, anchor included (the paper's Fig. 8); 1 in a plain step.
    mean_accept_len : float
        Tokens accepted per request and decode step, bonus included, before the cut at the end of an output.
    acceptance : float
        Accepted drafts over verified drafts.
    plain_steps : float
        Share of decode steps without drafting.
    ttft_p50_s, ttft_p99_s, wait_p50_s, wait_p99_s : float
        Arrival to first token, arrival to slot.
    utilisation : float
        Busy seconds over all.
    mean_running : float
        Requests per decode step, weighted by its time.
    expected_error, time_error : float
        Predicted against actual over drafted steps: sum of tokens, relative; median |relative error| of step times.
    steps, tokens, requests : int
        Decode steps, emitted tokens, requests.
    """

    tok_s: float
    busy_tok_s: float
    decode_tok_s: float
    user_tok_s: float
    slow_user_tok_s: float
    mean_verify_len: float
    mean_accept_len: float
    acceptance: float
    plain_steps: float
    ttft_p50_s: float
    ttft_p99_s: float
    wait_p50_s: float
    wait_p99_s: float
    utilisation: float
    mean_running: float
    expected_error: float
    time_error: float
    steps: int
    tokens: int
    requests: int


def measure(log: Log, steady: bool = False) -> Figures:
    """Reduce one run to its figures.

    Parameters
    ----------
    log : Log
        A finished run.
    steady : bool
        Take the figures of decode steps only from the middle of the run: after the first tenth and before the last
        request got its slot. For closed loops, whose batch empties at the end.
    """
    seconds, requests, drafted, verified, correct, emitted, ends = (
        log.column(name) for name in ("seconds", "requests", "drafted", "verified", "correct", "emitted", "end_s")
    )
    predicted, predicted_s = log.column("predicted_tokens"), log.column("predicted_s")
    decode_tok = emitted.sum()
    busy_s = float(seconds.sum()) + log.prefill_busy_s
    tokens = int(log.emitted_tok.sum())
    keep = np.ones(len(seconds), dtype=bool)
    if steady:
        keep = (ends > 0.1 * log.end_s) & (ends <= log.admitted_s.max())
    rounds = requests[keep].sum()
    waits, ttft = log.admitted_s - log.arrival_s, log.first_token_s - log.arrival_s
    users = _per_user(log)
    known = keep & np.isfinite(predicted_s) & (drafted > 0)
    actual = requests[known] + correct[known]
    return Figures(
        tok_s=_ratio(tokens, log.end_s - float(log.arrival_s[0])),
        busy_tok_s=_ratio(tokens, busy_s),
        decode_tok_s=_ratio(emitted[keep].sum(), seconds[keep].sum()) if steady else _ratio(decode_tok, seconds.sum()),
        user_tok_s=float(users.mean()) if len(users) else NAN,
        slow_user_tok_s=float(np.percentile(users, 5)) if len(users) else NAN,
        mean_verify_len=_ratio(rounds + verified[keep].sum(), rounds),
        mean_accept_len=_ratio(rounds + correct[keep].sum(), rounds),
        acceptance=_ratio(correct[keep].sum(), verified[keep].sum()),
        plain_steps=_ratio((drafted[keep] == 0).sum(), keep.sum()),
        ttft_p50_s=float(np.percentile(ttft, 50)),
        ttft_p99_s=float(np.percentile(ttft, 99)),
        wait_p50_s=float(np.percentile(waits, 50)),
        wait_p99_s=float(np.percentile(waits, 99)),
        utilisation=_ratio(busy_s, log.end_s - float(log.arrival_s[0])),
        mean_running=_ratio((requests * seconds)[keep].sum(), seconds[keep].sum()),
        expected_error=_ratio(predicted[known].sum() - actual.sum(), actual.sum()),
        time_error=float(np.median(np.abs(predicted_s[known] / seconds[known] - 1))) if known.any() else NAN,
        steps=len(seconds),
        tokens=tokens,
        requests=len(log.finish_s),
    )


@dataclass(frozen=True)
class Spread:
    """Mean, sample standard deviation and extremes over seeds."""

    mean: float
    std: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float] | Floats) -> Spread:
        """Summarise one value per seed; the deviation of a single one is 0."""
        array = np.asarray(values, dtype=np.float64)
        std = float(array.std(ddof=1)) if len(array) > 1 else 0.0
        return cls(float(array.mean()), std, float(array.min()), float(array.max()))


def summarise(runs: Sequence[Figures]) -> dict[str, Spread]:
    """Return the spread of every figure over runs that differ by their seed."""
    return {field.name: Spread.of([getattr(run, field.name) for run in runs]) for field in fields(Figures)}


def paired(runs: Sequence[Figures], against: Sequence[Figures], figure: str) -> Spread:
    """Return the spread of ``runs / against`` of one figure, seed by seed: both arms saw the same random numbers."""
    ratios = [getattr(run, figure) / getattr(base, figure) for run, base in zip(runs, against, strict=True)]
    return Spread.of(ratios)


def as_json(runs: Sequence[Figures]) -> dict[str, object]:
    """Return the spread of every figure, and every run, as plain values; NaN becomes None."""
    spread = {name: {k: _plain(v) for k, v in asdict(value).items()} for name, value in summarise(runs).items()}
    return {"spread": spread, "runs": [{k: _plain(v) for k, v in asdict(run).items()} for run in runs]}


def _plain(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _ratio(above: float, below: float) -> float:
    return float(above / below) if below > 0 else NAN


def _per_user(log: Log) -> Floats:
    many = log.emitted_tok > 1
    return (log.emitted_tok[many] - 1) / (log.finish_s - log.first_token_s)[many]
