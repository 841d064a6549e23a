"""Make the attention backends known to SGLang, once per process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.arg_groups import choices
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS, register_attention_backend

from dspark_sglang.attention import CPU_BACKEND_NAME, CUDA_BACKEND_NAME
from sgl_dspark.errors import ConfigError

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner


def register_backends() -> None:
    """Add ``dspark_cpu`` and ``dspark_cuda`` to SGLang's backends and to the values of ``--attention-backend``.

    Both everywhere, so that one that cannot run here is refused by its reason and not as an unknown name.
    """
    for name, create in ((CPU_BACKEND_NAME, _create_cpu), (CUDA_BACKEND_NAME, _create_cuda)):
        if name not in choices.ATTENTION_BACKEND_CHOICES:
            choices.add_attention_backend_choices([name])
            choices.add_draft_attention_backend_choices([name])
        if name not in ATTENTION_BACKENDS:
            register_attention_backend(name)(create)


def _create_cpu(runner: ModelRunner) -> Any:
    from dspark_sglang.attention.cpu import CpuRaggedBackend

    return CpuRaggedBackend(runner)


def _create_cuda(runner: ModelRunner) -> Any:
    if not str(runner.device).startswith("cuda"):
        raise ConfigError(
            f"--attention-backend {CUDA_BACKEND_NAME} needs a CUDA device, not {runner.device}; leave it out"
        )
    from dspark_sglang.attention.cuda import CudaRaggedBackend

    return CudaRaggedBackend(runner)
