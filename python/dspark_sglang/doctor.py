"""What `dspark doctor` looks at: versions, device, threads, and what of ours took effect in SGLang."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from importlib import metadata

from dspark_sglang import launch, selection
from dspark_sglang.findings import Finding, State
from sgl_dspark.errors import DsparkError


def examine() -> Iterator[Finding]:
    """Yield every finding; a check that cannot be made because of an earlier one is left out."""
    yield Finding(State.OK, "python", platform.python_version())
    for name in ("sgl-dspark", "torch", "transformers"):
        yield _version(name)
    try:
        launch.check_version()
    except DsparkError as error:
        yield Finding(State.MISSING, "sglang", str(error), f"pip install sglang=={launch.SUPPORTED_SGLANG}")
        return
    yield Finding(State.OK, "sglang", launch.SUPPORTED_SGLANG)
    yield from _device()
    yield from _threads()
    yield from _entry_points()
    yield from _plugin()
    yield from _demo()


def _version(name: str) -> Finding:
    try:
        return Finding(State.OK, name, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(State.MISSING, name, "not installed", "pip install 'sgl-dspark[serve]'")


def _device() -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        yield Finding(State.OK, "device", f"CUDA, {torch.cuda.get_device_name()}")
    else:
        capability = torch.backends.cpu.get_cpu_capability()
        yield Finding(State.OK, "device", f"CPU, {_cpu_model()}, {capability}; no CUDA device")


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo") as info:
            names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _threads() -> Iterator[Finding]:
    from dspark_sglang.threads import core_count, default_threads

    cores = core_count()
    given = os.environ.get("OMP_NUM_THREADS")
    if given is None:
        yield Finding(State.OK, "threads", f"{default_threads()} of {cores} usable cores (default; OMP_NUM_THREADS)")
    elif not given.isdecimal() or not 1 <= int(given) <= cores:
        yield Finding(
            State.NOTE,
            "threads",
            f"OMP_NUM_THREADS={given} with {cores} usable cores",
            f"set OMP_NUM_THREADS to 1..{cores}; more threads than free cores slow decoding many times",
        )
    else:
        yield Finding(State.OK, "threads", f"{given} of {cores} usable cores (OMP_NUM_THREADS)")


def _entry_points() -> Iterator[Finding]:
    for group, name in (("sglang.srt.plugins", "dspark"), ("sglang.srt.platforms", "dspark_cpu")):
        found = [point for point in metadata.entry_points(group=group) if point.name == name]
        if found:
            yield Finding(State.OK, f"entry point {group}", f"{name} = {found[0].value}")
        else:
            yield Finding(
                State.MISSING, f"entry point {group}", f"{name} not registered", "reinstall: pip install -e '.[serve]'"
            )
    for variable, wanted in (("SGLANG_PLUGINS", "dspark"), ("SGLANG_PLATFORM", "dspark_cpu")):
        value = os.environ.get(variable)
        if value and wanted not in [part.strip() for part in value.split(",")]:
            yield Finding(State.MISSING, variable, f"{value} leaves {wanted} out", f"unset {variable}, or add {wanted}")


def _plugin() -> Iterator[Finding]:
    try:
        choice = selection.worker_choice()
    except DsparkError as error:
        yield Finding(State.MISSING, "worker", str(error), f"unset {selection.WORKER_VARIABLE}")
        return
    failure = _attempt(launch.check_plugin)

    from sglang.srt.platforms import current_platform

    from dspark_sglang.hooks import HOOKS
    from dspark_sglang.plugin import missing_hooks

    kind = type(current_platform)
    yield Finding(State.OK, "platform", f"{kind.__module__}.{kind.__qualname__}")
    missing = set(missing_hooks())
    for hook in HOOKS:
        if hook.target in missing:
            remedy = f"this package hooks into SGLang {launch.SUPPORTED_SGLANG}; another version may have moved it"
            yield Finding(State.MISSING, "hook", f"{hook.target} ({hook.why})", remedy)
        else:
            yield Finding(State.OK, "hook", f"{hook.target} ({hook.why})")
    yield from seam_findings()
    if failure is not None:
        yield Finding(State.MISSING, "worker", failure, "mend the findings above, then run dspark doctor again")
    elif choice == selection.UPSTREAM:
        yield Finding(State.NOTE, "worker", f"SGLang's own, since {selection.WORKER_VARIABLE}=upstream")
    elif choice == selection.BRIDGE:
        yield Finding(State.OK, "worker", "DSPARK builds SGLang's own worker, planned by this package")
    else:
        yield Finding(State.OK, "worker", "DSPARK builds dspark_sglang.worker.DsparkWorker")


def seam_findings() -> Iterator[Finding]:
    """Yield whether bridge mode fits the SGLang that is installed; only whoever asks for it needs that."""
    from dspark_sglang.bridge.seam import SEAM, differences

    found = list(differences())
    if not found:
        yield Finding(State.OK, "bridge seam", f"{len(SEAM)} members of SGLang's DSPARK are as expected")
    wanted = selection.worker_choice() == selection.BRIDGE
    for difference in found:
        remedy = f"bridge mode was written for SGLang {launch.SUPPORTED_SGLANG}; other modes do without it"
        yield Finding(State.MISSING if wanted else State.NOTE, "bridge seam", difference, remedy)


def _attempt(check: Callable[[], None]) -> str | None:
    try:
        check()
    except DsparkError as error:
        return str(error)
    return None


def _demo() -> Iterator[Finding]:
    from sgl_dspark.demo.smollm2 import MODEL_NAME, is_prepared
    from sgl_dspark.demo.wheel import models_root

    folder = models_root() / MODEL_NAME
    if is_prepared(folder):
        yield Finding(State.OK, "demo target", str(folder))
    else:
        yield Finding(State.NOTE, "demo target", f"not prepared in {folder}", "run dspark prepare")
    if (launch.DEMO_DRAFT / "config.json").is_file():
        yield Finding(State.OK, "demo draft", str(launch.DEMO_DRAFT))
    else:
        yield Finding(State.NOTE, "demo draft", f"not found at {launch.DEMO_DRAFT}", "run from a checkout")
