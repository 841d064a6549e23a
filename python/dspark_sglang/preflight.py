"""Checks that cost nothing and are made before anything is loaded, each with one clear sentence.

SGLang finds most of these too, minutes later and in the log of a child process.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark_sglang.attention import CPU_BACKEND_NAME
from sgl_dspark.errors import ConfigError, LaunchError, TargetMismatchError
from sgl_dspark.model.checkpoint import check_drafter

if TYPE_CHECKING:
    from collections.abc import Callable


def _only_ours(args: Any) -> bool:
    chosen = (args.attention_backend, args.prefill_attention_backend, args.decode_attention_backend)
    return {name for name in chosen if name is not None} <= {CPU_BACKEND_NAME}


# Server flags and variables under which DSpark would not be exact or not run, and when.
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
        "--attention-backend",
        lambda a: a.device == "cpu" and not _only_ours(a),
        f"only {CPU_BACKEND_NAME}, the default, verifies drafts on a CPU",
    ),
    (
        "--kv-cache-dtype",
        lambda a: a.device == "cpu" and str(a.kv_cache_dtype).startswith("fp"),
        "the CPU attention backend reads keys and values in the model's own type",
    ),
    (
        "--sampling-backend",
        # The CUDA default, flashinfer, is resolved to its name before this; see `cuda_flags`.
        lambda a: a.sampling_backend not in (None, "pytorch"),
        "an answer's first token would follow another law than its rest under any but pytorch, which dspark serve sets",
    ),
    ("--enable-pdmux", lambda a: bool(a.enable_pdmux), "its split prefill does not feed the draft"),
    (
        "--tokenizer-worker-num",
        lambda a: a.tokenizer_worker_num > 1,
        "its extra processes load no plugins, so they would not refuse what is not exact",
    ),
    (
        "--smg-grpc-mode",
        lambda a: bool(a.smg_grpc_mode or a.grpc_mode),
        "requests that do not come through SGLang's Python HTTP server are not checked",
    ),
    (
        "SGLANG_RUST_SERVER",
        lambda _: rust_server(),
        "requests that do not come through SGLang's Python HTTP server are not checked",
    ),
    (
        "--enable-deterministic-inference",
        lambda a: bool(a.enable_deterministic_inference),
        "its attention backends do not verify drafts of different lengths; seeds repeat without it",
    ),
)


def rust_server() -> bool:
    """Whether SGLang's Rust front end is switched on, which checks no request."""
    return os.environ.get("SGLANG_RUST_SERVER", "").strip().lower() in ("1", "true", "yes", "y")


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
    if not 0 < port < 65536:
        raise LaunchError(f"--port must be in 1..65535, not {port}")
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
    if folder.is_file():
        return None
    if folder.is_dir():
        raise LaunchError(f"{path} holds no config.json, so it is not a model folder; check --model-path")
    if _names_a_folder(path):
        raise LaunchError(f"there is no model at {path}; check --model-path")
    return None


def _names_a_folder(path: str) -> bool:
    """Whether a path that is no folder here can only have been meant as one, and not as a model on a hub."""
    # A bare word is most often a mistyped folder; models on a hub have an owner too.
    return "://" not in path and (path.startswith((".", "/", "~")) or path.count("/") != 1)


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
    LaunchError, ConfigError, CheckpointError
        If the folder is missing, its configuration is refused, or its weights do not
        fit it; the weights' names and shapes are read, not the weights.
    TargetMismatchError
        If it was made for another target.
    """
    folder = Path(draft_path).expanduser()
    if not folder.is_dir():
        if _names_a_folder(draft_path):
            raise LaunchError(f"there is no draft at {draft_path}; check --speculative-draft-model-path")
        return
    draft = check_drafter(folder, beside_target=True)
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
