"""Two processes that decide differently must end up with rank 0's decision."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.multiprocessing as multiprocessing

from dspark_sglang.rank_sync import RankSync
from sgl_dspark.planner.step import Decision

REQUESTS = 3
# What each rank decides by itself, one column a step.
OWN = (
    (Decision(1, True, 5), Decision(1, False, 0)),
    (Decision(2, False, 0), Decision(2, True, 9, np.array([True, False, True]))),
    (Decision(3, True, 4, np.array([False, True, True])), Decision(3, True, 6)),
    (Decision(4, True, None), Decision(4, True, 2)),
)


def _rank(rank: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    sync = RankSync(torch.distributed.group.WORLD, 2)
    lines = []
    for step in OWN:
        agreed = sync.decision(step[rank], REQUESTS)
        rows = None if agreed.drafted is None else agreed.drafted.tolist()
        lines.append(f"{agreed.step} {agreed.draft} {agreed.budget} {rows}")
    lens = sync.agree(torch.tensor([rank + 1, 2 * rank, 3]))
    Path(folder, str(rank)).write_text("\n".join([*lines, str(lens.tolist())]))
    torch.distributed.destroy_process_group()


def test_every_rank_gets_rank_zeros_decision(tmp_path: Path) -> None:
    multiprocessing.spawn(_rank, (str(tmp_path),), nprocs=2)
    first, second = ((tmp_path / name).read_text() for name in "01")
    assert first == second
    assert first.splitlines() == [
        "1 True 5 None",
        "2 False 0 None",
        "3 True 4 [False, True, True]",
        "4 True None None",
        "[1, 0, 3]",
    ]


def test_one_rank_sends_nothing() -> None:
    decision = Decision(1, True, 5, expected_tokens=math.pi)
    assert RankSync().decision(decision, REQUESTS) is decision


def test_more_ranks_need_a_group() -> None:
    with pytest.raises(ValueError, match="group"):
        RankSync(None, 2)
