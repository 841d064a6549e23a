"""From the command line to the arms: two servers of our own, or servers at URLs."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark_sglang import launch, preflight
from dspark_sglang.bench import BenchError
from dspark_sglang.command_line import flag_value
from sgl_dspark.comparison import DSPARK_ONLY, without_flags
from sgl_dspark.cores import Cores, model_threads
from sgl_dspark.server_process import PLAIN, Arm, ServerArm, UrlArm

DSPARK, NO_METRICS = "dspark", "no metrics"
_TARGET_FLAGS = ("--model-path", "--model")
_DRAFT_FLAGS = ("--speculative-draft-model-path", "--speculative-draft-model")
_OURS = {"--port": "it takes a free port", "--host": "it listens on 127.0.0.1", "--plain": "it starts both servers"}
DSPARK_COMMAND = (sys.executable, "-m", "sgl_dspark.cli")


@dataclass(frozen=True)
class Pair:
    """Target and draft, as paths or names on a hub."""

    target: str
    draft: str

    def describe(self) -> dict[str, Any]:
        """Names, paths, and the hash of the draft's weights if they are on this machine."""
        weights = Path(self.draft).expanduser() / "model.safetensors"
        digest = hashlib.sha256(weights.read_bytes()).hexdigest() if weights.is_file() else None
        return {
            "target": {"name": Path(self.target).name, "path": self.target},
            "draft": {"name": Path(self.draft).name, "path": self.draft, "sha256": digest},
        }


def url_arms(specifications: Sequence[str]) -> list[Arm]:
    """Read ``NAME=URL`` arguments; raise `BenchError` for one that is not, or for a name given twice."""
    arms: list[Arm] = []
    for specification in specifications:
        name, _, url = specification.partition("=")
        if not name or not url.startswith(("http://", "https://")):
            raise BenchError(f"--url takes NAME=URL such as dspark=http://127.0.0.1:30000, not {specification!r}")
        if name in (arm.name for arm in arms):
            raise BenchError(f"--url names {name!r} twice; give each server its own name")
        arms.append(UrlArm(name, url.rstrip("/").removesuffix("/v1")))
    return arms


def find_pair(args: Namespace) -> Pair:
    """Return the pair to measure: as given, else the demo pair; checked before anything is started.

    Raises
    ------
    BenchError
        If a target comes without a draft or a draft without its target, or a flag is given that is ours to set.
    DsparkError
        If a folder is missing or the draft was made for another target.
    """
    flags: list[str] = args.server_flags
    for flag, why in _OURS.items():
        if any(f == flag or f.startswith(flag + "=") for f in flags):
            raise BenchError(f"leave out {flag}: bench starts the servers itself, and {why}")
    if flag_value(flags, "--config") is not None:
        raise BenchError("--config is not supported by bench; give its flags after -- instead")
    target = args.target or flag_value(flags, *_TARGET_FLAGS)
    draft = args.draft or flag_value(flags, *_DRAFT_FLAGS)
    if target is None and draft is not None:
        raise BenchError("a draft needs its target: give --target as well")
    if target is not None and draft is None:
        raise BenchError("no draft for this target: give --draft")
    pair = Pair(target or demo_target(), draft or str(launch.DEMO_DRAFT))
    config = preflight.check_target(pair.target)
    if config is not None:
        preflight.check_pair(config, pair.draft)
    return pair


def demo_target() -> str:
    """Prepare the demo target and return its folder; a process of its own keeps torch out of the client."""
    command = [*DSPARK_COMMAND, "prepare", "--print-path"]
    reply = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if reply.returncode:
        raise BenchError("the demo target could not be prepared; run dspark prepare, or give --target and --draft")
    return reply.stdout.strip()


def server_arms(
    server_flags: Sequence[str],
    pair: Pair,
    cores: Cores,
    log_folder: Path,
    *,
    startup_s: float,
    metrics_overhead: bool = False,
) -> list[Arm]:
    """Compose the two servers: the target alone and the target with its draft, everything else equal.

    With ``metrics_overhead`` both have the draft, and the baseline exports no metrics.
    """
    flags = without_flags(server_flags, (*_TARGET_FLAGS, *_DRAFT_FLAGS))
    target = ["--model-path", pair.target]
    commands = {
        PLAIN: [*DSPARK_COMMAND, "serve", "--plain", *target, *without_flags(flags, DSPARK_ONLY)],
        DSPARK: [*DSPARK_COMMAND, "serve", *target, _DRAFT_FLAGS[0], pair.draft, *flags],
    }
    if metrics_overhead:
        commands = {NO_METRICS: [*commands[DSPARK], "--no-metrics"], DSPARK: commands[DSPARK]}
    return [
        ServerArm(
            name,
            command,
            log_folder,
            cores=cores.server,
            environment={"OMP_NUM_THREADS": str(model_threads())},
            startup_s=startup_s,
        )
        for name, command in commands.items()
    ]
