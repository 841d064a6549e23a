"""What the worker is configured with: server arguments and environment, read once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sgl_dspark.errors import ConfigError

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

SHORTLIST_VARIABLE = "SGL_DSPARK_SHORTLIST"


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
    """

    draft_path: str
    shortlist: int | None

    @classmethod
    def from_server(cls, server_args: ServerArgs) -> WorkerConfig:
        """Read the resolved server arguments and our environment variables.

        Raises
        ------
        ConfigError
            If a value is not usable; the message names the flag or variable.
        """
        from sglang.srt.runtime_context import get_spec

        path = get_spec().speculative_draft_model_path
        if not path:
            raise ConfigError("DSPARK needs --speculative-draft-model-path: the folder of the draft for this target")
        return cls(draft_path=path, shortlist=shortlist_from_environment())


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
