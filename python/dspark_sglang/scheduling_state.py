"""What a scheduler shows, and how its steps are counted: at once, or where the device ranks, with the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dspark_sglang import policy_codec

if TYPE_CHECKING:
    from dspark_sglang.ledger import Ledger
    from dspark_sglang.metrics.recorder import Recorder
    from dspark_sglang.scheduling import VerifyScheduler
    from dspark_sglang.step import Step


def describe(scheduler: VerifyScheduler) -> dict[str, Any]:
    """Return what ``GET /dspark/state`` shows of a scheduler besides rounds, as JSON values."""
    probes, planner, ledger = scheduler.allocator.probes, scheduler.planner, scheduler.ledger
    knowledge = scheduler.knowledge
    return {
        "policy": policy_codec.shown(planner.config),
        "model": {"gamma": scheduler.gamma, "ragged": scheduler.ragged, **knowledge.identity},
        **knowledge.state(),
        **ledger.state(),
        "planner": dict(planner.totals),
        "fallbacks": dict(sorted({**planner.fallbacks, **ledger.fallbacks}.items())),
        "probes": {"full_length": probes.probes, "extra_tokens": probes.extra_tokens, "share": probes.share},
    }


def report_launch(step: Step, ledger: Ledger, recorder: Recorder | None) -> None:
    """Count a step whose lengths are known."""
    ledger.decided(step)
    if recorder is not None:
        recorder.decided(step)


def report_time(step: Step, ledger: Ledger, recorder: Recorder | None) -> None:
    """Count what such a step took, if that is known too."""
    if step.took is not None:
        ledger.timed(step, *step.took)
        if recorder is not None:
            recorder.timed(step, *step.took)
