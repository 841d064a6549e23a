"""The whole command against scripted servers: order, what is reported, Ctrl-C, SIGTERM and failures."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dspark_sglang.bench import BenchError, arms, main
from dspark_sglang.commands import bench as command
from sgl_dspark.errors import DsparkError
from tests.support.fake_chat_server import DETAILS, FakeChatServer


@dataclass
class FakeArm:
    """A scripted server under the benchmark's care; notes when it is opened and closed."""

    name: str
    server: FakeChatServer
    events: list[str]
    ours: bool = True

    @contextlib.contextmanager
    def open(self) -> Iterator[str]:
        """Yield the scripted server's URL."""
        self.events.append(f"+{self.name}")
        try:
            yield self.server.url
        finally:
            self.events.append(f"-{self.name}")


@dataclass
class Bench:
    """Two scripted arms, and the command on them."""

    plain: FakeChatServer
    dspark: FakeChatServer
    json: Path
    events: list[str] = field(default_factory=list)

    def run(self, *options: str) -> int:
        """Run the command; the concurrency is 1 and 2 unless given."""
        return command.run(
            _parse("--concurrency", "1,2", "--waves", "2", "--requests", "2", "--json", str(self.json), *options)
        )

    def result(self) -> dict[str, Any]:
        """Read the JSON that it wrote."""
        return json.loads(self.json.read_text())


def _parse(*options: str) -> Namespace:
    parser = ArgumentParser(allow_abbrev=False)
    command.add_arguments(parser)
    return parser.parse_args(options)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Put scripted servers in the place of ours."""
    with FakeChatServer() as plain, FakeChatServer(details=DETAILS) as dspark:
        made = Bench(plain, dspark, tmp_path / "result.json")
        fakes = [FakeArm("plain", plain, made.events), FakeArm("dspark", dspark, made.events)]
        monkeypatch.setattr(arms, "find_pair", lambda _: arms.Pair("some/target", "some/draft"))
        monkeypatch.setattr(arms, "server_arms", lambda *_, **__: fakes)
        yield made


def test_arms_alternate_and_everything_is_reported(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run("--rounds", "3") == 0
    assert bench.events == [
        "+plain",
        "-plain",
        *["+dspark", "-dspark"] * 2,
        *["+plain", "-plain"] * 2,
        "+dspark",
        "-dspark",
    ]
    result = bench.result()
    assert result["complete"] is True
    assert [(r["turn"], r["round"], r["arm"], r["concurrency"]) for r in result["runs"]] == [
        (turn, turn // 2, arm, level)
        for turn, arm in enumerate(["plain", "dspark", "dspark", "plain", "plain", "dspark"])
        for level in (1, 2)
    ]
    assert [len(r["requests"]) for r in result["runs"]] == [2, 4] * 6
    assert result["summary"][0]["arms"]["dspark"]["mean_accept_len"]["median"] == 2.5
    assert result["models"]["draft"] == {"name": "draft", "path": "some/draft", "sha256": None}
    output = capsys.readouterr()
    assert "dspark / plain" in output.out
    assert "12/12" in output.out
    assert "round 2 of 3, dspark, concurrency 2" in output.err


def test_both_arms_are_asked_the_same(bench: Bench) -> None:
    assert bench.run("--rounds", "1", "--ignore-eos", "--temperature", "0.7", "--max-tokens", "32") == 0
    # Two workers' requests may arrive in either order.
    plain, dspark = (sorted(server.bodies, key=str) for server in (bench.plain, bench.dspark))
    assert plain == dspark
    assert bench.plain.calls == ["chat", "flush", *["chat"] * 2, *["chat"] * 2, "flush", *["chat"] * 4]


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN], ids=["foreground", "background"])
def shell_job(request: pytest.FixtureRequest) -> Iterator[None]:
    """Stand for how a shell starts a job: one in the background has SIGINT ignored."""
    before = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("shell_job")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruption_ends_the_server_and_prints_what_was_measured(
    bench: Bench, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    def interrupt_and_never_answer(*_: object) -> object:
        os.kill(os.getpid(), number)
        return asyncio.Event().wait()

    before = signal.getsignal(signal.SIGTERM)
    bench.dspark.on_request = interrupt_and_never_answer
    assert bench.run() == 130
    assert bench.events == ["+plain", "-plain", "+dspark", "-dspark"]
    assert signal.getsignal(signal.SIGTERM) is before
    result = bench.result()
    assert result["complete"] is False
    assert [(r["arm"], r["concurrency"]) for r in result["runs"]] == [("plain", 1), ("plain", 2)]
    output = capsys.readouterr()
    assert "2 rounds asked for, not completed" in output.out
    assert "interrupted" in output.err


def test_a_failure_is_raised_after_what_was_measured(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.dspark.status = 400
    with pytest.raises(BenchError, match="answered 400: top_k is refused"):
        bench.run()
    assert bench.events == ["+plain", "-plain", "+dspark", "-dspark"]
    assert len(bench.result()["runs"]) == 2
    assert "plain" in capsys.readouterr().out


def test_servers_at_urls_are_not_flushed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    with FakeChatServer() as a, FakeChatServer(details=DETAILS) as b:
        urls = ["--url", f"a={a.url}/v1/", "--url", f"b={b.url}"]
        options = ["--concurrency", "1", "--requests", "2", "--rounds", "2", "--json", str(file), "--markdown"]
        assert command.run(_parse(*urls, *options)) == 0
    assert "flush" not in a.calls + b.calls
    assert json.loads(file.read_text())["servers"]["a"] == {"url": a.url}
    assert "| b / a |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--json", "/nowhere/at/all.json"], "there is no folder /nowhere/at for --json"),
        (["--logs", "/nowhere"], "there is no folder /nowhere for --logs"),
        (["--url", "a=http://x", "--draft", "d"], "leave out --target, --draft"),
        (["--url", "http://x"], "--url takes NAME=URL"),
        (["--url", "a=http://x", "--url", "a=http://y"], "names 'a' twice"),
        (["stray"], "unexpected argument 'stray'"),
        (["--target", "t"], "give --draft"),
        (["--draft", "d"], "give --target"),
        (["--", "--port", "1"], "leave out --port"),
        (["--", "--config=c"], "--config is not supported"),
        (["--pin", "x"], "--pin takes"),
    ],
)
def test_options_that_do_not_fit(options: list[str], message: str) -> None:
    with pytest.raises(DsparkError, match=message):
        command.run(_parse(*options))


@pytest.mark.parametrize(
    "options", [["--rounds", "0"], ["--concurrency", "1,x"], ["--temperature", "-1"], ["--body", "[]"]]
)
def test_values_that_cannot_be(options: list[str]) -> None:
    with pytest.raises(SystemExit):
        _parse(*options)


def test_levels_are_sorted_and_single() -> None:
    assert _parse("--concurrency", "16,1,4,1").concurrency == [1, 4, 16]


def test_logs_are_kept_only_when_they_are_needed(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "logs"

    def make(prefix: str) -> str:
        folder.mkdir()
        (folder / "plain-1.log").write_text("x")
        return str(folder)

    monkeypatch.setattr(main.tempfile, "mkdtemp", make)
    assert bench.run("--rounds", "1") == 0
    assert not folder.exists()
    bench.plain.status = 400
    with pytest.raises(BenchError):
        bench.run("--rounds", "1")
    assert folder.exists()
