"""The whole command against a server with a known law: what is asked, fitted, written and refused."""

from __future__ import annotations

import contextlib
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from dspark_sglang.bench import BenchError, arms
from dspark_sglang.calibrate import collect
from dspark_sglang.commands import calibrate as command
from sgl_dspark.calibration import store
from sgl_dspark.calibration.records import RecordSet
from sgl_dspark.errors import ConfigError, DataError
from sgl_dspark.server_process import ServerArm
from tests.support.fake_dspark_server import POLICY, FakeDsparkServer
from tests.support.pair import DRAFT
from tests.support.rounds import Traffic

GREEDY, SAMPLED = Traffic(1.7), Traffic(1.0, -0.9)


def _parse(*options: str) -> Namespace:
    parser = ArgumentParser(allow_abbrev=False)
    command.add_arguments(parser)
    return parser.parse_args(options)


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    """Copy the fixture's draft configuration, gamma included, beside weights that are only hashed."""
    folder = tmp_path / "draft"
    folder.mkdir()
    (folder / "config.json").write_text((DRAFT / "config.json").read_text())
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def gamma(draft: Path) -> int:
    return int(json.loads((draft / "config.json").read_text())["block_size"])


@pytest.fixture
def server(gamma: int) -> Iterator[FakeDsparkServer]:
    with FakeDsparkServer(gamma, 150, GREEDY, SAMPLED) as fake:
        yield fake


def test_traffic_is_fitted_by_kind_and_stored(
    server: FakeDsparkServer, draft: Path, gamma: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.record(6000)
    server.record(6000, sampled=True)
    plot, kept = tmp_path / "plot.png", tmp_path / "rounds.npz"
    options = ("--url", server.url + "/v1/", "--draft", str(draft), "--plot", str(plot), "--records", str(kept))
    assert command.run(_parse(*options, "--rounds", "12000")) == 0
    made = store.load(draft / store.FILE_NAME, gamma=gamma, draft_sha256=store.draft_sha256(draft))
    assert made.greedy.map.temperatures[0] == pytest.approx(1.7, rel=0.15)
    assert made.sampled.method == "affine"
    assert made.sampled.map.biases[0] == pytest.approx(-0.9, abs=0.15)
    assert made.data["rounds"]["greedy"]["fit"] + made.data["rounds"]["greedy"]["held_out"] == 6000
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert len(RecordSet.load(kept)) == 12_000
    printed = capsys.readouterr().out
    assert "greedy, " in printed
    assert "mean ECE over slots" in printed
    # Enough was there already: the server was left alone.
    assert server.policies == []


def test_prompts_are_held_out_whole_at_every_temperature(
    server: FakeDsparkServer, draft: Path, gamma: int, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"question {i}"}) + "\n" for i in range(10)))
    out = tmp_path / "made.json"
    options = ("--url", server.url, "--draft", str(draft), "--prompts", str(prompts), "--out", str(out))
    assert command.run(_parse(*options, "--temperatures", "0,0.8", "--concurrency", "2", "--held-out", "0.3")) == 0
    asked = [(b["temperature"], b["messages"][0]["content"]) for b in server.bodies]
    assert len(asked) == len(set(asked)) == 20
    for temperature in (0.0, 0.8):
        fitted = {text for t, text in asked[:7] + asked[10:17] if t == temperature}
        judged = {text for t, text in asked[7:10] + asked[17:] if t == temperature}
        assert (len(fitted), len(judged)) == (7, 3)
        assert fitted.isdisjoint(judged)
    assert server.policies == [{"policy": "static", "verify_drafts": gamma}, POLICY]
    assert {policy["policy"] for policy in server.verifying} == {"static"}
    made = store.load(out, gamma=gamma, draft_sha256=None)
    assert made.data["rounds"] == {kind: {"fit": 7 * 150, "held_out": 3 * 150} for kind in ("greedy", "sampled")}
    assert made.data["prompts"] == 10
    assert made.data["temperatures"] == [0.0, 0.8]
    assert not (draft / store.FILE_NAME).exists()


def test_the_policy_comes_back_after_a_failure(server: FakeDsparkServer, draft: Path) -> None:
    def fail(_: dict[str, object]) -> None:
        raise RuntimeError("scripted")

    server.on_chat = fail
    prompts = ("--prompts", str(fixture_prompts(draft.parent)), "--concurrency", "1")
    with pytest.raises(BenchError, match="connection"):
        command.run(_parse("--url", server.url, "--draft", str(draft), *prompts))
    assert server.policy == POLICY
    assert not (draft / store.FILE_NAME).exists()


def fixture_prompts(folder: Path) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    return path


def test_it_waits_for_traffic_while_whole_blocks_are_verified(
    server: FakeDsparkServer, draft: Path, gamma: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.record(500)
    policies = []

    def wait(_: float) -> None:
        policies.append(server.policy["policy"])
        server.record(400)

    monkeypatch.setattr(collect.time, "sleep", wait)
    assert command.run(_parse("--url", server.url, "--draft", str(draft), "--rounds", "1500", "--wait", "3600")) == 0
    assert policies == ["static"] * 3
    assert server.policy == POLICY
    made = store.load(draft / store.FILE_NAME, gamma=gamma, draft_sha256=None)
    assert sum(made.data["rounds"]["greedy"].values()) == 1700


def test_a_kind_without_rounds_stays_as_it_is(
    server: FakeDsparkServer, draft: Path, gamma: int, capsys: pytest.CaptureFixture[str]
) -> None:
    server.record(3000)
    command.run(_parse("--url", server.url, "--draft", str(draft)))
    assert store.load(draft / store.FILE_NAME, gamma=gamma, draft_sha256=None).sampled.map.is_identity
    assert "sampled: 0 rounds are too few" in capsys.readouterr().err


def test_a_server_of_its_own_is_started_and_ended(
    server: FakeDsparkServer, draft: Path, gamma: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    @contextlib.contextmanager
    def open_server(arm: ServerArm) -> Iterator[str]:
        assert "some/target" in arm.command
        events.append("start")
        yield server.url
        events.append("end")

    monkeypatch.setattr(arms, "find_pair", lambda _: arms.Pair("some/target", str(draft)))
    monkeypatch.setattr(ServerArm, "open", open_server)
    assert command.run(_parse("--prompts", str(fixture_prompts(draft.parent)), "--held-out", "0.5")) == 0
    assert events == ["start", "end"]
    assert store.load(draft / store.FILE_NAME, gamma=gamma, draft_sha256=None).gamma == gamma


def test_a_server_without_rounds_is_named(server: FakeDsparkServer, draft: Path) -> None:
    with pytest.raises(DataError, match="no round yet.*--prompts"):
        command.run(_parse("--url", server.url, "--draft", str(draft)))


def test_the_wrong_draft_is_refused(draft: Path, gamma: int) -> None:
    with FakeDsparkServer(gamma + 1) as other:
        other.record(1000)
        with pytest.raises(DataError, match=f"drafts {gamma + 1} tokens"):
            command.run(_parse("--url", other.url, "--draft", str(draft)))
    assert not (draft / store.FILE_NAME).exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--url", "http://x"), "needs --draft"),
        (("--url", "http://x", "--draft", "d", "--target", "t"), "leave out --target"),
        (("--held-out", "0"), "--held-out"),
        (("--held-out", "1"), "--held-out"),
        (("--plot", "/no/such/folder/a.png"), "no folder"),
        (("stray",), "after --"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        command.run(_parse(*options))


@pytest.mark.parametrize(
    "options", [("--url", "host"), ("--temperatures", "0,-1"), ("--limit", "0"), ("--method", "x")]
)
def test_values_that_cannot_be_read_are_refused(options: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit):
        _parse(*options)
