"""What the worker is configured with: server arguments and environment, read once."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from sgl_dspark.errors import ConfigError
from sgl_dspark.planner.config import PlannerConfig

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

SHORTLIST_VARIABLE = "SGL_DSPARK_SHORTLIST"
SCHEDULING_VARIABLE = "SGL_DSPARK_SCHEDULING"
# Said instead of a path: neither read nor written.
OFF = "off"


@dataclass(frozen=True)
class SchedulingConfig:
    """How much is verified, and what that is decided from.

    Attributes
    ----------
    planner : PlannerConfig
    calibration : str or None
        Calibration file; None for ``calibration.json`` beside the draft if it is there; ``off`` for none.
    profile : str or None
        Step-time profile that is read, and written when it does not fit; None for a file per pair in the user's
        cache folder; ``off`` to measure at every start.
    online : bool
        Whether calibration and step times follow what is served.
    """

    planner: PlannerConfig = field(default_factory=PlannerConfig)
    calibration: str | None = None
    profile: str | None = None
    online: bool = True

    @classmethod
    def from_environment(cls) -> SchedulingConfig:
        """Read ``SGL_DSPARK_SCHEDULING``, a JSON object of the fields here and of `PlannerConfig`.

        Raises
        ------
        ConfigError
            If it is not that; names the field.
        """
        text = os.environ.get(SCHEDULING_VARIABLE, "").strip()
        if not text:
            return cls()
        try:
            given = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{SCHEDULING_VARIABLE} is not JSON ({error}); leave it to dspark serve") from error
        if not isinstance(given, dict):
            raise ConfigError(f"{SCHEDULING_VARIABLE} must be a JSON object of fields, not {text!r}")
        return cls.from_fields(given)

    @classmethod
    def from_fields(cls, given: dict[str, Any]) -> SchedulingConfig:
        """Build it from the fields of both classes by name; raise `ConfigError` for a name that is none of them."""
        own = {f.name for f in fields(cls)} - {"planner"}
        planner = {name: value for name, value in given.items() if name not in own}
        unknown = sorted(set(planner) - {f.name for f in fields(PlannerConfig)})
        if unknown:
            raise ConfigError(f"{SCHEDULING_VARIABLE}: unknown field {unknown[0]}; leave it to dspark serve")
        return cls(PlannerConfig(**planner), **{name: given[name] for name in own & set(given)})


@dataclass(frozen=True)
class WorkerConfig:
    """Configuration of one worker process.

    Attributes
    ----------
    draft_path : str
        Folder of the draft.
    shortlist : int or None
        Candidates per slot that the draft samples from, of its own largest base
        logits; None for the whole vocabulary.
    verify_width : int
        Tokens per request that SGLang reserves for a verification, anchor included.
    """

    draft_path: str
    shortlist: int | None
    verify_width: int

    @classmethod
    def from_server(cls, server_args: ServerArgs) -> WorkerConfig:
        """Read the resolved server arguments and our environment variables.

        Raises
        ------
        ConfigError
            If a value is not usable; the message names the flag or variable.
        """
        from sglang.srt.runtime_context import get_spec

        spec = get_spec()
        if not spec.speculative_draft_model_path:
            raise ConfigError("DSPARK needs --speculative-draft-model-path: the folder of the draft for this target")
        path = local_folder(spec.speculative_draft_model_path, spec.speculative_draft_model_revision)
        return cls(path, shortlist_from_environment(), int(spec.speculative_num_draft_tokens))

    def check_gamma(self, gamma: int) -> None:
        """Raise `ConfigError` if SGLang was told to verify another block length than the draft's."""
        if self.verify_width != gamma + 1:
            raise ConfigError(
                f"the draft proposes {gamma} tokens, but SGLang was told {self.verify_width - 1}; leave out "
                "--speculative-dspark-block-size and --speculative-num-draft-tokens"
            )


def local_folder(path: str, revision: str | None) -> str:
    """Return the draft's folder on this machine, fetching it from its hub if it is not one."""
    folder = os.path.expanduser(path)
    if os.path.isdir(folder):
        return folder
    from huggingface_hub import snapshot_download

    return snapshot_download(path, revision=revision)


def shortlist_from_environment() -> int | None:
    """Return the shortlist size in ``SGL_DSPARK_SHORTLIST``; None when unset, empty or 0.

    Raises
    ------
    ConfigError
        If it is not a whole number of at least 0.
    """
    text = os.environ.get(SHORTLIST_VARIABLE, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise ConfigError(f"{SHORTLIST_VARIABLE} must be a whole number of candidates (0 for all), not '{text}'")
    return int(text) or None
