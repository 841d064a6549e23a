"""Which servers are compared, on which cores, with which flags."""

from __future__ import annotations

import hashlib
from argparse import ArgumentParser, Namespace
from pathlib import Path

import pytest

from dspark_sglang import launch
from dspark_sglang.bench import arms
from dspark_sglang.bench.arms import Pair, find_pair, server_arms
from dspark_sglang.commands import serve
from sgl_dspark.comparison import without_flags
from sgl_dspark.cores import Cores, model_threads, plan_cores
from sgl_dspark.errors import ConfigError, DsparkError
from sgl_dspark.server_process import ServerArm

FOUR = frozenset(range(4))


def _args(*flags: str, target: str | None = None, draft: str | None = None) -> Namespace:
    return Namespace(target=target, draft=draft, server_flags=list(flags))


def _commands(*flags: str, metrics_overhead: bool = False) -> dict[str, list[str]]:
    cores = Cores(None, None, "test")
    made = server_arms(flags, Pair("t", "d"), cores, Path(), startup_s=5, metrics_overhead=metrics_overhead)
    return {arm.name: list(arm.command)[3:] for arm in made if isinstance(arm, ServerArm)}


def test_what_metrics_cost_is_measured_on_servers_that_differ_in_them_alone() -> None:
    found = _commands("--dtype", "float32", "--policy", "static", metrics_overhead=True)
    assert list(found) == ["no metrics", "dspark"]
    assert found["no metrics"] == [*found["dspark"], "--no-metrics"]


def test_the_servers_differ_in_the_draft_alone() -> None:
    assert _commands("--dtype", "float32", "--enable-metrics") == {
        "plain": ["serve", "--plain", "--model-path", "t", "--dtype", "float32", "--enable-metrics"],
        "dspark": [
            *("serve", "--model-path", "t", "--speculative-draft-model-path", "d"),
            *("--dtype", "float32", "--enable-metrics"),
        ],
    }


def test_flags_of_speculation_go_to_one_server() -> None:
    flags = ["--speculative-num-steps=3", "--shortlist", "64", "--model-path", "x", "--dtype", "bfloat16"]
    commands = _commands(*flags)
    assert commands["plain"] == ["serve", "--plain", "--model-path", "t", "--dtype", "bfloat16"]
    assert commands["dspark"][5:] == ["--speculative-num-steps=3", "--shortlist", "64", "--dtype", "bfloat16"]


def test_no_option_of_serve_that_speculation_needs_reaches_the_plain_server() -> None:
    parser = ArgumentParser()
    serve.add_arguments(parser)
    # Both servers take what is about metrics and HTTP.
    common = {"-h", "--plain", "--no-metrics", "--sla", "--max-body-mib", "--drain-timeout", "--cors-origins"}
    common |= {"--any-model", "--api-key-file", "--admin-api-key-file"}
    options = [a.option_strings[0] for a in parser._actions if a.option_strings[0] not in common]
    assert {"--shortlist", "--policy", "--no-online"} <= set(options)
    flags = [text for option in options for text in (option, "1")]
    assert _commands(*flags)["plain"] == ["serve", "--plain", "--model-path", "t"]


def test_flags_are_left_out_with_all_their_values() -> None:
    assert without_flags(["--a", "1", "2", "--b-c=3", "--d", "--b"], ("--a", "--b-")) == ["--d", "--b"]


def test_threads_are_one_unless_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert model_threads() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert model_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "all")
    with pytest.raises(ConfigError, match="OMP_NUM_THREADS must be a positive number, not 'all'"):
        model_threads()


def test_the_pair_is_given_in_either_way_or_the_demo_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arms.preflight, "check_target", lambda _: None)
    monkeypatch.setattr(arms, "demo_target", lambda: "demo")
    flags = ["--model-path", "t", "--speculative-draft-model-path=d"]
    assert find_pair(_args(*flags)) == Pair("t", "d")
    assert find_pair(_args(*flags, target="u", draft="e")) == Pair("u", "e")
    assert find_pair(_args()) == Pair("demo", str(launch.DEMO_DRAFT))


def test_a_missing_folder_is_told_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(DsparkError, match="no model at"):
        find_pair(_args(target=str(tmp_path / "none"), draft="d/e"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DsparkError, match="no draft at"):
        find_pair(_args(target=str(tmp_path), draft=str(tmp_path / "none")))


def test_a_draft_is_known_by_the_hash_of_its_weights(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    described = Pair("org/name", str(tmp_path)).describe()
    assert described["draft"]["sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert described["target"]["name"] == "name"


@pytest.mark.parametrize(
    ("choice", "usable", "threads", "gpu", "text"),
    [
        ("auto", {0, 1}, 1, False, "server on core 0, client on core 1"),
        ("auto", {2, 3, 5, 7}, 2, False, "server on core 2-3, client on core 7"),
        ("auto", FOUR, 8, False, "server on core 0-2, client on core 3"),
        ("auto", FOUR, 1, True, "server on core 0-2, client on core 3"),
        ("auto", {0}, 1, False, "not pinned (only one core is usable)"),
        ("auto", set(), 1, False, "not pinned (this system does not support it)"),
        ("none", FOUR, 1, False, "not pinned (--pin none)"),
        ("0-1,3:2", FOUR, 1, False, "server on core 0-1,3, client on core 2"),
    ],
)
def test_cores(choice: str, usable: set[int], threads: int, gpu: bool, text: str) -> None:
    assert str(plan_cores(choice, frozenset(usable), threads=threads, gpu=gpu)) == text


@pytest.mark.parametrize(("choice", "message"), [("0", "takes auto"), ("0:a", "'a' is not"), ("0:7", "core 7 is not")])
def test_cores_that_cannot_be(choice: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_cores(choice, FOUR, threads=1, gpu=False)
