"""What comparisons of servers and policies have in common: names, order, spread, and how arms are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from sgl_dspark.server_process import PLAIN

ADAPTIVE = "adaptive"
# Name of a policy, what follows its colon, and how that reads.
_VALUES: dict[str, tuple[str, Callable[[str], float]] | None] = {
    ADAPTIVE: None,
    "early-stop": None,
    "static": ("verify_drafts", int),
    "threshold": ("threshold", float),
}


# Given to the DSpark server only; the plain one refuses or ignores them.
DSPARK_ONLY = (
    *("--speculative-", "--shortlist", "--policy", "--verify-drafts", "--confidence-threshold", "--max-verify-budget"),
    *("--min-gain", "--calibration", "--step-time-profile", "--no-online"),
)
# Okabe and Ito's colours, which colour-blind readers can tell apart; adaptive is black and plain grey in every figure.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_MARKERS = "osD^vP*"


@dataclass(frozen=True)
class Policy:
    """One way to choose verify lengths.

    Attributes
    ----------
    name : str
        As on the command line, such as ``static:3``; the arm's label.
    body : dict
        What ``POST /dspark/policy`` is sent.
    """

    name: str
    body: dict[str, Any]


def parse_policies(text: str) -> list[Policy]:
    """Read a list such as ``adaptive,static:1,threshold:0.5,early-stop``.

    Raises
    ------
    ValueError
        If a name or a value is unknown, or one comes twice; names it.
    """
    policies = [_parse(part.strip()) for part in text.split(",")]
    for name in (policy.name for policy in policies):
        if sum(policy.name == name for policy in policies) > 1:
            raise ValueError(f"{name!r} comes twice")
    return policies


def _parse(text: str) -> Policy:
    kind, colon, value = text.partition(":")
    if kind not in _VALUES:
        raise ValueError(f"{text!r} is no policy; there are: {', '.join(sorted(_VALUES))}")
    wanted = _VALUES[kind]
    if wanted is None:
        if colon:
            raise ValueError(f"{kind!r} takes no value, but {text!r} has one")
        return Policy(kind, {"policy": kind})
    field, read = wanted
    try:
        number = read(value)
    except ValueError:
        raise ValueError(f"{text!r} lacks its number; write {kind}:{3 if read is int else 0.5}, for example") from None
    return Policy(text, {"policy": kind, field: number})


def rotated(policies: Sequence[Policy], by: int) -> list[Policy]:
    """Begin with another policy each round, so that none always follows the same one."""
    first = by % len(policies) if policies else 0
    return [*policies[first:], *policies[:first]]


@dataclass(frozen=True)
class Spread:
    """Values of one metric over rounds: median, smallest, largest, and all of them in order."""

    median: float
    low: float
    high: float
    values: tuple[float, ...]


def spread(values: Sequence[float]) -> Spread | None:
    """Summarise at least one value; None without any."""
    if not values:
        return None
    return Spread(median(values), min(values), max(values), tuple(values))


def schedule(arms: int, rounds: int) -> list[tuple[int, int]]:
    """Order of the servers, forwards and backwards in turn (A B B A ...), as (round, arm), both from 0.

    So a machine that warms up or slows down steadily favours no arm over an even number of rounds.
    """
    order = list(range(arms))
    return [(r, arm) for r in range(rounds) for arm in (order if r % 2 == 0 else order[::-1])]


def styles(arms: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the line style of every arm."""
    chosen: dict[str, dict[str, Any]] = {}
    others = [arm for arm in arms if arm not in (PLAIN, ADAPTIVE)]
    for arm in arms:
        if arm == ADAPTIVE:
            chosen[arm] = {"color": "black", "marker": "o", "linewidth": 2.2, "zorder": 3}
        elif arm == PLAIN:
            chosen[arm] = {"color": "grey", "marker": "x", "linestyle": "--", "linewidth": 1.2}
        else:
            i = others.index(arm)
            look = {"color": _COLOURS[i % len(_COLOURS)], "marker": _MARKERS[i % len(_MARKERS)]}
            chosen[arm] = {**look, "linewidth": 1.2, "markersize": 4}
    return chosen


def without_flags(flags: Sequence[str], names: Sequence[str]) -> list[str]:
    """Leave out flags and their values; a name that ends in ``-`` stands for all that begin with it."""
    kept: list[str] = []
    dropping = False
    for flag in flags:
        if flag.startswith("--"):
            name = flag.partition("=")[0]
            dropping = any(name == n or (n.endswith("-") and name.startswith(n)) for n in names)
        if not dropping:
            kept.append(flag)
    return kept
