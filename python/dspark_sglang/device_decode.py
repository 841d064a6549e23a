"""One decode step whose drafts are ranked on the device: what `worker.DsparkWorker` does, without the host between.

Shape legend: R requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dspark_sglang.running import Running

if TYPE_CHECKING:
    from collections.abc import Callable

    from sglang.srt.managers.schedule_batch import ScheduleBatch

    from dspark_sglang.allocation import DevicePlan
    from dspark_sglang.sampling_bridge import RowSampling
    from dspark_sglang.step import Step
    from dspark_sglang.verify import BlockLayout
    from dspark_sglang.worker import DsparkWorker


def plan_for(worker: DsparkWorker, step: Step, *, adjusted: bool) -> DevicePlan | None:
    """Return what the device ranks by, or None for a step that the host follows.

    Parameters
    ----------
    adjusted : bool
        Whether a request has penalties, a grammar, a bias or a seed, which are followed on the host.
    """
    if worker.device_path is None or not step.drafts:
        return None
    if adjusted:
        worker.count_fallback("draft_graph_adjusted")
        return None
    return worker.scheduler.rank_on_device(step)


def run(
    worker: DsparkWorker,
    batch: ScheduleBatch,
    layout: BlockLayout,
    rows: RowSampling,
    step: Step,
    plan: DevicePlan,
    publish: Callable[..., None],
) -> Any:
    """Draft, verify, accept, and keep what was committed for the next draft to write; returns the step's result."""
    path = worker.device_path
    assert path is not None
    anchors = batch.spec_info.bonus_tokens
    running = Running(anchors, batch.seq_lens, batch.req_pool_indices, layout, rows, step.kinds, step.drafted)
    proposal = path.propose(running, plan)
    worker.scheduler.launched(step, proposal.lens, proposal.survival)
    logits_output, features, window = path.verify(running, plan, proposal)
    uniforms = None if rows.greediness == "all" else path.accept_uniforms(len(anchors))
    outcome = worker.parts.accept(proposal.block, window, logits_output.next_token_logits, rows, uniforms)
    publish(batch.seq_lens + outcome.accept_lens)
    path.commit(features, window)
    worker.scheduler.end(step, proposal.block, outcome)
    return worker.result(batch, logits_output, outcome, window)
