"""Settings of the planner, validated once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from sgl_dspark.errors import ConfigError

Policy = Literal["static", "threshold", "early-stop", "adaptive"]
POLICIES: tuple[Policy, ...] = get_args(Policy)


@dataclass(frozen=True)
class PlannerConfig:
    """How much to verify, and when not to draft.

    Attributes
    ----------
    policy : {"static", "threshold", "early-stop", "adaptive"}
        A fixed number of drafts; leading slots above a threshold; Algorithm 1 on current confidences; or the lagged
        search for K with ranking by current survival.
    verify_drafts : int or None
        Drafts per request of "static", and of "adaptive" and "early-stop" while there is no step-time model; None
        for all gamma. 0 never drafts.
    threshold : float
        Of "threshold": least confidence of a slot that is verified, in [0, 1].
    max_budget : int or None
        Upper bound of K in one step.
    min_gain : float
        Of "adaptive": relative gain in predicted throughput, drafting over a plain step, that must be exceeded to
        begin drafting again.
    keep_gain : float
        Predicted gain below which drafting ends. The distance to ``min_gain`` is what stops flapping.
    probe_interval, probe_interval_max : int
        Plain steps before the first probe (a drafted step) and the most there are between two; the wait doubles.
        Also the wait of single requests that are not drafted.
    row_patience : int
        Consecutive steps in which none of a request's drafts reached the budget before it is no longer drafted.
    row_margin : float
        A request counts as out of reach if its first survival is below this share of the least one admitted.
    smoothing_rows : float
        Requests of a step at which its confidences and the smoothed ones weigh the same; 0 does not smooth.
    burst_share : float
        Share of requests without history above which smoothing is off and K rests on the known rows and the mean.
    lag, max_age : int
        Of ``ConfidenceHistory``. ``lag`` below 2 is for simulations.
    prior_confidence : float
        Of ``SlotMean``, in (0, 1).

    Raises
    ------
    ConfigError
        Naming the field.
    """

    policy: Policy = "adaptive"
    verify_drafts: int | None = None
    threshold: float = 0.0
    max_budget: int | None = None
    min_gain: float = 0.02
    keep_gain: float = 0.0
    probe_interval: int = 16
    probe_interval_max: int = 256
    row_patience: int = 4
    row_margin: float = 0.8
    smoothing_rows: float = 8.0
    burst_share: float = 0.5
    lag: int = 2
    max_age: int = 256
    prior_confidence: float = 0.7

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ConfigError(f"policy: {self.policy!r} is not one of {', '.join(POLICIES)}.")
        for name in ("verify_drafts", "max_budget"):
            value = getattr(self, name)
            if value is not None:
                _whole(name, value, 0)
        for name in ("probe_interval", "row_patience", "max_age"):
            _whole(name, getattr(self, name), 1)
        _whole("lag", self.lag, 0)
        _whole("probe_interval_max", self.probe_interval_max, self.probe_interval)
        for name in ("threshold", "row_margin", "burst_share"):
            _within(name, getattr(self, name), 0.0, 1.0)
        _within("prior_confidence", self.prior_confidence, 0.01, 0.99)
        _within("smoothing_rows", self.smoothing_rows, 0.0, 1e9)
        _within("min_gain", self.min_gain, -1.0, 10.0)
        _within("keep_gain", self.keep_gain, -1.0, self.min_gain)


def _whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}: {value!r} is not a whole number of at least {least}.")


def _within(name: str, value: object, least: float, most: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not least <= value <= most:  # type: ignore[arg-type, operator]
        raise ConfigError(f"{name}: {value!r} is not a number from {least:g} to {most:g}.")
