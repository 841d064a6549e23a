"""Load shapes as YAML files: what is asked, and what must hold.

Rates may be given as a share of the server's capacity, which is measured first in a short closed loop, so that the same
file means the same strain on a laptop and on a large machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

from dspark_loadtest.client import AskSettings
from dspark_loadtest.errors import LoadtestError
from dspark_loadtest.plan import Leaving, Plan
from dspark_loadtest.session import Workload
from dspark_loadtest.stats import Slo
from dspark_loadtest.traces.synthetic import Phase, Prefixes, generate
from sgl_dspark.errors import ConfigError
from sgl_dspark.simulator.arrivals import Lengths

Made = TypeVar("Made")


@dataclass(frozen=True)
class Capacity:
    """How the server's capacity is measured: so many clients, each asking so many requests of the same lengths."""

    concurrency: int = 16
    waves: int = 3


@dataclass(frozen=True)
class Expect:
    """What must hold; what is not named is not checked.

    Attributes
    ----------
    all_answered : bool
        No request failed; those that left by themselves do not count.
    only_refused : bool
        Those that failed were refused with 429 or 503, before their first token.
    tokens_agree : bool
        No token lost or counted twice: in the stream of each answer, and between the client's totals and the server's.
    same_when_asked_alone : int
        So many of the answers (spread over the run) are the same, letter for letter, when asked again one at a time.
        For greedy requests, on servers whose results do not depend on the batch.
    server_idle : bool
        Afterwards nothing is running or waiting on the server.
    recovery_s : float
        Seconds after the highest phase until TTFT stays below ``recovery_factor`` times its median before that phase.
    recovery_factor : float
    tok_s_user_p10_of_capacity : float
        Nine of ten users get at least this share of the median user's speed in the measurement of capacity.
    throughput_of_capacity : float
        Output tok/s over the steady time, as a share of those in the measurement of capacity.
    goodput_share : float
        Share of requests within ``slo``.
    """

    all_answered: bool = False
    only_refused: bool = False
    tokens_agree: bool = True
    same_when_asked_alone: int = 0
    server_idle: bool = False
    recovery_s: float | None = None
    recovery_factor: float = 3.0
    tok_s_user_p10_of_capacity: float | None = None
    throughput_of_capacity: float | None = None
    goodput_share: float | None = None


@dataclass(frozen=True)
class ScenarioPhase:
    """A phase whose rate is ``rate_rps``, or ``of_capacity`` times the capacity; see `Phase`."""

    duration_s: float
    rate_rps: float | None = None
    of_capacity: float | None = None
    category: str | None = None
    prompt_scale: float = 1.0

    def __post_init__(self) -> None:
        if (self.rate_rps is None) == (self.of_capacity is None):
            raise LoadtestError("phases: each needs one of rate_rps and of_capacity")


@dataclass(frozen=True)
class Scenario:
    """A load shape and what must hold under it.

    Attributes
    ----------
    name, says : str
        ``says`` is a sentence for the report.
    phases : tuple of ScenarioPhase
    lengths : Lengths
        Of prompts and answers, before they are fitted to the server.
    expect : Expect
    capacity : Capacity
    prefixes : Prefixes
    leaving : Leaving
    slo : Slo
    cv : float
        Of the gaps between arrivals.
    retries : int
    timeout_s : float
    temperature : float
    """

    name: str
    says: str
    phases: tuple[ScenarioPhase, ...]
    lengths: Lengths
    expect: Expect
    capacity: Capacity = Capacity()
    prefixes: Prefixes = Prefixes()
    leaving: Leaving = Leaving()
    slo: Slo = Slo()
    cv: float = 1.0
    retries: int = 0
    timeout_s: float = 600.0
    temperature: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def needs_capacity(self) -> bool:
        """Whether anything is given as a share of it."""
        expect = self.expect
        shares = (expect.tok_s_user_p10_of_capacity, expect.throughput_of_capacity)
        return any(phase.of_capacity is not None for phase in self.phases) or any(s is not None for s in shares)

    def settings(self) -> AskSettings:
        """Return what every request asks."""
        return AskSettings(
            temperature=self.temperature,
            timeout_s=self.timeout_s,
            retries=self.retries,
            keep_text=self.expect.same_when_asked_alone > 0,
            extra=self.extra,
        )

    def workload(self, capacity_rps: float | None, *, seed: int = 0) -> Workload:
        """Return what is asked of a server of a given capacity in requests a second."""
        phases = [Phase(p.duration_s, _rate(p, capacity_rps), p.category, p.prompt_scale) for p in self.phases]
        trace = generate(phases, self.lengths, cv=self.cv, seed=seed, prefixes=self.prefixes)
        plan = Plan(leaving=self.leaving, drain_s=self.timeout_s, seed=seed)
        # What may fail is among the expectations.
        may_fail = 1.0 if self.expect.only_refused else 0.0
        return Workload(trace, settings=self.settings(), plan=plan, slo=self.slo, max_failed=may_fail, seed=seed)

    def capacity_workload(self, *, seed: int = 0) -> Workload:
        """Return the closed loop that measures capacity: requests of the same lengths."""
        count = self.capacity.concurrency * self.capacity.waves
        trace = generate([Phase(float(count), 2.0)], self.lengths, seed=seed + 1, prefixes=self.prefixes)
        plan = Plan(concurrency=self.capacity.concurrency, max_requests=count, cycle=True, seed=seed)
        return Workload(trace, settings=self.settings(), plan=plan, warm_up=self.capacity.concurrency, seed=seed)

    def peak(self) -> tuple[float, float]:
        """Return begin and end, in seconds, of the phase with the highest rate."""
        rates = [phase.of_capacity or phase.rate_rps or 0.0 for phase in self.phases]
        index = rates.index(max(rates))
        begin = sum(phase.duration_s for phase in self.phases[:index])
        return begin, begin + self.phases[index].duration_s


def capacity_rps(summary: dict[str, Any]) -> float:
    """Return the requests a second that the closed loop of `Scenario.capacity_workload` was answered at its full load.

    Tokens of the steady time over tokens of an answer. Answers over the whole run would count the first wave's prefill
    and the tail, where clients run out of questions, as if the server could do no more.

    Raises
    ------
    LoadtestError
        If nothing was answered while all clients asked.
    """
    answered, tokens = summary["requests"]["ok"], summary["completion_tokens"]
    if not answered or not tokens or not summary["output_tok_s"]:
        raise LoadtestError("capacity: no request was answered while all clients asked; raise capacity.waves")
    return float(summary["output_tok_s"] * answered / tokens)


def _rate(phase: ScenarioPhase, capacity_rps: float | None) -> float:
    if phase.rate_rps is not None:
        return phase.rate_rps
    if capacity_rps is None:
        raise LoadtestError("of_capacity: the capacity has not been measured")
    return (phase.of_capacity or 0.0) * capacity_rps


_PARTS = {
    "lengths": Lengths,
    "expect": Expect,
    "capacity": Capacity,
    "prefixes": Prefixes,
    "leaving": Leaving,
    "slo": Slo,
}


def load_scenario(path: Path) -> Scenario:
    """Read a scenario.

    Raises
    ------
    LoadtestError
        If the file cannot be read, or a field is unknown, missing or out of range; names file and field.
    """
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise LoadtestError(f"{path}: cannot be read as YAML: {str(error)[:200]}") from error
    if not isinstance(found, dict):
        raise LoadtestError(f"{path}: is not a mapping of fields")
    values: dict[str, Any] = {"name": path.stem, **found}
    try:
        for name, part in _PARTS.items():
            if name in values:
                values[name] = _make(part, values[name], name)
        phases = values.get("phases")
        if not isinstance(phases, list) or not phases:
            raise LoadtestError("phases: is not a list of phases")
        values["phases"] = tuple(_make(ScenarioPhase, phase, "phases") for phase in phases)
        return _make(Scenario, values, "")
    except (LoadtestError, ConfigError) as error:
        raise LoadtestError(f"{path}: {error}") from error


def _make(kind: type[Made], values: object, where: str) -> Made:
    prefix = f"{where}." if where else ""
    if not isinstance(values, Mapping):
        raise LoadtestError(f"{where}: is not a mapping of fields")
    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise LoadtestError(f"{prefix}{name}: is no field; there are: {', '.join(known)}")
    try:
        return kind(**values)
    except TypeError as error:
        raise LoadtestError(f"{prefix or 'scenario'}: {str(error).partition('() ')[2] or error}") from error
