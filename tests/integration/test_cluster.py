"""Two replicas behind the gateway, one killed and restarted, the other drained: `make cluster-demo` on a small load."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import pair
from tests.support.server import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import cluster_demo

pytestmark = pytest.mark.server
REQUESTS, TOKENS, CLIENTS = 16, 200, 8


def test_a_killed_replica_loses_its_streams_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("sglang")
    said: list[str] = []
    demo = cluster_demo.Demo(tmp_path, pair.questions(REQUESTS), TOKENS, CLIENTS, said.append)
    report = demo.run()
    assert report["broken"] == [], said
    kill = report["phases"]["kill"]
    assert len({one["replica"] for one in kill["lost"]}) == 1
    # Further answers may have begun that the client had not read from yet.
    assert {one["request"] for one in kill["lost"]} & set(kill["under_way"])
    for one in kill["lost"]:
        assert one["ended_with"].startswith(("stream_", "malformed"))
        assert one["tokens_received"] < TOKENS
    assert len(kill["lost"]) + sum(kill["answers"].values()) == REQUESTS
    assert not any(seen["lost"] for name, seen in report["phases"].items() if name != "kill")
    text = cluster_demo.written(report)
    assert "BROKEN" not in text
    assert text.count("| kill |") == len(kill["lost"]) + 1
