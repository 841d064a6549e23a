"""Make the attention backends known to SGLang, once per process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.arg_groups import choices
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS, register_attention_backend

from dspark_sglang.attention import CPU_BACKEND_NAME

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner


def register_cpu_backend() -> None:
    """Add ``dspark_cpu`` to SGLang's backends and to the values of ``--attention-backend``."""
    if CPU_BACKEND_NAME not in choices.ATTENTION_BACKEND_CHOICES:
        choices.add_attention_backend_choices([CPU_BACKEND_NAME])
        choices.add_draft_attention_backend_choices([CPU_BACKEND_NAME])
    if CPU_BACKEND_NAME not in ATTENTION_BACKENDS:
        register_attention_backend(CPU_BACKEND_NAME)(_create)


def _create(runner: ModelRunner) -> Any:
    from dspark_sglang.attention.cpu import CpuRaggedBackend

    return CpuRaggedBackend(runner)
