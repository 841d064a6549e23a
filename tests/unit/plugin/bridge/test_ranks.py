"""Ranks whose timings, calibrations and relays differ verify the same number of drafts: rank 0's."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("sglang")

import torch
import torch.multiprocessing as multiprocessing

from dspark_sglang.rank_sync import RankSync
from sgl_dspark.planner.config import PlannerConfig
from sgl_dspark.sps.fit import Probe
from tests.support.bridge_world import BridgeWorld

STEPS = 8
GOOD, POOR = [0.9, 0.85, 0.8], [0.5, 0.4, 0.3]


def _serve(rank: int, folder: str, together: bool) -> None:
    if together:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    ranks = RankSync(torch.distributed.group.WORLD, 2) if together else RankSync()
    with pytest.MonkeyPatch.context() as patch:
        world = BridgeWorld(patch, Path(folder), PlannerConfig(smoothing_rows=0.0), ranks=ranks)
        if rank:
            # Drafts cost next to nothing here, and copies from the device come late every other step.
            cheap = [Probe("verify", 1, tokens, 0, 0.01 + 1e-9 * tokens) for tokens in (1, 48)]
            world.scheduler._bridge_knowledge.adopt(cheap)
        lines = []
        for step in range(STEPS):
            assert world.ring is not None
            world.ring.arrived = not rank or step % 2 == 0
            budget, lens = world.step([GOOD, POOR], [1, 0])
            lines.append(f"{budget} {lens}")
    Path(folder, f"{together} {rank}").write_text("\n".join(lines))
    if together:
        torch.distributed.destroy_process_group()


def test_every_rank_verifies_what_rank_zero_decided(tmp_path: Path) -> None:
    multiprocessing.spawn(_serve, (str(tmp_path), True), nprocs=2)
    for rank in range(2):
        _serve(rank, str(tmp_path), together=False)
    first, second, alone, other = (
        (tmp_path / f"{together} {rank}").read_text() for together in (True, False) for rank in range(2)
    )
    assert first == second == alone
    # Left to itself, the second rank would have hung the first.
    assert other != alone
    assert len(first.splitlines()) == STEPS
