"""Policies as arms of the benchmark: what is switched and counted, in which order, and what is reported."""

from __future__ import annotations

import contextlib
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dspark_sglang.bench import BenchError, arms
from dspark_sglang.bench.policies import difference, mean_verify_len, read_counts
from dspark_sglang.bench.policy_report import policy_rows, summarise_policies
from dspark_sglang.bench.session import Run
from dspark_sglang.commands import bench as command
from sgl_dspark.comparison import Policy, parse_policies, rotated
from sgl_dspark.server_process import UrlArm
from tests.support.fake_chat_server import DETAILS, FakeChatServer
from tests.unit.bench.test_report import _run as plain_run


def _parse(*options: str) -> Namespace:
    parser = ArgumentParser(allow_abbrev=False)
    command.add_arguments(parser)
    return parser.parse_args(options)


class OwnArm(UrlArm):
    """A scripted server in the place of one that the benchmark starts."""

    @contextlib.contextmanager
    def open(self) -> Iterator[str]:
        yield self.url


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeChatServer, FakeChatServer]]:
    with FakeChatServer() as plain, FakeChatServer(details=DETAILS, policies=True) as dspark:
        made = [OwnArm(name, server.url, True) for name, server in (("plain", plain), ("dspark", dspark))]
        monkeypatch.setattr(arms, "find_pair", lambda _: arms.Pair("some/target", "some/draft"))
        monkeypatch.setattr(arms, "server_arms", lambda *_, **__: made)
        yield plain, dspark


def _bench(file: Path, *options: str) -> dict[str, Any]:
    small = ("--concurrency", "1,2", "--waves", "2", "--requests", "2", "--json", str(file))
    assert command.run(_parse(*small, *options)) == 0
    return json.loads(file.read_text())


def test_a_list_of_policies_becomes_what_the_server_is_sent() -> None:
    assert parse_policies("adaptive, static:3,threshold:0.5,early-stop,static:0") == [
        Policy("adaptive", {"policy": "adaptive"}),
        Policy("static:3", {"policy": "static", "verify_drafts": 3}),
        Policy("threshold:0.5", {"policy": "threshold", "threshold": 0.5}),
        Policy("early-stop", {"policy": "early-stop"}),
        Policy("static:0", {"policy": "static", "verify_drafts": 0}),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fast", "'fast' is no policy; there are: adaptive, early-stop, static, threshold"),
        ("", "'' is no policy"),
        ("static", "'static' lacks its number; write static:3"),
        ("static:1.5", "lacks its number"),
        ("threshold:x", "write threshold:0.5"),
        ("adaptive:3", "'adaptive' takes no value"),
        ("static:3,static:3", "'static:3' comes twice"),
    ],
)
def test_what_is_no_policy_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_policies(text)
    with pytest.raises(SystemExit):
        _parse("--policies", text)


def test_every_policy_is_first_in_turn() -> None:
    policies = parse_policies("adaptive,static:1,static:3")
    assert [[p.name for p in rotated(policies, r)][0] for r in range(4)] == [
        "adaptive",
        "static:1",
        "static:3",
        "adaptive",
    ]
    assert {frozenset(p.name for p in rotated(policies, r)) for r in range(3)} == {frozenset(p.name for p in policies)}


def test_policies_share_a_server_and_are_switched_warmed_up_and_counted(
    servers: tuple[FakeChatServer, FakeChatServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, dspark = servers
    plot = ("--plot", str(tmp_path / "sweep.svg"))
    result = _bench(tmp_path / "r.json", "--policies", "adaptive,static:1,static:5", "--rounds", "2", *plot)
    assert (tmp_path / "sweep.svg").read_text().count("</svg>") == 1
    assert "policy" not in " ".join(plain.calls)
    # At concurrency 1: one answer to settle, two that are measured.
    assert dspark.calls[:7] == ["policy adaptive", "chat", "state", "flush", "chat", "chat", "state"]
    assert [(r["turn"], r["round"], r["arm"], r["concurrency"]) for r in result["runs"]] == [
        *[(0, 0, "plain", level) for level in (1, 2)],
        *[(1, 0, name, level) for level in (1, 2) for name in ("adaptive", "static:1", "static:5")],
        *[(2, 1, name, level) for level in (1, 2) for name in ("static:1", "static:5", "adaptive")],
        *[(3, 1, "plain", level) for level in (1, 2)],
    ]
    adaptive = result["runs"][2]
    assert adaptive["counts"] == {
        **{"rounds": 4, "verify_tokens": 12, "steps": 4, "plain_steps": 0},
        "fallbacks.stale": 0,
    }
    assert "counts" not in result["runs"][0]
    level = result["summary"][1]
    lengths = {name: level["arms"][name]["mean_verify_len"] for name in result["arms"]}
    assert {name: found and found["median"] for name, found in lengths.items()} == {
        "plain": None,
        "adaptive": 3.0,
        "static:1": 2.0,
        "static:5": 6.0,
    }
    assert level["adaptive"]["best_other"] in ("plain", "static:1", "static:5")
    assert result["settings"]["policies"]["static:5"] == {"policy": "static", "verify_drafts": 5}
    output = capsys.readouterr()
    assert "adaptive / best other" in output.out
    assert "round 2 of 2, static:5, concurrency 2" in output.err


def test_a_server_at_a_url_is_switched_and_the_first_policy_is_the_baseline(tmp_path: Path) -> None:
    with FakeChatServer(details=DETAILS, policies=True) as server:
        options = ("--url", f"mine={server.url}", "--policies", "static:2,static:4", "--rounds", "1")
        result = _bench(tmp_path / "r.json", *options)
    assert result["arms"] == ["static:2", "static:4"]
    assert list(result["summary"][0]["ratios"]) == ["static:4"]
    assert "adaptive" not in result["summary"][0]
    # Both answer the same prompts, so neither may find them in the cache.
    assert server.calls.count("flush") == 4


def test_the_plain_server_can_be_left_out(servers: tuple[FakeChatServer, FakeChatServer], tmp_path: Path) -> None:
    result = _bench(tmp_path / "r.json", "--policies", "static:2,adaptive", "--no-plain", "--rounds", "1")
    assert result["arms"] == ["static:2", "adaptive"]
    assert servers[0].calls == []
    assert list(result["servers"]) == ["dspark"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--no-plain"], "give --policies as well"),
        (["--plot", "sweep.bmp"], "--plot writes .png"),
        (["--plot", "/nowhere/sweep.png"], "there is no folder /nowhere for --plot"),
        (["--policies", "adaptive", "--url", "a=http://x", "--url", "b=http://y"], "give one --url besides plain=URL"),
        (["--policies", "adaptive", "--url", "plain=http://x"], "give one --url besides plain=URL"),
    ],
)
def test_options_that_do_not_fit(options: list[str], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        command.run(_parse(*options))


def test_what_the_server_refuses_is_reported(servers: tuple[FakeChatServer, FakeChatServer], tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="answered 400: .*verify_drafts is at most 7"):
        _bench(tmp_path / "r.json", "--policies", "static:8")
    with FakeChatServer() as old, pytest.raises(BenchError, match="/dspark/state answered 404"):
        read_counts(old.url)


def test_counts_begin_at_zero_and_may_be_absent() -> None:
    assert difference({"rounds": 3}, {"rounds": 5, "fallbacks.new": 2}) == {"rounds": 2, "fallbacks.new": 2}
    assert mean_verify_len({"rounds": 4, "verify_tokens": 10}) == 2.5
    for counts in (None, {}, {"rounds": 0, "verify_tokens": 0}, {"rounds": 2}):
        assert mean_verify_len(counts) is None


def _policy_run(round_: int, arm: str, seconds: float, verify_tokens: int) -> Run:
    run, counts = plain_run(round_, arm, seconds), {"rounds": 10, "verify_tokens": verify_tokens}
    counts |= {"steps": 8, "plain_steps": 2 if arm == "adaptive" else 0}
    return Run(run.round, run.turn, arm, run.concurrency, 0.0, run.results, counts)


def test_adaptive_is_compared_with_the_best_other_of_the_same_round() -> None:
    names = ["plain", "adaptive", "static:3"]
    runs = [plain_run(0, "plain", 6.0), plain_run(1, "plain", 6.0)]
    runs += [_policy_run(0, "adaptive", 2.0, 35), _policy_run(1, "adaptive", 2.5, 45)]
    runs += [_policy_run(0, "static:3", 4.0, 40), _policy_run(1, "static:3", 2.5, 40)]
    (level,) = summarise_policies(runs, names)
    assert level["adaptive"]["best_other"] == "static:3"
    assert level["adaptive"]["ratio"].values == pytest.approx((2.0, 1.0))
    assert level["arms"]["adaptive"]["mean_verify_len"].values == (3.5, 4.5)
    # 11 tokens in 2 and 2.5 s: 5.5 and 4.4 a second, median 4.95.
    assert level["arms"]["adaptive"]["relative_spread"] == pytest.approx(1.1 / 4.95)
    table = policy_rows([level], names, same_text=True)
    assert table[0] == [
        *("concurrency", "arm", "tok/s", "tok/s/user", "verify length", "accept length"),
        *("plain steps", "spread", "x plain"),
        "same text",
    ]
    assert table[2][1:3] + table[2][4:8] == ["adaptive", "5.0 (4.4-5.5)", "4.00 (3.50-4.50)", "", "25%", "22%"]
    assert table[2][8:] == ["2.70x (2.40-3.00)", "2/2"]
    assert table[4][1:3] == ["adaptive / best other (static:3)", "1.50x (1.00-2.00)"]
    assert len({len(row) for row in table}) == 1
