"""Entry points that SGLang calls in each of its processes.

SGLang logs a plugin that fails and serves with its own code, so everything here
records what it did; `launch` and ``dspark doctor`` read the record and refuse.
"""

from __future__ import annotations

from dataclasses import dataclass, field

CPU_PLATFORM_CLASS = "dspark_sglang.platforms.cpu.DsparkCpuPlatform"


@dataclass
class Record:
    """What took effect in this process."""

    platform: str | None = None
    hooks: list[str] = field(default_factory=list)
    registered: bool = False


RECORD = Record()


def cpu_platform() -> str | None:
    """Return our CPU platform's class name, or None where CUDA is there.

    Called by SGLang for the entry point group ``sglang.srt.platforms``.
    """
    import torch

    if torch.cuda.is_available():
        return None
    RECORD.platform = CPU_PLATFORM_CLASS
    return CPU_PLATFORM_CLASS


def register() -> None:
    """Register hooks and backends.

    Called by SGLang for the entry point group ``sglang.srt.plugins``, in every process.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry

    from dspark_sglang.attention.register import register_backends
    from dspark_sglang.bridge.conditions import default_mode
    from dspark_sglang.hooks import HOOKS
    from dspark_sglang.selection import BRIDGE, worker_choice

    register_backends()
    for hook in HOOKS:
        HookRegistry.register(hook.target, hook.function, hook.kind)
        RECORD.hooks.append(hook.target)
    if worker_choice() == BRIDGE:
        default_mode()
    RECORD.registered = True


def missing_hooks() -> list[str]:
    """Return the hook targets of ours that SGLang did not patch in this process."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    from dspark_sglang.hooks import HOOKS

    return [hook.target for hook in HOOKS if hook.target not in HookRegistry._patched]
