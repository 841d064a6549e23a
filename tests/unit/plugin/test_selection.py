"""Which worker runs under the name DSPARK, and that SGLang would really build ours."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from dspark_sglang import selection
from dspark_sglang.config import SHORTLIST_VARIABLE, WorkerConfig, shortlist_from_environment
from sgl_dspark.errors import ConfigError, LaunchError


@pytest.mark.parametrize(
    ("value", "choice"),
    [(None, "ours"), ("", "ours"), (" OURS ", "ours"), ("Upstream", "upstream"), ("bridge", "bridge")],
)
def test_worker_choice(monkeypatch: pytest.MonkeyPatch, value: str | None, choice: str) -> None:
    monkeypatch.delenv(selection.WORKER_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(selection.WORKER_VARIABLE, value)
    assert selection.worker_choice() == choice


def test_an_unknown_worker_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(selection.WORKER_VARIABLE, "theirs")
    with pytest.raises(ConfigError, match="SGL_DSPARK_WORKER must be 'ours', 'bridge' or 'upstream', not 'theirs'"):
        selection.worker_choice()


def test_only_dspark_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sglang")
    from dspark_sglang.worker import DsparkWorker

    monkeypatch.delenv(selection.WORKER_VARIABLE, raising=False)
    assert selection.worker_class("DSPARK") is DsparkWorker
    assert selection.worker_class("dspark") is DsparkWorker
    assert selection.worker_class("EAGLE") is None
    monkeypatch.setenv(selection.WORKER_VARIABLE, "upstream")
    assert selection.worker_class("DSPARK") is None


def test_sglang_builds_our_worker_and_takes_every_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sglang")
    from dspark_sglang import launch, plugin

    monkeypatch.delenv(selection.WORKER_VARIABLE, raising=False)
    launch.check_plugin()
    assert plugin.RECORD.registered
    assert plugin.missing_hooks() == []


def test_a_hook_that_did_not_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sglang")
    from dspark_sglang import launch, plugin

    monkeypatch.setattr(plugin, "missing_hooks", lambda: ["sglang.x"])
    with pytest.raises(LaunchError, match="SGLang did not take the hook on sglang.x; run dspark doctor"):
        launch.check_plugin()


def test_another_worker_in_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sglang")
    from dspark_sglang import launch

    launch.check_plugin()
    monkeypatch.setattr(selection, "worker_class", lambda algorithm: SimpleNamespace)
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    class Stock:
        pass

    monkeypatch.setattr(SpeculativeAlgorithm, "create_worker", lambda self, server_args: Stock)
    with pytest.raises(LaunchError, match=r"DSPARK would build .*Stock instead of our worker"):
        launch.check_plugin()


@pytest.mark.parametrize(
    ("text", "size"), [(None, None), ("", None), ("0", None), (" 12 ", 12), ("1", 1), ("000", None)]
)
def test_shortlist_variable(monkeypatch: pytest.MonkeyPatch, text: str | None, size: int | None) -> None:
    monkeypatch.delenv(SHORTLIST_VARIABLE, raising=False)
    if text is not None:
        monkeypatch.setenv(SHORTLIST_VARIABLE, text)
    assert shortlist_from_environment() == size


@pytest.mark.parametrize("text", ["-1", "3.5", "many"])
def test_an_unusable_shortlist_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(SHORTLIST_VARIABLE, text)
    with pytest.raises(ConfigError, match=f"SGL_DSPARK_SHORTLIST must be a whole number .*not '{text}'"):
        shortlist_from_environment()


@pytest.mark.parametrize("given", [True, False])
def test_worker_config_needs_a_draft(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: bool) -> None:
    pytest.importorskip("sglang")
    from sglang.srt import runtime_context

    monkeypatch.setenv(SHORTLIST_VARIABLE, "8")
    spec = SimpleNamespace(
        speculative_draft_model_path=str(tmp_path) if given else None,
        speculative_draft_model_revision=None,
        speculative_num_draft_tokens=8,
    )
    monkeypatch.setattr(runtime_context, "get_spec", lambda: spec)
    if given:
        assert WorkerConfig.from_server(None) == WorkerConfig(str(tmp_path), 8, 8)
    else:
        with pytest.raises(ConfigError, match="--speculative-draft-model-path"):
            WorkerConfig.from_server(None)
