"""Left-to-right sampling of one block of drafts, with the law each token was drawn from.

Shapes: R requests, G = gamma draft slots, V vocabulary, S shortlist (V when there is none), d hidden, r head rank.
Slot j = 0..gamma-1 is the paper's k = j+1.

Slot j draws from ``softmax((base_j + bias_j) / temperature)`` over its candidates (Sec. 3.1, Eq. 4), where the bias
comes from the sequential head and the tokens drawn before it. The law is computed once, in fp32: it is the one drawn
from and the one handed to verification. The released code draws from a bf16 softmax and accepts with an fp32 one,
which is lossless only to about 2**-9.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sgl_dspark.sampling.draw import draw
from sgl_dspark.sampling.draw import uniforms as fresh_uniforms
from sgl_dspark.sampling.protocols import BlockDrafter, SequentialHeadLike, SlotAdjustment
from sgl_dspark.sampling.topk import largest
from sgl_dspark.sampling.warp import Greediness, greediness, promote


@dataclass(frozen=True)
class DraftBlock:
    """One block of drafts per request and the law it was drawn from.

    Attributes
    ----------
    tokens : int64 [R, gamma]
    confidence_logits : fp32 [R, gamma]
        Slot j saw the tokens before j in the block, never token j: what makes scheduling on it lossless.
    candidates : int64 [R, gamma, S] or None
        Vocabulary ids of the shortlist that ``probs`` is over; None when ``probs`` is over the vocabulary or absent.
    probs : fp32 [R, gamma, S or V] or None
        The law of each slot; one-hot for greedy rows. None when every row is greedy.
    token_probs : fp32 [R, gamma] or None
        ``probs`` at the drawn tokens. None when every row is greedy.
    """

    tokens: Tensor
    confidence_logits: Tensor
    candidates: Tensor | None = None
    probs: Tensor | None = None
    token_probs: Tensor | None = None


def shortlist_of(base: Tensor, shortlist: int | None) -> tuple[Tensor, Tensor | None]:
    """Pick each slot's candidates: its ``shortlist`` largest base logits.

    Parameters
    ----------
    base : float [..., V]
    shortlist : int or None
        S >= 1; None or at least V keeps the vocabulary.

    Returns
    -------
    base fp32 or fp64 [..., S] (or ``base`` itself), candidates int64 [..., S] or None

    Raises
    ------
    ValueError
        If ``shortlist`` is below 1.
    """
    if shortlist is not None and shortlist < 1:
        raise ValueError(f"A shortlist of {shortlist} has no candidates; give at least 1, or None for the vocabulary.")
    if shortlist is None or shortlist >= base.shape[-1]:
        return base, None
    shape = (*base.shape[:-1], shortlist)
    top, candidates = largest(base.flatten(0, -2), shortlist, ordered=False)
    return promote(top).view(shape), candidates.view(shape)


def candidates_of(
    drafter: BlockDrafter, h: Tensor, shortlist: int | None, *, by_token: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Give each slot's base logits over its candidates, and the candidates.

    Parameters
    ----------
    drafter : BlockDrafter
    h : float [..., d]
    shortlist : int or None
        See `shortlist_of`.
    by_token : bool, optional
        Order the candidates by token id; in any order otherwise.

    Returns
    -------
    base [..., S], candidates int64 [..., S]; or base [..., V], None when the whole vocabulary is in play.
    """
    logits, ids = drafter.proposal_logits(h)
    base, listed = shortlist_of(logits, shortlist)
    if ids is not None:
        listed = ids.expand(base.shape) if listed is None else ids[listed]
    if by_token and listed is not None:
        listed, order = listed.sort(-1)
        base = base.gather(-1, order)
    return base, listed


def slot_logits(
    head: SequentialHeadLike | None,
    prev_tokens: Tensor,
    h: Tensor,
    base: Tensor,
    candidates: Tensor | None,
    state: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Give one slot's logits over its candidates, and the head's next state.

    Parameters
    ----------
    head : SequentialHeadLike or None
    prev_tokens : int64 [R]
        The anchor for slot 0, else the token drawn at the slot before.
    h : float [R, d]
    base : float [R, S or V]
    candidates : int64 [R, S] or None
    state : float [R, ...] or None

    Returns
    -------
    fp32 or fp64 [R, S or V], state
    """
    base = promote(base)
    if head is None:
        return base, state
    latent, state = head.step(prev_tokens, h, state)
    return base + head.bias(latent, candidates), state


def slot_law(logits: Tensor, temperatures: Tensor, out: Tensor | None = None) -> Tensor:
    """Turn one slot's logits into the law that is drawn from and accepted with.

    Whatever this returns is lossless, as it serves both; a request's own top-k or top-p would be applied to the
    draft here.

    Parameters
    ----------
    logits : fp32 or fp64 [R, S or V]
    temperatures : float [R, 1]
        Positive.
    out : optional
        Where to write.

    Returns
    -------
    Like ``logits``; rows sum to 1.
    """
    return torch.softmax(logits / temperatures, -1, out=out)


@torch.no_grad()
def sample_block(
    drafter: BlockDrafter,
    h: Tensor,
    anchor_tokens: Tensor,
    temperatures: Tensor,
    *,
    shortlist: int | None = None,
    uniforms: Tensor | None = None,
    generator: torch.Generator | None = None,
    greedy: Greediness | None = None,
    adjustment: SlotAdjustment | None = None,
    by_token: bool = False,
) -> DraftBlock:
    """Draw every request's block, slot by slot, and the confidence of each slot (Sec. 3.1, Eq. 4-8).

    Parameters
    ----------
    drafter : BlockDrafter
    h : float [R, gamma, d]
        Post-norm hidden states of this step's block.
    anchor_tokens : int64 [R]
    temperatures : fp32 [R]
        0 marks a greedy row: argmax, and a one-hot law.
    shortlist : int, optional
        S: each slot draws from the S largest base logits only, and the head is evaluated on these only. Full
        vocabulary by default.
    uniforms : float [R, gamma], optional
        In [0, 1), inverted through each slot's cumulative law; drawn from ``generator`` when absent.
    generator : torch.Generator, optional
    greedy : {"all", "none", "some"}, optional
        The host's knowledge of which temperatures are 0. Sync: read from the device when absent.
    adjustment : SlotAdjustment, optional
        What of the requests' own settings the draft follows.
    by_token : bool, optional
        Order candidates by token id, so that a uniform picks about the token that it picks from the target's law.

    Returns
    -------
    DraftBlock
    """
    greedy = greediness(temperatures == 0) if greedy is None else greedy
    base, candidates = candidates_of(drafter, h, shortlist, by_token=by_token)
    if greedy == "all":
        tokens = _greedy_tokens(drafter.markov_head, h, anchor_tokens, base, candidates, adjustment)
        return DraftBlock(tokens, confidence_of(drafter, h, anchor_tokens, tokens))
    if uniforms is None:
        uniforms = fresh_uniforms(*h.shape[:2], device=h.device, generator=generator)
    greedy_rows = temperatures == 0 if greedy == "some" else None
    tokens, choices, probs = _sampled_tokens(
        drafter.markov_head, h, anchor_tokens, base, candidates, temperatures, greedy_rows, uniforms, adjustment
    )
    if greedy_rows is not None:
        probs.masked_fill_(greedy_rows.view(-1, 1, 1), 0.0)
        probs.scatter_add_(
            2, choices.unsqueeze(2), greedy_rows.to(probs.dtype).view(-1, 1, 1).expand(*choices.shape, 1)
        )
    token_probs = probs.gather(2, choices.unsqueeze(2)).squeeze(2)
    return DraftBlock(tokens, confidence_of(drafter, h, anchor_tokens, tokens), candidates, probs, token_probs)


def _greedy_tokens(
    head: SequentialHeadLike | None,
    h: Tensor,
    anchor_tokens: Tensor,
    base: Tensor,
    candidates: Tensor | None,
    adjustment: SlotAdjustment | None,
) -> Tensor:
    """Take the argmax at every slot; no law is built."""
    state = head.initial_state(h.shape[0], h.device, h.dtype) if head is not None else None
    prev, tokens = anchor_tokens, list[Tensor]()
    for j in range(h.shape[1]):
        listed = candidates[:, j] if candidates is not None else None
        logits, state = slot_logits(head, prev, h[:, j], base[:, j], listed, state)
        if adjustment is not None:
            logits = adjustment.adjust(j, logits, listed, tokens)
        choice = logits.argmax(-1)
        prev = choice if listed is None else listed.gather(1, choice.unsqueeze(1)).squeeze(1)
        tokens.append(prev)
    return torch.stack(tokens, 1)


def _sampled_tokens(
    head: SequentialHeadLike | None,
    h: Tensor,
    anchor_tokens: Tensor,
    base: Tensor,
    candidates: Tensor | None,
    temperatures: Tensor,
    greedy_rows: Tensor | None,
    uniforms: Tensor,
    adjustment: SlotAdjustment | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw every slot; greedy rows (bool [R], None for none) take the argmax.

    Returns tokens int64 [R, gamma], their indices into the law int64 [R, gamma], and the laws [R, gamma, S or V],
    which for greedy rows still hold the softmax at temperature 1.
    """
    rows, gamma = h.shape[:2]
    divisors = (temperatures if greedy_rows is None else torch.where(greedy_rows, 1.0, temperatures)).unsqueeze(1)
    state = head.initial_state(rows, h.device, h.dtype) if head is not None else None
    # Slot-major, so that each slot's law is written in place and contiguous.
    laws = torch.empty((gamma, *base[:, 0].shape), dtype=promote(base[:0]).dtype, device=h.device)
    prev, tokens, choices = anchor_tokens, list[Tensor](), []
    for j in range(gamma):
        listed = candidates[:, j] if candidates is not None else None
        logits, state = slot_logits(head, prev, h[:, j], base[:, j], listed, state)
        if adjustment is not None:
            logits = adjustment.adjust(j, logits, listed, tokens)
        choice = draw(slot_law(logits, divisors, out=laws[j]), uniforms[:, j])
        if greedy_rows is not None:
            choice = torch.where(greedy_rows, logits.argmax(-1), choice)
        prev = choice if listed is None else listed.gather(1, choice.unsqueeze(1)).squeeze(1)
        tokens.append(prev)
        choices.append(choice)
    return torch.stack(tokens, 1), torch.stack(choices, 1), laws.transpose(0, 1)


def confidence_of(drafter: BlockDrafter, h: Tensor, anchor_tokens: Tensor, tokens: Tensor) -> Tensor:
    """Give the confidence logits fp32 [R, gamma] of drawn blocks int64 [R, gamma] and their anchors int64 [R]."""
    # Invariant: slot j sees the token before it and never its own, or a scheduler reading it would bias the output.
    previous = torch.cat([anchor_tokens.unsqueeze(1), tokens[:, :-1]], 1)
    return drafter.confidence_logits(h, previous)
