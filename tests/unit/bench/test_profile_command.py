"""``dspark profile`` with a server of its own: how it is started, and what it says where there are no step times."""

from __future__ import annotations

import contextlib
from argparse import ArgumentParser
from collections.abc import Iterator

import pytest

from dspark_sglang.bench import arms
from dspark_sglang.calibrate.source import ServerError
from dspark_sglang.commands import profile as command
from sgl_dspark.server_process import ServerArm
from tests.support.fake_dspark_server import FakeDsparkServer


def test_a_server_of_its_own_measures_anew_with_the_users_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[ServerArm] = []

    @contextlib.contextmanager
    def open_server(arm: ServerArm) -> Iterator[str]:
        started.append(arm)
        with FakeDsparkServer(3) as server:
            yield server.url

    monkeypatch.setattr(arms, "find_pair", lambda _: arms.Pair("some/target", "some/draft"))
    monkeypatch.setattr(ServerArm, "open", open_server)
    parser = ArgumentParser(allow_abbrev=False)
    command.add_arguments(parser)
    given = ["--startup-timeout", "7", "--", "--dtype", "float32", "--step-time-profile", "elsewhere.json"]
    with pytest.raises(ServerError, match="no step times"):
        command.run(parser.parse_args(given))
    (arm,) = started
    assert arm.startup_s == 7
    flags = list(arm.command)[list(arm.command).index("serve") :]
    pair = ["serve", "--model-path", "some/target", "--speculative-draft-model-path", "some/draft"]
    assert flags == [*pair, "--step-time-profile", "off", "--dtype", "float32"]
