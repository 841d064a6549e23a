"""Accept drafts over ragged lengths and draw each request's last token, in two launches.

The first splits every request's vocabulary into tiles, one program each, and sums what the tile holds of the residual
max(target - draft, 0) and of the target. The second, one program per request, finds the tile in which the cumulative
residual passes the uniform, and the token in it. The draft's law is sparse: only a tile that holds candidates compares
with them. Sums run in fp64, and the order of tokens is the vocabulary's, as in the reference.

Shapes: R requests, G = gamma slots, V vocabulary, S candidates, T flat target rows, N tiles of a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from dspark_sglang.kernels.choice import power_of_two
from dspark_sglang.kernels.triton_ops.common import first_passing

if TYPE_CHECKING:
    from torch import Tensor

TILE = 1024
"""Tokens of the vocabulary per program."""
CHUNK = 4
"""Candidates that a tile is compared with at once; 8 need more than 200 registers a thread on sm_90, 4 need 128."""


@triton.jit
def first_row(verify_lens, request, TILE: tl.constexpr):
    """Give the request's first flat row: the verify lengths before it, summed."""
    total = tl.zeros([TILE], tl.int64)
    for start in range(0, request, TILE):
        at = start + tl.arange(0, TILE)
        total += tl.load(verify_lens + at, mask=at < request, other=0).to(tl.int64)
    return tl.sum(total)


@triton.jit
def uniforms_of(uniforms, request, columns, inside, gamma):
    """Give the request's uniforms at ``columns`` of its gamma + 1."""
    return tl.load(uniforms + request * (gamma + 1) + columns, mask=inside, other=0.0).to(tl.float64)


@triton.jit
def num_accepted(
    tokens, token_probs, target, target_t, target_v, argmax, uniforms, request, first, drafts, greedy, gamma,
    GAMMA: tl.constexpr,
):  # fmt: skip
    """Count the leading accepted drafts of a request, of the ``drafts`` that were verified."""
    slots = tl.arange(0, GAMMA)
    verified = slots < drafts
    token = tl.load(tokens + request * gamma + slots, mask=verified, other=0)
    accepted = verified
    if target is not None:
        sampled = verified & (greedy == 0)
        target_p = tl.load(target + (first + slots) * target_t + token * target_v, mask=sampled, other=0.0)
        draft_p = tl.load(token_probs + request * gamma + slots, mask=sampled, other=0.0)
        ratio = tl.div_rn(target_p.to(tl.float32), tl.where(draft_p > 0, draft_p, 1.0))
        ratio = tl.where(draft_p > 0, ratio, 0.0)
        accepted = uniforms_of(uniforms, request, slots, sampled, gamma) < ratio
    if argmax is not None:
        matches = token == tl.load(argmax + first + slots, mask=verified, other=-1)
        accepted = matches if target is None else tl.where(greedy, matches, accepted)
    return tl.min(tl.where(accepted & verified, GAMMA, slots))


@triton.jit
def residual_tile(
    target, target_t, target_v, row, probs, prob_r, prob_j, candidates, cand_r, cand_j, request, slot, rejected, start,
    vocab, size, TILE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Give max(target - draft, 0) and the target, fp32, of the tokens from ``start`` on; draft 0 unless rejected."""
    ids = start + tl.arange(0, TILE)
    inside = ids < vocab
    law = tl.load(target + row * target_t + ids * target_v, mask=inside, other=0.0).to(tl.float32)
    drafted = tl.zeros([TILE], tl.float32)
    draft_row = probs + request * prob_r + slot * prob_j
    if rejected:
        if candidates is None:
            drafted = tl.load(draft_row + ids, mask=inside, other=0.0)
        else:
            for chunk in range(0, size, CHUNK):
                at = chunk + tl.arange(0, CHUNK)
                listed = tl.load(candidates + request * cand_r + slot * cand_j + at, mask=at < size, other=-1)
                here = (listed >= start) & (listed < start + TILE)
                if tl.sum(here.to(tl.int32)) > 0:
                    prob = tl.load(draft_row + at, mask=here, other=0.0)
                    drafted += tl.sum(tl.where(ids[:, None] == listed[None, :], prob[None, :], 0.0), 1)
    return tl.maximum(law - drafted, 0.0), law


@triton.jit
def masses_kernel(
    tokens, token_probs, target, target_t, target_v, argmax, greedy_rows, uniforms, verify_lens, probs, prob_r,
    prob_j, candidates, cand_r, cand_j, masses, gamma, vocab, size, tiles,
    GAMMA: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Sum one tile of the residual and of the target at the row where a request's last token is drawn."""
    request = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    drafts = tl.load(verify_lens + request).to(tl.int64) - 1
    greedy = tl.load(greedy_rows + request) != 0 if greedy_rows is not None else False
    if (drafts >= 0) & (greedy == 0):
        first = first_row(verify_lens, request, TILE)
        correct = num_accepted(
            tokens, token_probs, target, target_t, target_v, argmax, uniforms, request, first, drafts, greedy,
            gamma, GAMMA,
        )  # fmt: skip
        weights, law = residual_tile(
            target, target_t, target_v, first + correct, probs, prob_r, prob_j, candidates, cand_r, cand_j, request,
            correct, correct < drafts, tile * TILE, vocab, size, TILE, CHUNK,
        )  # fmt: skip
        tl.store(masses + request * 2 * tiles + tile, tl.sum(weights.to(tl.float64)))
        tl.store(masses + (request * 2 + 1) * tiles + tile, tl.sum(law.to(tl.float64)))


@triton.jit
def final_tile(masses, request, tiles, uniform, TILES: tl.constexpr):
    """Find the tile in which the cumulative mass passes ``uniform`` of the total.

    Returns the tile, the mass before it, the mass to pass, and whether the residual is empty, so that the target's own
    law is drawn from.
    """
    index = tl.arange(0, TILES)
    inside = index < tiles
    residual = tl.load(masses + request * 2 * tiles + index, mask=inside, other=0.0)
    empty = (tl.sum(residual) > 0) == 0
    whole = tl.load(masses + (request * 2 + 1) * tiles + index, mask=inside & empty, other=0.0)
    weights = tl.where(empty, whole, residual)
    through = tl.cumsum(weights, 0)
    at = uniform * tl.sum(tl.where(index == tiles - 1, through, 0.0))
    tile = first_passing(through, weights, at, TILES)
    tile = tl.where(tile < 0, tiles - 1, tile)
    return tile, tl.sum(tl.where(index == tile - 1, through, 0.0)), at, empty


@triton.jit
def verdict_kernel(
    tokens, token_probs, target, target_t, target_v, argmax, greedy_rows, uniforms, verify_lens, probs, prob_r,
    prob_j, candidates, cand_r, cand_j, masses, accept_lens, out_tokens, fallbacks, gamma, vocab, size, tiles,
    GAMMA: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Emit the accepted drafts of request ``program_id(0)`` and its last token; nothing for a verify length of 0."""
    request = tl.program_id(0).to(tl.int64)
    drafts = tl.load(verify_lens + request).to(tl.int64) - 1
    live = drafts >= 0
    greedy = tl.load(greedy_rows + request) != 0 if greedy_rows is not None else argmax is not None
    first = first_row(verify_lens, request, TILE)
    correct = num_accepted(
        tokens, token_probs, target, target_t, target_v, argmax, uniforms, request, first, drafts, greedy,
        gamma, GAMMA,
    )  # fmt: skip
    last = tl.full([], 0, tl.int64)
    fallback = tl.full([], 0, tl.int64)
    if argmax is not None:
        last += tl.load(argmax + first + correct, mask=live & greedy, other=0).to(tl.int64)
    # One condition is the compilation's, the other the device's: they cannot be joined.
    if target is not None:  # noqa: SIM102
        if live & (greedy == 0):
            uniform = tl.sum(uniforms_of(uniforms, request, gamma + tl.arange(0, 1), True, gamma))
            tile, before, at, empty = final_tile(masses, request, tiles, uniform, TILES)
            weights, law = residual_tile(
                target, target_t, target_v, first + correct, probs, prob_r, prob_j, candidates, cand_r, cand_j, request,
                correct, correct < drafts, tile * TILE, vocab, size, TILE, CHUNK,
            )  # fmt: skip
            weights = tl.where(empty, law, weights).to(tl.float64)
            choice = first_passing(before + tl.cumsum(weights, 0), weights, at, TILE)
            choice = tile * TILE + tl.where(choice < 0, TILE - 1, choice)
            last += tl.minimum(choice, vocab - 1)
            fallback += (empty & (correct < drafts)).to(tl.int64)
    slots = tl.arange(0, WIDTH)
    out = tl.load(tokens + request * gamma + slots, mask=slots < correct, other=0)
    out = tl.where(slots == correct, last, out)
    tl.store(out_tokens + request * (gamma + 1) + slots, out, mask=slots <= gamma)
    tl.store(accept_lens + request, tl.where(live, correct + 1, 0))
    tl.store(fallbacks + request, fallback)


def launch(
    tokens: Tensor,
    law: tuple[Tensor | None, Tensor, Tensor] | None,
    verify_lens: Tensor,
    target_probs: Tensor | None,
    target_argmax: Tensor | None,
    greedy_rows: Tensor | None,
    uniforms: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Verify every block.

    Parameters
    ----------
    tokens : int64 [R, G]
    law : (candidates int64 [R, G, S] or None, probs fp32 [R, G, S or V], token_probs fp32 [R, G]), optional
        Last axes contiguous; with ``target_probs``.
    verify_lens : int [R]
        In 0..G+1, anchor included.
    target_probs : fp32 [T, V], optional
        Any strides; for sampled requests.
    target_argmax : int64 [T], optional
        For greedy requests.
    greedy_rows : bool [R], optional
        With both of the above; with one alone all requests are of its kind.
    uniforms : float [R, G + 1], optional

    Returns
    -------
    accept_lens int64 [R], out_tokens int64 [R, G + 1], fallbacks int64 [R]
        The last is 1 for a rejection without residual mass.
    """
    rows, gamma = tokens.shape
    # Each on its own: kernels are compiled anew for pointers that are not multiples of 16 bytes.
    accept_lens = torch.empty(rows, dtype=torch.int64, device=tokens.device)
    fallbacks = torch.empty(rows, dtype=torch.int64, device=tokens.device)
    out_tokens = torch.empty((rows, gamma + 1), dtype=torch.int64, device=tokens.device)
    if rows == 0:
        return accept_lens, out_tokens, fallbacks
    candidates, probs, token_probs = law if law is not None else (None, None, None)
    vocab = 0 if target_probs is None else target_probs.shape[1]
    tiles = max(triton.cdiv(vocab, TILE), 1)
    masses = None
    shared = (
        tokens.contiguous(), None if token_probs is None else token_probs.contiguous(),
        target_probs, *(target_probs.stride() if target_probs is not None else (0, 0)),
        *(None if part is None else part.contiguous() for part in (target_argmax, greedy_rows)),
        None if uniforms is None else uniforms.contiguous(), verify_lens.contiguous(),
        probs, *(probs.stride()[:2] if probs is not None else (0, 0)),
        candidates, *(candidates.stride()[:2] if candidates is not None else (0, 0)),
    )  # fmt: skip
    sizes = (gamma, vocab, 0 if candidates is None else candidates.shape[2], tiles)
    constants = {"GAMMA": power_of_two(gamma), "TILE": TILE, "CHUNK": CHUNK, "num_warps": 8}
    if target_probs is not None:
        masses = torch.empty((rows, 2, tiles), dtype=torch.float64, device=tokens.device)
        masses_kernel[(rows, tiles)](*shared, masses, *sizes, **constants)
    verdict_kernel[(rows,)](
        *shared, masses, accept_lens, out_tokens, fallbacks, *sizes,
        WIDTH=power_of_two(gamma + 1), TILES=power_of_two(tiles), **constants,
    )  # fmt: skip
    return accept_lens, out_tokens, fallbacks
