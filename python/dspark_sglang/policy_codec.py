"""Policies as SGLang's internal-state requests can carry them: a flat dictionary of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from sgl_dspark.errors import ConfigError
from sgl_dspark.planner.config import POLICIES, PlannerConfig

PREFIX = "dspark_policy_"
# Asks for the rounds from this number on in the states that are read from now on; -1 ends it.
SEND_ROUNDS = "dspark_send_rounds_after"
# What may be changed while requests run; the rest shapes state that lives as long as the server.
SETTABLE = ("policy", "verify_drafts", "threshold", "max_budget", "min_gain", "keep_gain")
_NONE = -1


def shown(config: PlannerConfig) -> dict[str, Any]:
    """Return the settable fields, as ``/dspark/state`` shows them and ``/dspark/policy`` takes them."""
    fields = asdict(config)
    return {name: fields[name] for name in SETTABLE}


def encode(body: Any, current: Mapping[str, Any], gamma: int) -> dict[str, int | float]:
    """Check a request to change the policy and turn it into numbers.

    Parameters
    ----------
    body : object
        Settable fields with their new values; those left out stay, except ``verify_drafts``, which goes back to all
        drafts whenever a policy is named without it, and ``keep_gain``, which is never above ``min_gain``.
    current : mapping
        As `shown` gives it.
    gamma : int
        Most drafts per request.

    Raises
    ------
    ConfigError
        Naming the field that is unknown or out of range.
    """
    if not isinstance(body, dict) or not body:
        raise ConfigError('the body must be a JSON object such as {"policy": "static", "verify_drafts": 3}')
    unknown = sorted(set(body) - set(SETTABLE))
    if unknown:
        raise ConfigError(f"{unknown[0]}: unknown field; there are {', '.join(SETTABLE)}")
    fresh = {"verify_drafts": None} if "policy" in body else {}
    merged = {**current, **fresh, **body}
    gain = merged["min_gain"]
    if "keep_gain" not in body and isinstance(gain, int | float) and gain < merged["keep_gain"]:
        merged["keep_gain"] = gain
    config = PlannerConfig(**merged)
    check_gamma(config, gamma)
    fields = shown(config)
    fields["policy"] = POLICIES.index(config.policy)
    return {PREFIX + name: _NONE if value is None else value for name, value in fields.items()}


def check_gamma(config: PlannerConfig, gamma: int) -> None:
    """Raise `ConfigError` if more drafts than there are would be verified."""
    if config.verify_drafts is not None and config.verify_drafts > gamma:
        raise ConfigError(f"verify_drafts: {config.verify_drafts} is more than the draft proposes, {gamma}")


def is_ours(name: str) -> bool:
    """Whether a number of an internal-state request is for the worker."""
    return name == SEND_ROUNDS or name.startswith(PREFIX)


def decode(numbers: Mapping[str, int | float], config: PlannerConfig) -> PlannerConfig:
    """Return ``config`` with the fields that `encode` wrote.

    Raises
    ------
    ConfigError
        If a field is none of these, or out of range.
    """
    fields: dict[str, Any] = {name.removeprefix(PREFIX): value for name, value in numbers.items()}
    for name in set(fields) - set(SETTABLE):
        raise ConfigError(f"{name}: not a field that can be changed while serving")
    for name in ("verify_drafts", "max_budget"):
        if name in fields:
            fields[name] = None if fields[name] == _NONE else int(fields[name])
    if "policy" in fields:
        fields["policy"] = POLICIES[int(fields["policy"])]
    return replace(config, **fields)
