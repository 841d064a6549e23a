"""Our routes on a bare application, with a scheduler that lives in the test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sglang")

from fastapi import FastAPI
from fastapi.testclient import TestClient

from dspark_sglang import policy_codec
from dspark_sglang.http import routes
from dspark_sglang.rounds import RoundLog
from sgl_dspark.calibration.records import from_wire
from sgl_dspark.planner.config import PlannerConfig


class Manager:
    """SGLang's tokenizer manager as far as the routes use it; replicas of one worker each."""

    def __init__(self, replicas: int) -> None:
        self.configs = [PlannerConfig() for _ in range(replicas)]
        self.rounds = RoundLog(2)
        self.rounds.append(np.ones((3, 2), np.float32), np.full(3, 2), np.full(3, 1), np.zeros(3, bool))
        self.after: int | None = None
        self.refuses = False

    async def get_internal_state(self) -> list[dict[str, Any]]:
        states = []
        for config in self.configs:
            state: dict[str, Any] = {"policy": policy_codec.shown(config), "model": {"gamma": 2}}
            if self.after is not None:
                state["rounds"] = self.rounds.reply(self.after)
            states.append({"dspark_info_record": state, "tp_size": 1})
        return states

    async def set_internal_state(self, request: Any) -> list[bool]:
        numbers = dict(request.server_args)
        after = numbers.pop(policy_codec.SEND_ROUNDS, None)
        if after is not None:
            self.after = None if after < 0 else after
        if not self.refuses:
            self.configs = [policy_codec.decode(numbers, config) for config in self.configs]
        return [not self.refuses] * len(self.configs)


def client(monkeypatch: pytest.MonkeyPatch, manager: Manager) -> TestClient:
    app = FastAPI()
    routes.add_routes(app)
    monkeypatch.setattr(routes, "_manager", lambda: manager)
    return TestClient(app)


def test_the_state_of_one_worker_or_of_every_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    assert client(monkeypatch, Manager(1)).get("/dspark/state").json()["policy"]["policy"] == "adaptive"
    assert len(client(monkeypatch, Manager(2)).get("/dspark/state").json()["replicas"]) == 2


def test_a_policy_reaches_every_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager(2)
    reply = client(monkeypatch, manager).post("/dspark/policy", json={"policy": "static", "verify_drafts": 1})
    assert reply.status_code == 200
    assert (reply.json()["policy"]["policy"], reply.json()["policy"]["verify_drafts"]) == ("static", 1)
    assert {config.verify_drafts for config in manager.configs} == {1}


@pytest.mark.parametrize(
    ("content", "named"), [(b"{", "not JSON"), (b"[]", "JSON object"), (b'{"verify_drafts": 3}', "verify_drafts")]
)
def test_a_bad_policy_changes_nothing(monkeypatch: pytest.MonkeyPatch, content: bytes, named: str) -> None:
    manager = Manager(1)
    reply = client(monkeypatch, manager).post("/dspark/policy", content=content)
    assert reply.status_code == 400
    assert named in reply.json()["error"]["message"]
    assert manager.configs == [PlannerConfig()]


def test_a_scheduler_that_refuses_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager(1)
    manager.refuses = True
    reply = client(monkeypatch, manager).post("/dspark/policy", json={"policy": "early-stop"})
    assert reply.status_code == 500
    assert "log" in reply.json()["error"]["message"]


def test_the_state_never_carries_rounds_that_another_client_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager(1)
    manager.after = 0
    assert "rounds" not in client(monkeypatch, manager).get("/dspark/state").json()


def test_records_and_a_number_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = client(monkeypatch, Manager(1))
    records, following = from_wire(asked.get("/dspark/records?after=1").json())
    assert (len(records), following) == (2, 3)
    assert asked.get("/dspark/records?after=-1").status_code == 422
    assert "rounds" not in asked.get("/dspark/state").json()


@pytest.mark.parametrize("path", ["/dspark/state", "/dspark/records"])
def test_where_no_dspark_worker_serves_it_says_so(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    plain = SimpleNamespace()

    async def states() -> list[dict[str, Any]]:
        return [{"tp_size": 1}]

    async def accept(_: Any) -> list[bool]:
        return [True]

    plain.get_internal_state, plain.set_internal_state = states, accept
    asked = client(monkeypatch, plain)  # type: ignore[arg-type]
    assert asked.get(path).status_code == 404
    assert "--plain" in asked.get(path).json()["error"]["message"]
    assert asked.post("/dspark/policy", json={"policy": "static"}).status_code == 404


def test_changing_and_reading_rounds_need_the_admin_key_where_there_is_one() -> None:
    from sglang.srt.utils.auth import AuthLevel

    app = FastAPI()
    routes.add_routes(app)
    levels = {
        route.path: getattr(route.endpoint, "_auth_level", None)  # type: ignore[attr-defined]
        for route in app.routes
        if route.path.startswith("/dspark")  # type: ignore[attr-defined]
    }
    assert levels == {
        "/dspark/state": None,
        "/dspark/policy": AuthLevel.ADMIN_OPTIONAL,
        "/dspark/records": AuthLevel.ADMIN_OPTIONAL,
    }
