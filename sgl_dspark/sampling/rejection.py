"""Verify drafted blocks against the target, losslessly, over ragged lengths (Sec. 2.1; speculative sampling).

Shapes: R requests, G = gamma draft slots, V vocabulary, S shortlist, T = sum(verify_lens) flat target rows.

Request r owns the target rows ``offset[r] .. offset[r] + verify_lens[r] - 1`` with ``offset`` the exclusive sum of
verify_lens. Its row i is the target's law *after* the anchor and the drafts of slots 0..i-1: it verifies the draft of
slot i, and the last one gives the bonus token.

A draft x is accepted with probability min(1, target(x) / draft(x)). At the first rejection the replacement is drawn
from max(target - draft, 0), normalised; when every verified draft is accepted the bonus is drawn from the target. A
greedy request accepts a draft that is the target's argmax and emits the argmax otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sgl_dspark.sampling.block import DraftBlock
from sgl_dspark.sampling.draw import draw
from sgl_dspark.sampling.draw import uniforms as fresh_uniforms
from sgl_dspark.sampling.warp import Greediness, greediness


@dataclass(frozen=True)
class Verdict:
    """What one verification emitted.

    Attributes
    ----------
    accept_lens : int64 [R]
        Emitted tokens, replacement or bonus included: in 1..verify_lens.
    out_tokens : int64 [R, gamma+1]
        The emitted tokens first, then zeros. The last emitted one is the next anchor.
    residual_fallbacks : int64 scalar
        Rejections that found no residual mass and drew from the target. Possible only by rounding, where the two laws
        agree to about 1e-7; a steady count means that the draft's law is not the one it drew from.
    """

    accept_lens: Tensor
    out_tokens: Tensor
    residual_fallbacks: Tensor


def acceptance_probability(target_p: Tensor, draft_p: Tensor) -> Tensor:
    """Give the probability min(1, target / draft) with which a drawn token is accepted.

    Parameters
    ----------
    target_p, draft_p : fp32 or fp64 [...]
        Both laws at the drafted token.

    Returns
    -------
    Same shape, in [0, 1]. 0 where the draft's law says the token cannot have been drawn: never emit on bad input.
    """
    return torch.where(draft_p > 0, target_p / draft_p, 0.0).clamp(max=1.0)


def residual_law(target_row: Tensor, draft_row: Tensor, candidates: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Give the law of the replacement, max(target - draft, 0) up to its sum.

    Parameters
    ----------
    target_row : fp32 or fp64 [..., V]
    draft_row : same dtype [..., V], or [..., S] with ``candidates``
    candidates : int64 [..., S], optional
        Distinct tokens that ``draft_row`` is over; all others have draft probability 0.

    Returns
    -------
    law [..., V]
        Rows sum to 1.
    empty : bool [...]
        Rows with no residual mass, whose law is ``target_row`` instead.
    """
    weights = target_row - draft_row if candidates is None else target_row.scatter_add(-1, candidates, -draft_row)
    mass = weights.clamp_(min=0.0).sum(-1, keepdim=True)
    empty = ~(mass > 0)
    return torch.where(empty, target_row, weights.div_(mass)), empty.squeeze(-1)


@torch.no_grad()
def verify(
    block: DraftBlock,
    verify_lens: Tensor,
    *,
    target_argmax: Tensor | None = None,
    target_probs: Tensor | None = None,
    greedy_rows: Tensor | None = None,
    greedy: Greediness | None = None,
    uniforms: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Verdict:
    """Accept a prefix of every block and emit one token more, so that the output has the target's law.

    Parameters
    ----------
    block : DraftBlock
        With its law; a greedy request needs only its tokens.
    verify_lens : int [R]
        In 1..gamma+1, anchor included: request r verifies its first ``verify_lens[r] - 1`` drafts. They may depend on
        confidences and on other requests, never on a draft at or after the slot in question (Sec. 3.2).
    target_argmax : int64 [T], optional
        The target's argmax per row; needed with greedy requests, read at their rows only.
    target_probs : fp32 [T, V], optional
        The target's law per row (``warp.target_probs``); needed with sampled requests, read at their rows only.
        Rows past ``sum(verify_lens)``, as a padded batch has, are not read in either.
    greedy_rows : bool [R], optional
        Which requests are greedy. Absent: all of them without ``target_probs``, else none.
    greedy : {"all", "none", "some"}, optional
        The host's knowledge of ``greedy_rows``. Sync: read from the device when it is needed and absent.
    uniforms : float [R, gamma+1], optional
        In [0, 1), independent of those that drew the block: one per slot to accept, the last to draw the final token.
    generator : torch.Generator, optional
        Source of the uniforms when they are absent.

    Returns
    -------
    Verdict

    Raises
    ------
    ValueError
        If what the requests of one kind need is missing.
    """
    if greedy is None:
        default: Greediness = "all" if target_probs is None else "none"
        greedy = greediness(greedy_rows) if greedy_rows is not None else default
    check_given(block, greedy, target_argmax, target_probs, greedy_rows)
    first_rows = verify_lens.cumsum(0) - verify_lens
    slots = torch.arange(block.tokens.shape[1] + 1, device=verify_lens.device)
    # A row per slot and request; slots past verify_lens repeat the last owned row, and are masked below.
    rows = first_rows.unsqueeze(1) + torch.minimum(slots, verify_lens.unsqueeze(1) - 1)
    best = None if greedy == "none" or target_argmax is None else target_argmax[rows]
    if target_probs is None or greedy == "all":
        assert best is not None
        return _verdict_greedy(block, verify_lens, best, slots)
    if uniforms is None:
        uniforms = fresh_uniforms(*rows.shape, device=verify_lens.device, generator=generator)
    return _verdict_sampled(block, verify_lens, target_probs, rows, slots, uniforms, best, greedy_rows)


def check_given(
    block: DraftBlock,
    greedy: Greediness,
    target_argmax: Tensor | None,
    target_probs: Tensor | None,
    greedy_rows: Tensor | None,
) -> None:
    """Refuse a verification that lacks what its requests need; parameters as in `verify`.

    Raises
    ------
    ValueError
        If what the requests of one kind need is missing.
    """
    if greedy != "none" and target_argmax is None:
        raise ValueError("Greedy requests are verified against argmax tokens; pass target_argmax.")
    if greedy != "all" and (target_probs is None or block.probs is None):
        raise ValueError("Sampled requests are verified against laws; pass target_probs and a block that has probs.")
    if greedy == "some" and greedy_rows is None:
        raise ValueError("A batch of both kinds needs to know which requests are greedy; pass greedy_rows.")


def _verdict_greedy(block: DraftBlock, verify_lens: Tensor, best: Tensor, slots: Tensor) -> Verdict:
    """Compare drafts with ``best`` [R, gamma+1]; what is emitted is the argmax at every slot either way."""
    correct = _leading(block.tokens == best[:, :-1], verify_lens, slots)
    return Verdict(correct + 1, best.masked_fill(slots > correct.unsqueeze(1), 0), correct.new_zeros(()))


def _verdict_sampled(
    block: DraftBlock,
    verify_lens: Tensor,
    target_probs: Tensor,
    rows: Tensor,
    slots: Tensor,
    uniforms: Tensor,
    best: Tensor | None,
    greedy_rows: Tensor | None,
) -> Verdict:
    """Verify sampled requests, and the greedy ones among them when ``best`` [R, gamma+1] is given."""
    assert block.token_probs is not None
    ratio = acceptance_probability(target_probs[rows[:, :-1], block.tokens], block.token_probs)
    accepted = uniforms[:, :-1] < ratio
    if best is not None and greedy_rows is not None:
        accepted = torch.where(greedy_rows.unsqueeze(1), block.tokens == best[:, :-1], accepted)
    correct = _leading(accepted, verify_lens, slots)
    at = correct.unsqueeze(1)
    last, empty = _final_token(block, correct, verify_lens, target_probs, rows, uniforms[:, -1])
    if best is not None and greedy_rows is not None:
        last = torch.where(greedy_rows, best.gather(1, at).squeeze(1), last)
        empty = empty & ~greedy_rows
    out = F.pad(block.tokens, (0, 1)).masked_fill_(slots >= at, 0).scatter_(1, at, last.unsqueeze(1))
    return Verdict(correct + 1, out, empty.sum())


def _leading(accepted: Tensor, verify_lens: Tensor, slots: Tensor) -> Tensor:
    """Count the leading accepted drafts, [R, gamma] -> int64 [R], of those that were verified."""
    verified = slots[:-1] < verify_lens.unsqueeze(1) - 1
    return (accepted & verified).cumprod(1).sum(1)


def _final_token(
    block: DraftBlock,
    correct: Tensor,
    verify_lens: Tensor,
    target_probs: Tensor,
    rows: Tensor,
    uniforms: Tensor,
) -> tuple[Tensor, Tensor]:
    """Draw the replacement after ``correct`` [R] accepted drafts, or the bonus when none was rejected.

    Returns the tokens int64 [R], and bool [R] where a rejection had no residual mass.
    """
    assert block.probs is not None
    target_row = target_probs[rows.gather(1, correct.unsqueeze(1)).squeeze(1)]
    rejected = correct < verify_lens - 1
    # With a draft law of zeros the residual is the target itself: one path serves replacements and bonuses.
    requests, slot = torch.arange(len(correct), device=correct.device), correct.clamp(max=block.probs.shape[1] - 1)
    draft_row = block.probs[requests, slot] * rejected.unsqueeze(1)
    candidates = None if block.candidates is None else block.candidates[requests, slot]
    weights, empty = residual_law(target_row, draft_row, candidates)
    return draw(weights, uniforms), empty & rejected
