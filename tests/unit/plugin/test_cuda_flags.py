"""On CUDA our attention backend is the default; whoever chose something keeps it."""

from __future__ import annotations

import pytest

from dspark_sglang.cuda_flags import for_cuda
from dspark_sglang.launch import LaunchPlan

PAIR = ["--model-path", "target", "--speculative-draft-model-path", "draft"]
GRAPHS_OFF = ["--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"]


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ([], ["--attention-backend", "dspark_cuda", *GRAPHS_OFF]),
        (["--attention-backend", "flashinfer"], []),
        (["--decode-attention-backend=fa3"], []),
        (["--disable-cuda-graph"], ["--attention-backend", "dspark_cuda"]),
    ],
)
def test_flags_that_are_added(given: list[str], added: list[str]) -> None:
    plan = for_cuda(LaunchPlan([*PAIR, *given], speculative=True))
    assert plan.arguments == [*PAIR, *given, *added]


def test_nothing_is_added_without_our_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = LaunchPlan(PAIR, speculative=False)
    assert for_cuda(plan) is plan
    monkeypatch.setenv("SGL_DSPARK_WORKER", "upstream")
    plan = LaunchPlan(PAIR, speculative=True)
    assert for_cuda(plan) is plan


def test_the_added_flags_are_flags_of_sglang() -> None:
    server_args = pytest.importorskip("sglang.srt.server_args")
    import argparse

    parser = argparse.ArgumentParser()
    server_args.ServerArgs.add_cli_args(parser)
    known = parser._option_string_actions
    for flag in ("--attention-backend", *GRAPHS_OFF[::2]):
        assert flag in known
    choices = known["--cuda-graph-backend-decode"].choices
    assert choices is None or "disabled" in choices
