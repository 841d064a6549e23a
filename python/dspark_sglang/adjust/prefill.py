"""First tokens, which SGLang's sampler draws at the end of a prefill: here they get their seed and their penalties.

An answer that goes on after a retraction has a first token of a prefill too, but is not empty.

Shape legend: R requests, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dspark_sglang.adjust.processors import process
from sgl_dspark.sampling.draw import draw
from sgl_dspark.sampling.warp import target_probs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
    from torch import Tensor

    from dspark_sglang.adjust.processors import ProcessedRequests
    from dspark_sglang.adjust.seeds import SeededRequests


class SettledSampler:
    """SGLang's sampler, which is left nothing to draw where the choice is settled: by a seed, or as a greedy row's.

    Attributes
    ----------
    seeded : SeededRequests or None
    ends : int64 [R] or None
        A token that ends each answer, where settings might leave a request no token at all.

    processed : ProcessedRequests or None
        Of the batch, where any request has a custom processor.

        All of the prefill about to be sampled; used once.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.seeded: SeededRequests | None = None
        self.ends: Tensor | None = None
        self.processed: ProcessedRequests | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "_sampler":
            raise AttributeError(name)
        return getattr(self._sampler, name)

    def __call__(
        self, logits_output: Any, sampling_info: SamplingBatchInfo, return_logprob: bool, *rest: Any, **named: Any
    ) -> Any:
        """Sample as SGLang's sampler does; rows whose choice is settled leave it one token each."""
        seeded, self.seeded = self.seeded, None
        ends, self.ends = self.ends, None
        custom, self.processed = self.processed, None
        mixed = sampling_info.is_any_greedy and not sampling_info.is_all_greedy
        if seeded is None and ends is None and not mixed:
            return self._sampler(logits_output, sampling_info, return_logprob, *rest, **named)
        had = sampling_info.has_custom_logit_processor
        try:
            if custom is not None:
                sampling_info.has_custom_logit_processor = False
                logits = logits_output.next_token_logits
                process(logits, [1] * len(logits), custom, None)
            processed = self._sampler._preprocess_logits(logits_output.next_token_logits, sampling_info)
            if ends is not None:
                leave_an_end(processed, ends)
            if return_logprob:
                named.setdefault("logprob_logits", processed.clone())
            if mixed:
                force_greedy(processed, sampling_info.top_ks <= 1)
            if seeded is not None:
                force_choices(processed, sampling_info, seeded)
            logits_output.next_token_logits = processed
            # They have had their say, here or in SGLang's own preprocessing.
            sampling_info.has_custom_logit_processor = False
            return self._sampler(logits_output, sampling_info, return_logprob, *rest, **named)
        finally:
            sampling_info.has_custom_logit_processor = had


def leave_an_end(logits: Tensor, ends: Tensor) -> None:
    """Leave rows of ``logits`` [R, V] that allow nothing the token that ends their answer (int64 [R]), in place.

    Upstream: 0.5.23 bars the end of an answer below its least length though its grammar is complete; such a row has no
    law, and drawing from it ends the scheduler. Remove when the grammar wins there.
    """
    hopeless = logits.amax(-1, keepdim=True) == float("-inf")
    end = ends.to(logits.device).unsqueeze(1)
    logits.scatter_(1, end, torch.where(hopeless, 0.0, logits.gather(1, end)))


def force_greedy(logits: Tensor, greedy: Tensor) -> None:
    """Leave greedy rows (bool [R]) of ``logits`` [R, V] their argmax alone, in place.

    Upstream: 0.5.23 takes a greedy row beside a sampled one from a sort, which orders equal logits as it likes, and a
    greedy row among its kind from an argmax: so neighbours decide between tied tokens. Remove when both are the argmax.
    """
    best = logits.argmax(-1, keepdim=True)
    logits.masked_fill_(greedy.unsqueeze(1), float("-inf"))
    logits.scatter_(1, best, torch.where(greedy.unsqueeze(1), 0.0, logits.gather(1, best)))


def force_choices(logits: Tensor, info: SamplingBatchInfo, seeded: SeededRequests) -> None:
    """Leave the rows of seeded requests their choice alone, in place in ``logits`` [R, V]."""
    places = seeded.places.to(logits.device)
    law = target_probs(
        logits[places],
        info.temperatures.view(-1)[places],
        info.top_ks[places],
        info.top_ps[places],
        info.min_ps[places],
    )
    chosen = draw(law, seeded.uniforms(1).squeeze(1))
    logits.index_fill_(0, places, float("-inf"))
    logits[places, chosen] = 0.0


def continue_penalties(
    info: SamplingBatchInfo,
    place: int,
    earlier: Sequence[int],
    coefficients: Sequence[float],
    barred: Sequence[int],
) -> None:
    """Write the penalties of an answer that has tokens already into SGLang's, which count from nothing.

    Parameters
    ----------
    info : SamplingBatchInfo
        The copy for one forward, whose penalties are summed up.
    place : int
        In the batch.
    earlier : sequence of int
        The answer.
    coefficients : sequence of float
        Frequency, presence and repetition penalty.
    barred : sequence of int
        Tokens that would end the answer before its least length.
    """
    additive = info.acc_additive_penalties
    if additive is None:
        return
    frequency, presence, repetition = coefficients
    counts = torch.bincount(torch.tensor(earlier), minlength=additive.shape[1]).to(additive)
    additive[place] = -frequency * counts - presence * (counts > 0)
    if barred:
        additive[place, torch.tensor(barred, device=additive.device)] = float("-inf")
    if info.acc_scaling_penalties is not None:
        info.acc_scaling_penalties[place] = torch.where(counts > 0, repetition, 1.0)
