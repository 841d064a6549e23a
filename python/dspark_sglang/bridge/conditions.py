"""Under which settings of SGLang there is something to plan, and what its step times depend on."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dspark_sglang.fingerprint import device_name, weights_id
from sgl_dspark.errors import ConfigError
from sgl_dspark.sps.store import Fingerprint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sgl_dspark.planner.config import PlannerConfig

MODE_VARIABLE, COMPACT = "SGLANG_RAGGED_VERIFY_MODE", "compact"


def default_mode() -> None:
    """Let SGLang verify blocks of different lengths, unless the environment says otherwise.

    Its own default verifies whole blocks and builds no confidence head.
    """
    os.environ.setdefault(MODE_VARIABLE, COMPACT)


def refuse_settings() -> None:
    """Raise `ConfigError` naming the first setting of SGLang under which a budget has no effect."""
    from sglang.srt.environ import envs
    from sglang.srt.runtime_context import get_spec
    from sglang.srt.speculative.ragged_verify import RaggedVerifyMode, read_ragged_verify_mode

    mode = read_ragged_verify_mode()
    if mode is not RaggedVerifyMode.COMPACT:
        raise ConfigError(
            f"{MODE_VARIABLE} is {mode.value}, under which every block is verified whole; unset it for bridge mode"
        )
    spec = get_spec()
    for flag, value in (
        ("--speculative-dspark-sps-table-path", spec.speculative_dspark_sps_table_path),
        ("--speculative-dspark-confidence-sts-path", spec.speculative_dspark_confidence_sts_path),
    ):
        if value:
            raise ConfigError(f"{flag} is not read in bridge mode, which learns this while it serves; leave it out")
    simulated = float(envs.SGLANG_SIMULATE_ACC_LEN.get())
    if simulated > 0 and simulated != 1.0:
        raise ConfigError(
            "SGLANG_SIMULATE_ACC_LEN above 1 accepts drafts that a planned step has not verified; unset it"
        )


def refuse_backend(backend: Any) -> None:
    """Raise `ConfigError` if the target's attention backend does not verify blocks of different lengths."""
    if not getattr(backend, "supports_ragged_verify_graph", False):
        raise ConfigError(
            f"--attention-backend: SGLang's {type(backend).__name__} cannot verify blocks of different lengths; choose "
            "one that can (fa3, fa4, trtllm_mha, trtllm_mla, flashinfer_mla), or SGL_DSPARK_WORKER=upstream"
        )


def refuse_policy(config: PlannerConfig) -> None:
    """Raise `ConfigError` for a policy that chooses lengths on the device, where SGLang's worker takes K alone."""
    if config.policy not in ("adaptive", "static"):
        raise ConfigError(
            f"policy: bridge mode serves adaptive and static, not {config.policy}; SGLang ranks the drafts"
        )
    if config.policy == "static" and config.verify_drafts is not None:
        raise ConfigError("verify_drafts: in bridge mode static verifies whole blocks; leave verify_drafts out")


def bridge_fingerprint(worker: Any, target_path: str, draft_path: str, tiers: Sequence[int] | None) -> Fingerprint:
    """Describe everything that step times of a bridged worker depend on."""
    from sglang.srt.runtime_context import get_parallel

    runner, device = worker.model_runner, torch.device(worker.device)
    return Fingerprint(
        {
            "worker": "bridge",
            "target": Path(target_path).name,
            "target weights": weights_id(target_path),
            "draft weights": weights_id(draft_path),
            "gamma": int(worker.gamma),
            "device": device.type,
            "device name": device_name(device),
            "threads": torch.get_num_threads(),
            "tensor parallel size": int(get_parallel().tp_size),
            "dtype": str(runner.dtype),
            "attention backend": type(runner.attn_backend).__name__,
            "draft attention backend": type(worker.draft_model_runner.attn_backend).__name__,
            "graph sizes": "none" if tiers is None else " ".join(map(str, tiers)),
            "running requests": worker.max_requests,
            "context length": int(runner.model_config.context_len),
            "sgl-dspark": metadata.version("sgl-dspark"),
            "sglang": metadata.version("sglang"),
            "torch": torch.__version__,
        }
    )
