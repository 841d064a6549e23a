"""One rank and two compute the same losses and the same draft, as replicas and in shards."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sgl_dspark.errors import ConfigError
from sgl_dspark.training.ranks import Ranks, check_batch

ROOT = Path(__file__).parents[3]


def run(folder: Path, world: int, kind: str, strategy: str) -> dict[str, Any]:
    """Train on ``world`` processes and return what rank 0 wrote."""
    folder.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.rank_worker", kind, strategy, str(folder)],
            cwd=ROOT,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            },
        )
        for rank in range(world)
    ]
    try:
        codes = [process.wait(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0] * world
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


@pytest.mark.parametrize(("kind", "strategy"), [("dspark", "ddp"), ("dspark", "fsdp"), ("eagle3", "ddp")])
def test_two_ranks_compute_what_one_computes(tmp_path: Path, kind: str, strategy: str) -> None:
    one = run(tmp_path / "one", 1, kind, strategy)
    two = run(tmp_path / "two", 2, kind, strategy)
    assert len(one["losses"]) == 6
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-5)
    assert two["held_out"] == pytest.approx(one["held_out"], rel=1e-5)
    assert two["norms"].keys() == one["norms"].keys()
    for name, norm in one["norms"].items():
        assert two["norms"][name] == pytest.approx(norm, rel=1e-4), name


def test_a_batch_is_shared_without_loss() -> None:
    shares = [Ranks(rank, 3).share("abcdefg") for rank in range(3)]
    assert sorted(pair for share in shares for pair in share) == list(enumerate("abcdefg"))


def test_a_batch_that_ranks_cannot_share_evenly_is_refused() -> None:
    check_batch(8, 4)
    with pytest.raises(ConfigError, match="multiple of the 3 ranks"):
        check_batch(8, 3)
