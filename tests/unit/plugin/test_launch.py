"""What ``dspark serve`` makes of the user's flags, which worker it asks for, and what it refuses."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from dspark_sglang import launch
from dspark_sglang.command_line import flag_value, pace_flags
from dspark_sglang.commands import serve as command
from dspark_sglang.config import SHORTLIST_VARIABLE
from dspark_sglang.launch import plan_launch
from sgl_dspark.errors import ConfigError, LaunchError

PAIR = ["--model-path", "t", "--speculative-draft-model-path", "d"]


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ([], None),
        (["--port", "5"], "5"),
        (["--port=5"], "5"),
        (["--port="], ""),
        (["--port", "5", "--port=6"], "6"),
        (["--port=6", "--port", "5"], "5"),
        (["--ports", "5", "--port-base=3"], None),
        (["--port"], None),
    ],
)
def test_the_last_value_of_a_flag(arguments: list[str], value: str | None) -> None:
    assert flag_value(arguments, "--port") == value


def test_any_of_several_names() -> None:
    assert flag_value(["--model", "a", "--model-path=b"], "--model-path", "--model") == "b"


def test_a_pair_is_served_with_dspark_and_flags_stay_as_given() -> None:
    given = [*PAIR, "--context-length", "512", "--enable-metrics"]
    plan = plan_launch(given, plain=False, cuda=True)
    assert plan.arguments == [*given, "--speculative-algorithm", "DSPARK"]
    assert plan.speculative
    assert given == [*PAIR, "--context-length", "512", "--enable-metrics"]


def test_without_cuda_the_device_is_the_cpu() -> None:
    assert plan_launch(PAIR, plain=False, cuda=False).arguments[-2:] == ["--device", "cpu"]
    named = plan_launch([*PAIR, "--device=cuda"], plain=False, cuda=False).arguments
    assert flag_value(named, "--device") == "cuda"


def test_running_streams_get_a_step_between_the_chunks_of_a_prompt_unless_told_otherwise() -> None:
    assert pace_flags(PAIR) == ["--prefill-decode-interval", "1"]
    assert pace_flags([*PAIR, "--prefill-decode-interval=0"]) == []


def test_plain_serves_the_target_alone() -> None:
    plan = plan_launch(["--model-path", "t"], plain=True, cuda=True)
    assert plan.arguments == ["--model-path", "t"]
    assert not plan.speculative


@pytest.mark.parametrize("flags", [["--speculative-draft-model-path", "d"], ["--speculative-algorithm", "EAGLE"]])
def test_plain_and_a_draft_contradict_each_other(flags: list[str]) -> None:
    with pytest.raises(ConfigError, match="--plain serves the target alone"):
        plan_launch(["--model-path", "t", *flags], plain=True, cuda=True)


def test_a_target_without_a_draft_is_refused() -> None:
    with pytest.raises(ConfigError, match="no draft for this target: give --speculative-draft-model-path, or --plain"):
        plan_launch(["--model", "organisation/model"], plain=False, cuda=True)


def test_a_mistyped_target_is_named_before_the_draft_that_it_lacks() -> None:
    with pytest.raises(LaunchError, match="there is no model at ./nowhere; check --model-path"):
        plan_launch(["--model-path", "./nowhere"], plain=False, cuda=True)


@pytest.mark.parametrize(("algorithm", "ours"), [("DSPARK", True), ("dspark", True), ("EAGLE", False)])
def test_an_algorithm_that_the_user_names_is_kept(algorithm: str, ours: bool) -> None:
    plan = plan_launch([*PAIR, "--speculative-algorithm", algorithm], plain=False, cuda=True)
    assert plan.arguments == [*PAIR, "--speculative-algorithm", algorithm]
    assert plan.speculative is ours


@pytest.mark.parametrize("spelling", ["--config {}", "--config={}"])
def test_a_configuration_file_counts_as_the_flags_that_it_holds(tmp_path: Path, spelling: str) -> None:
    pytest.importorskip("sglang")
    file = tmp_path / "f.yaml"
    file.write_text("model-path: org/target\nspeculative-draft-model-path: org/draft\nport: 31234\n")
    plan = plan_launch([*spelling.format(file).split(" "), "--port", "5"], plain=False, cuda=False)
    assert flag_value(plan.arguments, "--config") is None
    assert flag_value(plan.arguments, "--speculative-draft-model-path") == "org/draft"
    # What is given on the command line counts.
    assert flag_value(plan.arguments, "--port") == "5"
    assert plan.arguments[-2:] == ["--device", "cpu"]
    assert plan.speculative
    with pytest.raises(ConfigError, match="--plain serves the target alone"):
        plan_launch(["--config", str(file)], plain=True, cuda=False)


def test_a_configuration_file_that_is_not_there_is_named() -> None:
    pytest.importorskip("sglang")
    with pytest.raises(ConfigError, match="--config /nowhere.yaml: "):
        plan_launch(["--config", "/nowhere.yaml"], plain=False, cuda=False)


def test_without_a_model_the_demo_pair_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_demo_target", lambda: Path("demo"))
    plan = plan_launch(["--port", "5"], plain=False, cuda=True)
    assert flag_value(plan.arguments, "--model-path") == "demo"
    assert flag_value(plan.arguments, "--speculative-draft-model-path") == str(launch.DEMO_DRAFT)
    assert plan.speculative
    alone = plan_launch(["--port", "5"], plain=True, cuda=True)
    assert alone.arguments == ["--port", "5", "--model-path", "demo"]


def test_the_demo_of_an_installed_package_is_refused_before_anything_is_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(launch, "DEMO_DRAFT", tmp_path / "site-packages" / "checkpoints")
    monkeypatch.setattr(launch, "_demo_target", lambda: pytest.fail("fetched"))
    with pytest.raises(ConfigError, match="serve from a checkout, or name a pair with --model-path"):
        plan_launch(["--port", "5"], plain=False, cuda=True)
    monkeypatch.setattr(launch, "_demo_target", lambda: Path("demo"))
    assert plan_launch([], plain=True, cuda=True).arguments == ["--model-path", "demo"]


@pytest.mark.parametrize(
    ("flags", "shortlist"),
    [
        ([], launch.DEMO_SHORTLIST),
        (["--model-path", "demo", "--speculative-draft-model-path", "checkpoints/draft"], launch.DEMO_SHORTLIST),
        (["--speculative-draft-model-path=another"], None),
        (["--plain"], None),
    ],
)
def test_the_demo_draft_has_its_shortlist_by_whatever_path(
    flags: list[str], shortlist: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`dspark bench` and load tests name the pair that they start; what they measure is what `dspark serve` serves."""
    draft = tmp_path / "checkpoints" / "draft"
    draft.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "DEMO_DRAFT", draft.resolve())
    monkeypatch.setattr(launch, "_demo_target", lambda: Path("demo"))
    # Set first, so that it is taken back afterwards.
    monkeypatch.setenv(SHORTLIST_VARIABLE, "1")
    del os.environ[SHORTLIST_VARIABLE]
    plain = "--plain" in flags
    plan = plan_launch([flag for flag in flags if flag != "--plain"], plain=plain, cuda=True)
    launch.set_shortlist(plan, None)
    assert os.environ.get(SHORTLIST_VARIABLE) == (None if shortlist is None else str(shortlist))


def test_another_sglang_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "0.5.24")
    with pytest.raises(LaunchError, match=r"SGLang 0.5.24 is installed, .*pip install sglang==0.5.23"):
        launch.check_version()


def test_a_missing_sglang_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(LaunchError, match="SGLang is not installed; run: pip install"):
        launch.check_version()


def test_the_command_takes_every_flag_and_its_own() -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args, rest = parser.parse_known_args(["--plain", "--shortlist", "7", "--mem-fraction-static", "0.5"])
    assert (args.plain, args.shortlist, rest) == (True, 7, ["--mem-fraction-static", "0.5"])
    assert command.PASS_THROUGH


def run_command(*arguments: str) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args, args.rest = parser.parse_known_args(arguments)
    command.run(args)


@pytest.fixture
def keep_signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("keep_signals")
def test_a_negative_shortlist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_demo_target", lambda: Path("demo"))
    with pytest.raises(ConfigError, match="--shortlist must be at least 0, not -1"):
        run_command("--shortlist=-1")


@pytest.mark.usefixtures("keep_signals")
def test_sigterm_is_heard_from_the_first_moment_on(monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    heard = []
    monkeypatch.setattr(launch, "plan_launch", lambda *_, **__: heard.append(signal.getsignal(signal.SIGTERM)) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_command()
    assert callable(heard[0])
    assert heard[0].__module__ == "dspark_sglang.startup_signal"


@pytest.mark.usefixtures("keep_signals")
def test_keys_of_files_are_sglangs_flags(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("-it's $HOME\n")
    planned = []
    monkeypatch.setattr(launch, "plan_launch", lambda arguments, **_: planned.append(arguments) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_command("--api-key-file", str(tmp_path / "a"), "--port=5")
    assert planned == [["--port=5", "--api-key=-it's $HOME"]]


@pytest.mark.parametrize(
    "given", [["--api-key="], ["--admin-api-key", " "], ["--config", "f.yaml"], ["--config", "none.yaml"]]
)
def test_an_empty_key_is_refused(given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sglang")
    (tmp_path / "f.yaml").write_text('api-key: ""\n')
    (tmp_path / "none.yaml").write_text("admin-api-key:\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="api-key is empty, which would serve everybody"):
        plan_launch([*PAIR, *given], plain=False, cuda=True)
