"""Running the target without a batch of SGLang's scheduler: for timing, for capture, and by device-side lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

if TYPE_CHECKING:
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.managers.tp_worker import TpModelWorker
    from torch import Tensor

    from dspark_sglang.verify import VerifyInput


def flat_verify_batch(
    worker: TpModelWorker,
    verify_input: VerifyInput,
    seq_lens: Tensor,
    seq_lens_cpu: Tensor,
    request_rows: Tensor,
    slots: Tensor,
) -> ForwardBatch:
    """Describe a verification without a batch of the scheduler's; nothing in it waits for the device.

    Parameters
    ----------
    seq_lens, seq_lens_cpu : int64 [R]
        Committed lengths, on the device and on the host.
    request_rows : int64 [R]
        Rows of the slot table.
    slots : int64 [T]
        Where keys and values of the verified rows go.
    """
    runner = worker.model_runner
    forward_batch = ForwardBatch(
        forward_mode=ForwardMode.TARGET_VERIFY,
        batch_size=seq_lens.numel(),
        input_ids=verify_input.draft_token,
        req_pool_indices=request_rows,
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens_cpu,
        orig_seq_lens=seq_lens,
        out_cache_loc=slots,
        seq_lens_sum=int(seq_lens_cpu.numpy().sum()),
        positions=verify_input.positions,
        spec_algorithm=runner.spec_algorithm,
        spec_info=verify_input,
        capture_hidden_mode=CaptureHiddenMode.FULL,
        global_forward_mode=ForwardMode.TARGET_VERIFY,
    )
    forward_batch = runner.prepare_dummy_forward_batch(forward_batch)
    runner.kv_index_translator.bind_runner_slots(forward_batch)
    return forward_batch


def forward_target_flat(worker: TpModelWorker, forward_batch: ForwardBatch) -> LogitsProcessorOutput:
    """Run the target over a `flat_verify_batch` as `forward_target_verify` does."""
    worker.model_runner.attn_backend.init_forward_metadata(forward_batch)
    forward_batch.mark_forward_metadata_ready()
    return worker.forward_batch_generation(batch=None, forward_batch=forward_batch, is_verify=True).logits_output


def forward_target_model(worker: TpModelWorker, forward_batch: ForwardBatch) -> LogitsProcessorOutput:
    """Run the target's layers alone over a `flat_verify_batch`, for capture: attention has been planned before.

    SGLang's own way to them plans again in every forward, which a graph must not hold.
    """
    runner = worker.model_runner
    forward_batch.mark_forward_metadata_ready()
    context = forward_context(ForwardContext(attn_backend=runner.attn_backend), forward_batch=forward_batch)
    with runner.eager_runner.model_context(), context:
        output: LogitsProcessorOutput = runner.model.forward(
            forward_batch.input_ids, forward_batch.positions, forward_batch
        )
    return output
