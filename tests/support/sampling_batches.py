"""SGLang's per-batch sampling tensors from request parameters."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import SamplingParams

VOCAB = 9


def batch_info(requested: list[dict[str, Any]], vocab: int = VOCAB) -> SamplingBatchInfo:
    """Build the batch as the scheduler does, from normalised request parameters."""
    parsed = [SamplingParams(**r) for r in requested]
    for one in parsed:
        one.normalize(None)
    column = torch.tensor([p.temperature for p in parsed]).view(-1, 1)
    return SamplingBatchInfo(
        temperatures=column,
        top_ps=torch.tensor([p.top_p for p in parsed]),
        top_ks=torch.tensor([p.top_k for p in parsed], dtype=torch.int32),
        min_ps=torch.tensor([p.min_p for p in parsed]),
        is_all_greedy=all(p.top_k <= 1 for p in parsed),
        is_any_greedy=any(p.top_k <= 1 for p in parsed),
        need_top_p_sampling=any(p.top_p != 1.0 for p in parsed),
        need_top_k_sampling=any(p.top_k != (1 << 30) for p in parsed),
        need_min_p_sampling=any(p.min_p > 0 for p in parsed),
        vocab_size=vocab,
        device="cpu",
    )
