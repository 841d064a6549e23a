"""What is asked of a server, and what is said when it does not answer."""

from __future__ import annotations

import numpy as np
import pytest

from dspark_sglang.calibrate.source import Server, ServerError
from sgl_dspark.errors import DataError
from sgl_dspark.server_keys import ADMIN_KEY, API_KEY
from tests.support.fake_dspark_server import POLICY, FakeDsparkServer


def test_all_rounds_are_read_in_several_answers() -> None:
    with FakeDsparkServer(most=300) as fake:
        fake.record(1000)
        found = Server(fake.url).rounds(0)
        assert (len(found.records), found.next_round, found.lost) == (1000, 1000, 0)
        assert np.array_equal(found.records.logits, fake.records.logits)
        fake.record(50)
        again = Server(fake.url).rounds(found.next_round)
        assert np.array_equal(again.records.logits, fake.records.logits[1000:])
        assert len(Server(fake.url).rounds(1050).records) == 0


def test_overwritten_rounds_are_counted() -> None:
    with FakeDsparkServer(capacity=400) as fake:
        fake.record(1000)
        found = Server(fake.url).rounds(100)
        assert (len(found.records), found.lost) == (400, 500)


def test_a_restart_of_the_server_is_noticed() -> None:
    with FakeDsparkServer() as fake:
        fake.record(10)
        with pytest.raises(DataError, match="restarted"):
            Server(fake.url).rounds(500)


def test_whole_blocks_are_verified_and_the_policy_comes_back() -> None:
    with FakeDsparkServer(gamma=5) as fake:
        with Server(fake.url).verifying_in_full():
            assert fake.policy == {"policy": "static", "verify_drafts": 5}
        assert fake.policy == POLICY
        with pytest.raises(KeyboardInterrupt), Server(fake.url).verifying_in_full():
            raise KeyboardInterrupt
        assert fake.policy == POLICY


def test_an_admin_key_is_sent_and_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADMIN_KEY, raising=False)
    monkeypatch.delenv(API_KEY, raising=False)
    with FakeDsparkServer(admin_key="secret") as fake:
        fake.record(3)
        with pytest.raises(ServerError, match=f"401.*{ADMIN_KEY}"):
            Server(fake.url).rounds(0)
        monkeypatch.setenv(ADMIN_KEY, "secret")
        assert len(Server(fake.url).rounds(0).records) == 3


def test_the_state_is_asked_with_the_api_key_where_there_are_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang opens with the one what it closes to the other."""
    monkeypatch.setenv(ADMIN_KEY, "admin")
    monkeypatch.setenv(API_KEY, "api")
    with FakeDsparkServer(gamma=5, admin_key="admin", api_key="api") as fake:
        with Server(fake.url).verifying_in_full():
            assert fake.policy == {"policy": "static", "verify_drafts": 5}
        assert len(Server(fake.url).rounds(0).records) == 0
        monkeypatch.delenv(API_KEY)
        with pytest.raises(ServerError, match=f"/dspark/state answered 401.*{API_KEY}"):
            Server(fake.url).gamma()


def test_servers_without_the_routes_are_named() -> None:
    with FakeDsparkServer() as fake, pytest.raises(ServerError, match="/nothing answered 404"):
        Server(fake.url).ask("/nothing")
    with pytest.raises(ServerError, match="failed"):
        Server(fake.url).ask("/dspark/state")


@pytest.mark.parametrize("state", [{}, {"policy": 3, "model": {}}, {"policy": "adaptive", "model": {"gamma": "x"}}])
def test_states_of_other_versions_are_refused(state: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "ask", lambda *_: state)
    with pytest.raises(ServerError, match="this version"), Server("http://unused").verifying_in_full():
        pass


def test_one_of_several_replicas_speaks_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"policy": "threshold", "model": {"gamma": 6}}
    monkeypatch.setattr(Server, "ask", lambda *_: {"replicas": [state, state]})
    assert Server("http://unused").gamma() == 6
    assert Server("http://unused").policy() == {"policy": "threshold"}
