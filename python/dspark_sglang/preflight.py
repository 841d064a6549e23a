"""Checks that cost nothing and are made before anything is loaded, each with one clear sentence.

SGLang finds most of these too, minutes later and in the log of a child process.
"""

from __future__ import annotations

import errno
import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgl_dspark.config import DrafterConfig
from sgl_dspark.errors import ConfigError, LaunchError, TargetMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable

# Server flags under which DSpark would not be exact or not run, and when.
_REFUSED_FLAGS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("--tp-size", lambda a: a.tp_size > 1, "the draft shares the target's embedding, which tensor parallelism splits"),
    ("--pp-size", lambda a: a.pp_size > 1, "drafting needs every feature layer in one stage"),
    ("--enable-dp-attention", lambda a: bool(a.enable_dp_attention), "ranks without requests cannot join a step yet"),
    ("--enable-lora", lambda a: bool(a.enable_lora or a.lora_paths), "the draft does not follow adapters yet"),
    (
        "--enable-hierarchical-cache",
        lambda a: bool(a.enable_hierarchical_cache),
        "the draft's KV is not offloaded with the target's yet",
    ),
    ("--disaggregation-mode", lambda a: a.disaggregation_mode != "null", "the draft's KV is not transferred yet"),
    ("--enable-mixed-chunk", lambda a: bool(a.enable_mixed_chunk), "a step either prefills or verifies"),
    (
        "--page-size",
        lambda a: a.page_size not in (None, 1) and a.device == "cpu",
        "pages above one token need Triton kernels on a CPU",
    ),
    (
        "--enable-deterministic-inference",
        lambda a: bool(a.enable_deterministic_inference),
        "acceptance does not draw from per-request seeds yet",
    ),
)


def refuse_flags(args: Any) -> None:
    """Raise `ConfigError` naming the first server flag that DSpark does not serve.

    Parameters
    ----------
    args : resolved view of SGLang's server arguments.
    """
    for flag, asks, why in _REFUSED_FLAGS:
        if asks(args):
            raise ConfigError(f"{flag} is not supported with DSpark: {why}; leave it out, or serve with --plain")


def check_port(host: str, port: int) -> None:
    """Raise `LaunchError` if the server could not listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise LaunchError(
                    f"port {port} on {host} is in use; stop the process that listens there or give another --port"
                ) from error
            raise LaunchError(f"cannot listen on {host} port {port}: {error.strerror}") from error


def check_target(path: str) -> dict[str, Any] | None:
    """Return the target's ``config.json``, or None for a model on a hub.

    Raises
    ------
    LaunchError
        If ``path`` looks like a folder of this machine and holds no model.
    """
    folder = Path(path).expanduser()
    file = folder / "config.json"
    if file.is_file():
        try:
            config: dict[str, Any] = json.loads(file.read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise LaunchError(f"cannot read {file}: {error}") from error
        return config
    if folder.is_dir():
        raise LaunchError(f"{path} holds no config.json, so it is not a model folder; check --model-path")
    if path.startswith((".", "/", "~")) or path.count("/") != 1:
        raise LaunchError(f"there is no model at {path}; check --model-path")
    return None


def check_pair(target: dict[str, Any], draft_path: str) -> None:
    """Check that a local draft was made for a target.

    Parameters
    ----------
    target : dict
        The target's ``config.json``.
    draft_path : str
        Folder of the draft; an id on a hub is left to the worker.

    Raises
    ------
    LaunchError, ConfigError
        If the folder is missing or its configuration is refused.
    TargetMismatchError
        If it was made for another target.
    """
    folder = Path(draft_path).expanduser()
    if not folder.is_dir():
        if draft_path.startswith((".", "/", "~")) or draft_path.count("/") != 1:
            raise LaunchError(f"there is no draft at {draft_path}; check --speculative-draft-model-path")
        return
    draft = DrafterConfig.from_dir(folder)
    text = target.get("text_config", target)
    for name, key, wanted in (
        ("hidden size", "hidden_size", draft.hidden_size),
        ("vocabulary", "vocab_size", draft.vocab_size),
        ("layers", "num_hidden_layers", draft.num_target_layers),
    ):
        got = text.get(key)
        if got is not None and got != wanted:
            raise TargetMismatchError(
                f"the draft {draft_path} was made for another target ({name} {wanted}, but this target has {got}); "
                "give the draft of this target with --speculative-draft-model-path"
            )
