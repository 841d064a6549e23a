"""With `compat_target`, the only module that names what SGLang 0.5.23 keeps private or may move.

Everything else imports SGLang's internals through here, so that a new SGLang
version is two files to read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2

from sgl_dspark.errors import TargetMismatchError

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.server_args import ServerArgs
    from torch import Tensor

    from dspark_sglang.device_window import DeviceWindow
    from dspark_sglang.verify import VerifyInput, VerifyWindow
    from sgl_dspark.config import DrafterConfig

SUPPORTED_SGLANG = "0.5.23"
# Longer than any answer.
NO_LIMIT = 1 << 40

__all__ = [
    "SUPPORTED_SGLANG",
    "AttentionBackend",
    "BaseSpecWorker",
    "CaptureHiddenMode",
    "DFlashVerifyInput",
    "KVWriteLoc",
]


def refuse_unsupported_layer(layer: RadixAttention, backend: str) -> None:
    """Raise if a layer asks for attention that our backend of this name does not compute.

    Raises
    ------
    NotImplementedError
        For cross or encoder attention, a sliding window, soft-capped logits, or
        keys and values of different width.
    """
    window = layer.sliding_window_size
    if layer.is_cross_attention or layer.attn_type == AttentionType.ENCODER_ONLY:
        raise NotImplementedError(f"the {backend} attention backend serves decoder self-attention only")
    if (window is not None and window > -1) or layer.logit_cap:
        raise NotImplementedError(f"the {backend} attention backend has no sliding window and no logit soft cap")
    if layer.qk_head_dim != layer.v_head_dim:
        raise NotImplementedError(f"the {backend} attention backend needs keys and values of one width")


def refuse_unsupported_inputs(others: dict[str, Any], backend: str) -> None:
    """Raise if a model hands its attention more than queries, keys and values: leaving it out would change the output.

    Raises
    ------
    NotImplementedError
        Naming the input, such as attention sinks.
    """
    for name, value in others.items():
        if value is not None:
            raise NotImplementedError(f"the {backend} attention backend does not know the attention input {name}")


def resolved(server_args: ServerArgs) -> Any:
    """Return server arguments as SGLang resolved them."""
    return resolving_view(server_args)


def target_embeddings(runner: ModelRunner) -> dict[str, Tensor]:
    """Return the target's embedding and head, ``[V, d]`` each, for the draft to share.

    SGLang pads both to a multiple of 64 rows; the padding is cut off without a copy.
    """
    vocab = runner.model_config.vocab_size
    embed, head = runner.model.get_embed_and_head()
    return {"target_embed": embed[:vocab], "target_lm_head": head[:vocab]}


def check_target(draft: DrafterConfig, runner: ModelRunner) -> None:
    """Raise `TargetMismatchError` unless the draft was made for a target of this shape."""
    text = runner.model_config.hf_text_config
    for name, wanted, got in (
        ("vocab_size", draft.vocab_size, runner.model_config.vocab_size),
        ("hidden_size", draft.hidden_size, text.hidden_size),
        ("num_target_layers", draft.num_target_layers, text.num_hidden_layers),
    ):
        if wanted != got:
            raise TargetMismatchError(
                f"the draft was made for a target with {name} {wanted}, but this target has {got}; "
                "give --speculative-draft-model-path the draft of this target"
            )


def num_kv_slots(runner: ModelRunner) -> int:
    """Return the slots of the target's KV pool, the reserved padding slot included."""
    return int(runner.token_to_kv_pool.get_key_buffer(runner.layer_info.start_layer).shape[0])


def forward_target_prefill(worker: TpModelWorker, batch: ScheduleBatch) -> GenerationBatchResult:
    """Run a prefill, sample each request's first token, and capture the features of every row."""
    return worker.forward_batch_generation(batch, capture_hidden_mode=CaptureHiddenMode.FULL)


def forward_target_verify(
    worker: TpModelWorker, batch: ScheduleBatch, verify_input: VerifyInput, *, lens_include_window: bool
) -> LogitsProcessorOutput:
    """Run the target over the flat rows of a verification; logits and features of every row.

    ``batch.out_cache_loc`` holds the rows' slots. Fields of ``batch`` change; the
    scheduler restores them.

    Parameters
    ----------
    lens_include_window : bool
        Whether the attention backend wants host lengths that count the window, as
        SGLang's do unless they build verify metadata themselves.
    """
    backend = worker.model_runner.attn_backend
    if lens_include_window and not hasattr(backend, "make_forward_metadata_from_raw_verify"):
        batch.seq_lens_cpu = batch.seq_lens_cpu + torch.tensor(verify_input.verify_lens_cpu)
        batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())
    forward_batch, _ = verify_input.prepare_for_verify(batch, worker)
    forward_batch.mark_forward_metadata_ready()
    return worker.forward_batch_generation(batch=None, forward_batch=forward_batch, is_verify=True).logits_output


def greedy_requests(requests: Any) -> np.ndarray:
    """Tell which requests are greedy, bool [R], from their own parameters and so without asking the device."""
    return np.array([request.sampling_params.top_k <= 1 for request in requests], bool)


def host_sampling(requests: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return temperatures (0 if greedy), top-ks, top-ps and min-ps [R] of requests, from their own parameters."""
    found = [request.sampling_params for request in requests]
    return (
        torch.tensor([0.0 if p.top_k <= 1 else p.temperature for p in found]),
        torch.tensor([p.top_k for p in found]),
        torch.tensor([p.top_p for p in found]),
        torch.tensor([p.min_p for p in found]),
    )


def request_identities(batch: ScheduleBatch, runner: ModelRunner) -> tuple[Tensor, Tensor]:
    """Return each request's row of the request pool and the row's generation, int64 [R] on the host.

    A row that is given to another request gets another generation.
    """
    rows = batch.req_pool_indices_cpu
    return rows, runner.req_to_token_pool.req_generation[rows]


def is_over(request: Any) -> bool:
    """Whether a request has ended or left the batch; what its rows still produce is dropped."""
    return bool(request.finished() or request.is_retracted)


def final_length(request: Any) -> int:
    """Return the most tokens that prompt and answer of a request come to."""
    limit = request.sampling_params.max_new_tokens
    return len(request.origin_input_ids) + (NO_LIMIT if limit is None else limit)


def ignores_end_tokens(request: Any) -> bool:
    """Whether a request goes on past the tokens that end an answer."""
    return bool(request.sampling_params.ignore_eos)


def tensor_parallel_ranks() -> tuple[Any, int]:
    """Return the host process group of this worker's tensor-parallel ranks, and their number."""
    from sglang.srt.distributed import get_tp_group

    group = get_tp_group()
    return group.cpu_group, group.world_size


def num_request_rows(runner: ModelRunner) -> int:
    """Return the rows of the request pool."""
    return int(runner.req_to_token_pool.req_to_token.shape[0])


def end_tokens(runner: ModelRunner) -> set[int]:
    """Return the tokens that end an answer of this target."""
    return set(runner.model_config.hf_eos_token_id or ())


def take_features(logits_output: LogitsProcessorOutput) -> Tensor:
    """Take the captured target features ``[rows, m * d]`` off a result, so that they are not copied to the host.

    Raises
    ------
    RuntimeError
        If the target model captured none, which means that it has no hook for it.
    """
    features = logits_output.hidden_states
    if features is None:
        raise RuntimeError("the target returned no layer outputs; its SGLang model class cannot serve a DSpark draft")
    logits_output.hidden_states = None
    return features


def logits_output(logits: Tensor) -> LogitsProcessorOutput:
    """Wrap logits ``[rows, V]`` as SGLang hands them on."""
    return LogitsProcessorOutput(next_token_logits=logits)


def draft_input(bonus_tokens: Tensor, new_seq_lens: Tensor) -> DFlashDraftInputV2:
    """Return what the next decode step starts from: each request's anchor and committed length."""
    rows, device = new_seq_lens.numel(), bonus_tokens.device
    nothing = torch.empty((rows, 0), device=device)
    return DFlashDraftInputV2(
        topk_p=nothing,
        topk_index=nothing.long(),
        bonus_tokens=bonus_tokens.long(),
        new_seq_lens=new_seq_lens.long(),
        hidden_states=nothing,
    )


def decode_result(
    *,
    logits_output: LogitsProcessorOutput | None,
    out_tokens: Tensor,
    accept_lens: Tensor,
    new_seq_lens: Tensor,
    bonus: Tensor,
    stride: int,
    verify_lens: Tensor | None = None,
) -> GenerationBatchResult:
    """Return a decode step's result in the V2 contract.

    Parameters
    ----------
    out_tokens : int64 [R, stride]
        Emitted tokens of each request, then padding.
    accept_lens : int64 [R]
        Emitted tokens, bonus included.
    bonus : int64 [R]
        Last emitted token of each request, the next anchor.
    """
    return GenerationBatchResult(
        logits_output=logits_output,
        next_token_ids=out_tokens.reshape(-1),
        accept_lens=accept_lens.to(torch.int32),
        block_accept_lens=accept_lens.to(torch.int32),
        cap_lens=None if verify_lens is None else verify_lens.to(torch.int32),
        next_draft_input=draft_input(bonus, new_seq_lens),
        new_seq_lens=new_seq_lens,
        speculative_num_draft_tokens=stride,
        can_run_cuda_graph=False,
    )


def add_logprobs(
    batch: ScheduleBatch, logits_output: LogitsProcessorOutput, out_tokens: Tensor, window: VerifyWindow | DeviceWindow
) -> None:
    """Fill a verification's log-probabilities, one row per emitted token."""
    logits_output.next_token_logits = window.unpack(logits_output.next_token_logits)
    compute_spec_logprobs(batch, logits_output, out_tokens.reshape(-1), chain_stride=out_tokens.shape[1])
