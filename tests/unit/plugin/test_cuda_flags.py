"""On CUDA our attention backend is the default; whoever chose something keeps it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dspark_sglang.cuda_flags import for_cuda
from dspark_sglang.launch import LaunchPlan, plan_launch

PAIR = ["--model-path", "target", "--speculative-draft-model-path", "draft"]
SAMPLER = ["--sampling-backend", "pytorch"]
GRAPHS_OFF = ["--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"]


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ([], [*SAMPLER, "--attention-backend", "dspark_cuda", *GRAPHS_OFF]),
        (["--attention-backend", "flashinfer"], SAMPLER),
        (["--decode-attention-backend=fa3"], SAMPLER),
        (["--disable-cuda-graph"], [*SAMPLER, "--attention-backend", "dspark_cuda"]),
        (["--sampling-backend=flashinfer"], ["--attention-backend", "dspark_cuda", *GRAPHS_OFF]),
    ],
)
def test_flags_that_are_added(given: list[str], added: list[str]) -> None:
    asked = [*PAIR, "--speculative-algorithm", "DSPARK", *given]
    assert for_cuda(LaunchPlan(asked, speculative=True)).arguments == [*asked, *added]


def test_the_target_alone_answers_by_the_same_law() -> None:
    """As the plain arm of a comparison is started: `dspark serve --plain`."""
    plan = plan_launch(["--model-path", "target"], plain=True, cuda=True)
    assert for_cuda(plan).arguments == [*plan.arguments, *SAMPLER]
    chosen = plan_launch(["--model-path", "target", "--sampling-backend", "flashinfer"], plain=True, cuda=True)
    assert for_cuda(chosen) is chosen


def test_nothing_is_added_without_our_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = LaunchPlan(["--model-path", "target", "--speculative-algorithm", "EAGLE"], speculative=False)
    assert for_cuda(plan) is plan
    for other in ("upstream", "bridge"):
        monkeypatch.setenv("SGL_DSPARK_WORKER", other)
        plan = LaunchPlan([*PAIR, "--speculative-algorithm", "DSPARK"], speculative=True)
        assert for_cuda(plan) is plan


def test_sglang_keeps_the_sampler_that_is_set_and_would_otherwise_choose_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a machine with FlashInfer, as SGLang resolves the flag."""
    overrides = pytest.importorskip("sglang.srt.arg_groups.overrides")
    monkeypatch.setattr(overrides, "get_platform", lambda: SimpleNamespace(has_flashinfer=True))
    for given, found in (("pytorch", {}), (None, {"sampling_backend": "flashinfer"})):
        assert overrides._sampling_backend_default(SimpleNamespace(sampling_backend=given)) == found


def test_the_added_flags_are_flags_of_sglang() -> None:
    server_args = pytest.importorskip("sglang.srt.server_args")
    import argparse

    parser = argparse.ArgumentParser()
    server_args.ServerArgs.add_cli_args(parser)
    known = parser._option_string_actions
    for flag in ("--attention-backend", *GRAPHS_OFF[::2], SAMPLER[0]):
        assert flag in known
    assert SAMPLER[1] in known[SAMPLER[0]].choices
    choices = known["--cuda-graph-backend-decode"].choices
    assert choices is None or "disabled" in choices
