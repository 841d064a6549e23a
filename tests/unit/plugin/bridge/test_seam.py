"""A member of SGLang's DSPARK that has moved is refused by name, whatever about it has changed."""

from __future__ import annotations

import importlib
import inspect

import pytest

pytest.importorskip("sglang")

from sglang.srt.managers import overlap_utils
from sglang.srt.speculative.dspark_components import dspark_planner, dspark_worker_v2

from dspark_sglang import doctor, launch, selection
from dspark_sglang.bridge import seam
from dspark_sglang.bridge.seam import SEAM, Member, check_seam, differences, parameters_of
from sgl_dspark.errors import LaunchError

PLANNER = dspark_planner.DSparkVerifyPlanner


def test_the_installed_sglang_fits() -> None:
    assert list(differences()) == []


@pytest.mark.parametrize("member", [m for m in SEAM if m.takes is not None], ids=lambda m: m.name)
def test_another_parameter_is_refused_with_the_members_name(monkeypatch: pytest.MonkeyPatch, member: Member) -> None:
    owner = importlib.import_module(member.module)
    *path, name = member.name.split(".")
    for part in path:
        owner = getattr(owner, part)

    def moved(self: object, one_more: int) -> None:
        raise AssertionError

    monkeypatch.setattr(owner, name, moved)
    with pytest.raises(LaunchError, match=r"SGL_DSPARK_WORKER=upstream") as error:
        check_seam()
    assert f"{member.name} takes (self, one_more), not ({member.takes})" in str(error.value)


def test_a_default_that_is_gone_is_another_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    def compute_budget(self, *, confidence, generation, current_generation=None, req_pool_indices_cpu):  # type: ignore[no-untyped-def]
        raise AssertionError

    monkeypatch.setattr(dspark_planner.HostConfidenceBudgetPlanner, "compute_budget", compute_budget)
    assert [d for d in differences() if "HostConfidenceBudgetPlanner.compute_budget takes" in d]


def test_code_that_no_longer_asks_for_the_budget_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def _budget_from_resolved(self, *, resolved, req_pool_indices_cpu):  # type: ignore[no-untyped-def]
        return self._plan_on_the_device(resolved.confidence, resolved.generation)

    monkeypatch.setattr(PLANNER, "_budget_from_resolved", _budget_from_resolved)
    with pytest.raises(LaunchError, match="DSparkVerifyPlanner._budget_from_resolved no longer names _budget_planner"):
        check_seam()


def test_what_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(PLANNER, "set_forced_budget_frac")
    monkeypatch.delattr(overlap_utils, "ConfidenceRelay")
    monkeypatch.setattr(overlap_utils, "CONFIDENCE_RELAY_RING_LAG", 3)
    monkeypatch.setattr(dspark_planner, "VerifyBudgetDecision", overlap_utils.ResolvedConfidence)
    found = list(differences())
    assert any(d.endswith("DSparkVerifyPlanner.set_forced_budget_frac is not there") for d in found)
    assert any(d.endswith("ConfidenceRelay.resolve is not there") for d in found)
    assert any(d.endswith("CONFIDENCE_RELAY_RING_LAG is 3, not 2") for d in found)
    assert any(d.endswith("VerifyBudgetDecision has no field budget") for d in found)


def test_a_module_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seam, "SEAM", (Member("sglang.srt.speculative.moved", "DSparkWorkerV2.__init__"),))
    with pytest.raises(LaunchError, match=r"sglang.srt.speculative.moved.DSparkWorkerV2.__init__ cannot be imported"):
        check_seam()


@pytest.mark.parametrize("function", [lambda a, b=1, *c, d, e=2, **f: None])
def test_parameters_are_written_by_name_kind_and_default(function: object) -> None:
    assert parameters_of(function) == "a, b=, *c, d, e=, **f"  # type: ignore[arg-type]


def test_whoever_uses_a_member_of_sglangs_dspark_has_it_in_the_seam() -> None:
    """What the bridge overrides of the worker, it has declared."""
    from dspark_sglang.bridge.worker import BridgeWorker

    own = {name for name, member in vars(BridgeWorker).items() if inspect.isfunction(member)}
    overridden = {name for name in own if hasattr(dspark_worker_v2.DSparkWorkerV2, name)}
    declared = {m.name.split(".")[1] for m in SEAM if m.name.startswith("DSparkWorkerV2.")}
    assert {"__init__", "forward_batch_generation"} <= overridden <= declared


def test_a_server_that_would_not_fit_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(selection.WORKER_VARIABLE, "bridge")
    monkeypatch.delattr(PLANNER, "set_forced_budget_frac")
    with pytest.raises(LaunchError, match="set_forced_budget_frac is not there"):
        launch.check_plugin()


def test_sglang_builds_the_bridged_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    from dspark_sglang.bridge.worker import BridgeWorker

    monkeypatch.setenv(selection.WORKER_VARIABLE, "bridge")
    launch.check_plugin()
    assert selection.worker_class("DSPARK") is BridgeWorker
    assert selection.worker_class("EAGLE") is None


@pytest.mark.parametrize(
    ("choice", "state"), [("ours", "note"), ("upstream", "note"), ("bridge", "missing")], ids=lambda v: v
)
def test_the_doctor_tells_of_a_seam_that_has_moved(monkeypatch: pytest.MonkeyPatch, choice: str, state: str) -> None:
    """It matters to whoever asks for bridge mode, and is worth a line to everybody else."""
    monkeypatch.setenv(selection.WORKER_VARIABLE, choice)
    (sound,) = doctor.seam_findings()
    assert (sound.state.value, sound.detail) == ("ok", f"{len(SEAM)} members of SGLang's DSPARK are as expected")
    monkeypatch.delattr(PLANNER, "set_forced_budget_frac")
    (moved,) = doctor.seam_findings()
    assert moved.state.value == state
    assert "set_forced_budget_frac is not there" in moved.detail
