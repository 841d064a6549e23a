"""The scheduling flags of ``dspark serve``, handed to the worker process through the environment."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from dspark_sglang.config import OFF, SCHEDULING_VARIABLE, SchedulingConfig
from sgl_dspark.errors import ConfigError

if TYPE_CHECKING:
    from argparse import Namespace

# Flag on the command line -> field of the configuration.
_FLAGS = {
    "policy": "policy",
    "verify_drafts": "verify_drafts",
    "confidence_threshold": "threshold",
    "max_verify_budget": "max_budget",
    "min_gain": "min_gain",
    "calibration": "calibration",
    "step_time_profile": "profile",
}


def set_scheduling(args: Namespace) -> None:
    """Check the flags and write them to ``SGL_DSPARK_SCHEDULING``, over what that holds already.

    Raises
    ------
    ConfigError
        Naming the flag whose value, or use together with another, is refused.
    """
    given: dict[str, Any] = {
        field: getattr(args, flag) for flag, field in _FLAGS.items() if getattr(args, flag) is not None
    }
    if args.no_online:
        given["online"] = False
    SchedulingConfig.from_environment()
    if not given:
        return
    text = os.environ.get(SCHEDULING_VARIABLE, "").strip()
    before = json.loads(text) if text else {}
    policy = {**before, **given}.get("policy", "adaptive")
    if "threshold" in given and policy != "threshold":
        raise ConfigError("--confidence-threshold is read by --policy threshold only; add it, or leave the flag out")
    if "verify_drafts" in given and policy != "static":
        raise ConfigError("--verify-drafts is read by --policy static only; add it, or leave the flag out")
    if policy == "threshold" and "threshold" not in {**before, **given}:
        raise ConfigError("--policy threshold needs --confidence-threshold, such as 0.5")
    if given.get("min_gain", 0.0) < 0.0:
        # Below it drafting would begin at a loss; the gain at which it ends may not lie above.
        given["keep_gain"] = given["min_gain"]
    try:
        SchedulingConfig.from_fields({**before, **given})
    except ConfigError as error:
        raise ConfigError(_with_flag(str(error))) from error
    named = given.get("calibration")
    if named is not None and named != OFF and not os.path.isfile(os.path.expanduser(named)):
        raise ConfigError(f"--calibration: there is no file {named}; make it with dspark calibrate, or say off")
    os.environ[SCHEDULING_VARIABLE] = json.dumps({**before, **given})


def _with_flag(message: str) -> str:
    """Name the flag instead of the field that a message begins with."""
    field, _, rest = message.partition(":")
    for flag, name in _FLAGS.items():
        if name == field:
            return f"--{flag.replace('_', '-')}:{rest}"
    return message
