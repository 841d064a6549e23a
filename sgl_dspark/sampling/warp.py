"""The target's law under temperature, top-k, top-p and min-p, row by row.

Shapes: T flat target rows (one per verified token), V vocabulary.

The law is the one that stock SGLang 0.5.23 draws from with its ``pytorch`` sampling backend. In words, for one row:

1. ``p = softmax(logits / temperature)`` in fp32.
2. Three sets are taken from that same ``p``; none of them renormalises before the next:
   the top_k most likely tokens; the tokens whose more likely tokens together hold at most top_p (so the most likely
   token always stays, and so does the one that crosses top_p); the tokens with ``p >= min_p * max(p)``.
3. The law is ``p`` on the intersection of the three, renormalised once.

"Off" is a top_k below 1 or of at least V, a top_p of at least 1, a min_p of 0. Upstream writes an absent top_k as 2**30
and temperature 0 as temperature 1 with top_k 1; a batch in which every row has top_k 1 takes argmax of the logits.
Here such rows are *greedy rows* in any batch, and callers treat them as argmax rows (see ``greedy_mask``).

Two deviations, neither of which changes a law by more than fp32 rounding: a top_p of 1 in a batch with other filters
cuts nothing here, where upstream can lose a tail of about 1e-7 to the rounding of its cumulative sum; and which of
several tokens with exactly the same probability survives at a top-k or top-p boundary is arbitrary upstream (it
depends on the sort) and here. The number that survives is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sgl_dspark.sampling.topk import largest

Greediness = Literal["all", "none", "some"]
"""Which rows of a batch are greedy, known on the host so that no device value has to be read back."""

_PREFIXES = (256, 4096)
"""Widths tried before a full sort. On one CPU thread at V = 49152 a row costs 0.1, 0.5 and 2.9 ms respectively."""


@dataclass(frozen=True)
class Filters:
    """What the host knows about a batch's filters, so that the device is never asked.

    Attributes
    ----------
    top_k_bound : int
        At least every active top_k of the batch; 0 when no row has one.
    top_p, min_p : bool
        Whether any row uses the filter.
    every_top_p_has_top_k : bool
        Whether each row with an active top_p also has an active top_k, so that ``top_k_bound`` columns decide it.
    greediness : {"all", "none", "some"}
        Which rows are greedy.
    """

    top_k_bound: int
    top_p: bool
    min_p: bool
    every_top_p_has_top_k: bool
    greediness: Greediness

    @classmethod
    def of(cls, temperatures: Tensor, top_ks: Tensor, top_ps: Tensor, min_ps: Tensor, vocab_size: int) -> Filters:
        """Read the filters off the parameter tensors (see ``target_probs``).

        Sync: on an accelerator each field is one read-back; hand the host's own copies of the tensors over instead.
        """
        greedy = greedy_mask(temperatures, top_ks)
        active_k = (top_ks >= 1) & (top_ks < vocab_size)
        active_p = top_ps < 1
        return cls(
            top_k_bound=int(torch.where(active_k, top_ks, 0).max()) if top_ks.numel() else 0,
            top_p=bool(active_p.any()),
            min_p=bool((min_ps > 0).any()),
            every_top_p_has_top_k=not bool((active_p & ~active_k & ~greedy).any()),
            greediness=greediness(greedy),
        )


def greedy_mask(temperatures: Tensor, top_ks: Tensor) -> Tensor:
    """Tell which rows are greedy: temperature 0, or top_k 1 (what SGLang turns temperature 0 into).

    Parameters
    ----------
    temperatures : float [N]
        At least 0.
    top_ks : int [N]
        Below 1 means off.

    Returns
    -------
    bool [N]
    """
    return (temperatures == 0) | (top_ks == 1)


def greediness(greedy: Tensor) -> Greediness:
    """Summarise a greedy mask as "all", "none" or "some"; an empty mask is "all" (sync: reads the device)."""
    if bool(greedy.all()):
        return "all"
    return "some" if bool(greedy.any()) else "none"


def promote(values: Tensor) -> Tensor:
    """Give half-precision values fp32, and leave fp32 and fp64 as they are (the oracle runs in fp64)."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


@torch.no_grad()
def target_probs(
    logits: Tensor,
    temperatures: Tensor,
    top_ks: Tensor,
    top_ps: Tensor,
    min_ps: Tensor,
    *,
    filters: Filters | None = None,
) -> Tensor:
    """Give the target's law of every row, as SGLang's ``pytorch`` backend would draw from it (module docstring).

    Parameters
    ----------
    logits : float [T, V]
        The target's logits after penalties, bias and masks; not changed. Half precision is promoted to fp32 first.
    temperatures : float [T]
        At least 0; 0 marks a greedy row.
    top_ks : int [T]
        Below 1 or at least V: off. 1 marks a greedy row.
    top_ps : float [T]
        In (0, 1]; 1 is off.
    min_ps : float [T]
        In [0, 1]; 0 is off.
    filters : Filters, optional
        The host's knowledge of the batch; read from the tensors when absent.

    Returns
    -------
    fp32 [T, V] (fp64 for fp64 logits)
        Rows sum to 1 within rounding. A greedy row is one-hot at the argmax of its logits.
    """
    if logits.ndim != 2 or any(x.shape != logits.shape[:1] for x in (temperatures, top_ks, top_ps, min_ps)):
        raise ValueError("target_probs takes logits [T, V] and four parameter vectors [T]; expand them to rows first.")
    if filters is None:
        filters = Filters.of(temperatures, top_ks, top_ps, min_ps, logits.shape[1])
    if filters.greediness == "all":
        law = torch.zeros_like(logits, dtype=torch.float64 if logits.dtype == torch.float64 else torch.float32)
        return law.scatter_(1, logits.argmax(-1, keepdim=True), 1.0)
    scaled = promote(logits) / torch.where(temperatures > 0, temperatures, 1.0).unsqueeze(1)
    # In place: at T = 128 a second [T, V] buffer costs more in page faults than the softmax itself.
    probs = torch.softmax(scaled, -1, out=scaled)
    if filters.min_p:
        # min-p only ever cuts the tail of the sorted order, so cutting first leaves top-k and top-p as they were.
        probs.masked_fill_(probs < probs.amax(-1, keepdim=True) * min_ps.unsqueeze(1), 0.0)
    if filters.top_p or filters.top_k_bound:
        _cut_sorted(probs, top_ks, top_ps, filters)
    if filters.min_p:
        probs /= probs.sum(-1, keepdim=True)
    if filters.greediness == "some":
        greedy = greedy_mask(temperatures, top_ks).unsqueeze(1)
        probs.masked_fill_(greedy, 0.0).scatter_add_(1, logits.argmax(-1, keepdim=True), greedy.to(probs.dtype))
    return probs


def _cut_sorted(probs: Tensor, top_ks: Tensor, top_ps: Tensor, filters: Filters) -> None:
    """Apply top-k and top-p to ``probs`` [T, V] in place, sorting no more columns than decide every row."""
    vocab_size = probs.shape[1]
    keep_k = torch.where((top_ks >= 1) & (top_ks < vocab_size), top_ks, vocab_size)
    # Infinite for rows without top-p: rounding of the cumulative sum must not cut them.
    keep_p = torch.where(top_ps < 1, top_ps.to(probs.dtype), torch.inf)
    cut_rows = (keep_k < vocab_size) | (top_ps < 1)
    if filters.every_top_p_has_top_k:
        width = max(filters.top_k_bound, 1)
    elif probs.device.type == "cpu":
        _cut_by_growing_prefixes(probs, keep_k, keep_p, cut_rows)
        return
    else:
        # Asking which rows a prefix decides would be a synchronisation; a full sort is cheaper than that here.
        width = vocab_size
    top, ids, _ = _survivors(probs, keep_k, keep_p, width)
    kept_whole = (~cut_rows).to(probs.dtype).unsqueeze(1)
    probs.mul_(kept_whole).scatter_add_(1, ids, top * (1 - kept_whole))


def _cut_by_growing_prefixes(probs: Tensor, keep_k: Tensor, keep_p: Tensor, cut_rows: Tensor) -> None:
    """Cut the marked rows in place, each with the shortest prefix of its sorted law that decides it."""
    rows, vocab_size = probs.shape
    undecided = cut_rows.nonzero().squeeze(1)
    for width in (*_PREFIXES, vocab_size):
        part = probs if undecided.numel() == rows else probs[undecided]
        top, ids, decided = _survivors(part, keep_k[undecided], keep_p[undecided], min(width, vocab_size))
        done = undecided[decided]
        if done.numel() == rows:
            probs.zero_().scatter_(1, ids, top)
        else:
            law = probs.new_zeros(done.numel(), vocab_size)
            probs[done] = law.scatter_(1, ids[decided], top[decided])
        undecided = undecided[~decided]
        if undecided.numel() == 0:
            return


def _survivors(probs: Tensor, keep_k: Tensor, keep_p: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Cut rows [N, V] by their ``width`` most likely tokens.

    Returns
    -------
    law [N, width], ids int64 [N, width], decided bool [N]
        The law of the survivors, normalised; their tokens; False where a token beyond the prefix might survive too.
    """
    vocab_size = probs.shape[1]
    if width < vocab_size:
        top, ids = largest(probs, width)
    else:
        top, ids = probs.sort(dim=-1, descending=True)
    through = top.cumsum(-1)
    decided = (keep_k <= width) | (through[:, -1] > keep_p) | (width == vocab_size)
    ranks = torch.arange(width, device=top.device)
    top.masked_fill_((ranks >= keep_k.unsqueeze(1)) | (through - top > keep_p.unsqueeze(1)), 0.0)
    return top.div_(top.sum(-1, keepdim=True)), ids, decided
