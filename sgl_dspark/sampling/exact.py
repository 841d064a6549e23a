"""Enumerate the exact law of what draft-and-verify emits, and compare it with the target's (small V and gamma only).

Shapes: V vocabulary, G = gamma, R requests. A *prefix table* for n tokens has V**n rows, one per sequence of n
tokens, numbered in base V with the first token most significant; a joint law over n tokens is such a table's flat form.

The oracle runs the shipped pieces, in fp64: the heads' ``step`` and ``bias``, the slot law, the shortlist, the
acceptance probability and the residual law. What it replaces is chance: each draw becomes a sum over its outcomes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgl_dspark.sampling.block import candidates_of, slot_law, slot_logits
from sgl_dspark.sampling.protocols import BlockDrafter
from sgl_dspark.sampling.rejection import acceptance_probability, residual_law

Rule = Callable[[NDArray[np.float64]], Sequence[int] | NDArray[np.int64]]
"""From all confidences float64 [R, gamma] of one step to verify_lens [R], each in 1..gamma+1 (anchor included)."""

Acceptance = Callable[[Tensor, Tensor], Tensor]
"""Stand-in for ``acceptance_probability``: a control passes a biased one, which the comparison must catch."""

Residual = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Stand-in for ``residual_law``, likewise."""


@dataclass(frozen=True)
class Round:
    """One request's round as prefix tables.

    Attributes
    ----------
    draft : gamma tensors fp64 [V**j, V]
        The draft's law of slot j after the drafts before it.
    target : gamma + 1 tensors fp64 [V**i, V]
        The target's law after i tokens past the anchor, whoever proposed them.
    confidences : gamma tensors fp64 [V**j]
        The confidence of slot j, which knows the drafts before it and nothing later.
    """

    draft: tuple[Tensor, ...]
    target: tuple[Tensor, ...]
    confidences: tuple[Tensor, ...]

    @property
    def gamma(self) -> int:
        """Draft slots."""
        return len(self.draft)

    @property
    def vocab_size(self) -> int:
        """Tokens."""
        return self.target[0].shape[1]


@torch.no_grad()
def draft_tables(
    drafter: BlockDrafter, h: Tensor, anchor_token: int, temperature: float, shortlist: int | None = None
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Tabulate the draft's laws and confidences over every prefix, with the drafter's own head.

    Parameters
    ----------
    drafter : BlockDrafter
        With fp64 weights.
    h : fp64 [gamma, d]
    anchor_token : int
    temperature : float
        0 gives one-hot laws.
    shortlist : int, optional
        See ``sample_block``.

    Returns
    -------
    draft, confidences
        As in ``Round``.
    """
    head = drafter.markov_head
    base, candidates = candidates_of(drafter, h, shortlist)
    vocab_size = drafter.vocab_size
    prev = torch.tensor([anchor_token])
    state = head.initial_state(1, h.device, h.dtype) if head is not None else None
    laws, confidences = [], []
    for j in range(h.shape[0]):
        rows = vocab_size**j
        h_j = h[j].expand(rows, -1)
        listed = candidates[j].expand(rows, -1) if candidates is not None else None
        logits, state = slot_logits(head, prev, h_j, base[j].expand(rows, -1), listed, state)
        if temperature == 0:
            law = torch.zeros_like(logits).scatter_(1, logits.argmax(1, keepdim=True), 1.0)
        else:
            law = slot_law(logits, torch.full((1, 1), temperature, dtype=logits.dtype))
        laws.append(law if listed is None else law.new_zeros(rows, vocab_size).scatter_(1, listed, law))
        confidences.append(drafter.confidence_logits(h_j, prev).double().sigmoid())
        prev = torch.arange(vocab_size).repeat(rows)
        state = state.repeat_interleave(vocab_size, 0) if state is not None else None
    return tuple(laws), tuple(confidences)


def target_law(rounds: Sequence[Round]) -> Tensor:
    """Give the target's own joint law of the next gamma+1 tokens of every request, fp64 [V**(gamma+1)] * R."""
    joint = torch.ones((), dtype=torch.float64)
    for one in rounds:
        joint = joint.unsqueeze(-1) * _chain(one.target)
    return joint


def output_law(
    rounds: Sequence[Round],
    rule: Rule,
    *,
    acceptance: Acceptance = acceptance_probability,
    residual: Residual = residual_law,
) -> Tensor:
    """Give the joint law of the next gamma+1 tokens of every request when this step drafts and verifies.

    What the step emits is followed by the target's own continuation up to gamma+1 tokens, so that lengths do not
    matter and the result can be compared with ``target_law``.

    Parameters
    ----------
    rounds : sequence of R Round
        Of one gamma and V. The cost grows as V**(R * gamma).
    rule : Rule
        Called once for every combination of drafts.
    acceptance, residual : optional
        Stand-ins for the controls.

    Returns
    -------
    fp64 [V**(gamma+1)] * R

    Raises
    ------
    ValueError
        If the rule returns a length outside 1..gamma+1.
    """
    emitted = [_emission_laws(one, acceptance, residual) for one in rounds]
    drafted = torch.ones((), dtype=torch.float64)
    for one in rounds:
        drafted = drafted.unsqueeze(-1) * _chain(one.draft)
    lens = _verify_lens(rounds, rule)
    joint = torch.zeros([x.shape[2] for x in emitted], dtype=torch.float64)
    for combination in torch.unique(lens.flatten(0, -2), dim=0):
        part = drafted * (lens == combination).all(-1)
        for r, verify_len in enumerate(combination.tolist()):
            # Contracts the first drafts axis and appends an output axis: after R of these the order is right again.
            part = torch.tensordot(part, emitted[r][verify_len - 1], dims=([0], [0]))
        joint += part
    return joint


def max_abs_difference(
    rounds: Sequence[Round],
    rule: Rule,
    *,
    acceptance: Acceptance = acceptance_probability,
    residual: Residual = residual_law,
) -> float:
    """Give the largest absolute difference between ``output_law`` and ``target_law``; rounding when lossless."""
    return float((output_law(rounds, rule, acceptance=acceptance, residual=residual) - target_law(rounds)).abs().max())


def is_non_anticipating(rounds: Sequence[Round], rule: Rule) -> bool:
    """Tell whether "slot j of request r is verified" ever depends on that request's drafts at or after slot j.

    Such a dependence is what breaks losslessness (Appendix A). Drafts before j and all other requests are held fixed.
    """
    lens = _verify_lens(rounds, rule)
    for r, one in enumerate(rounds):
        own_last = lens[..., r].movedim(r, -1)
        for j in range(one.gamma):
            verified = (own_last > j + 1).unflatten(-1, (one.vocab_size**j, -1))
            if bool((verified != verified[..., :1]).any()):
                return False
    return True


def _chain(laws: Sequence[Tensor]) -> Tensor:
    """Multiply prefix tables of slots 0..n-1 into the joint law [V**n]."""
    joint = torch.ones(1, dtype=torch.float64)
    for law in laws:
        joint = (joint.unsqueeze(1) * law).flatten()
    return joint


def _verify_lens(rounds: Sequence[Round], rule: Rule) -> Tensor:
    """Tabulate the rule over every combination of drafts: int64 [V**gamma] * R + [R]."""
    gamma = rounds[0].gamma
    seen, sizes = [], []
    for one in rounds:
        size = one.vocab_size**gamma
        columns = [c.repeat_interleave(size // len(c)) for c in one.confidences]
        seen.append(torch.stack(columns, 1).numpy())
        sizes.append(size)
    lens = np.array(
        [
            rule(np.stack([seen[r][b] for r, b in enumerate(blocks)]))
            for blocks in itertools.product(*(range(s) for s in sizes))
        ],
        dtype=np.int64,
    )
    if lens.min() < 1 or lens.max() > gamma + 1:
        raise ValueError(f"A rule must return verify_lens in 1..{gamma + 1}; it returned {lens.min()}..{lens.max()}.")
    return torch.from_numpy(lens.reshape(*sizes, len(rounds)))


def _emission_laws(one: Round, acceptance: Acceptance, residual: Residual) -> Tensor:
    """Give fp64 [gamma+1, V**gamma, V**(gamma+1)]: the law of the tokens given verified drafts ``l`` and the block."""
    gamma, vocab_size = one.gamma, one.vocab_size
    blocks = torch.arange(vocab_size**gamma)
    alive = torch.ones(len(blocks), dtype=torch.float64)
    settled = torch.zeros(len(blocks), vocab_size ** (gamma + 1), dtype=torch.float64)
    laws = []
    for j in range(gamma + 1):
        prefix = blocks // vocab_size ** (gamma - j)
        # Verifying j drafts: what was rejected before, plus the bonus after j acceptances.
        laws.append(settled + _place(one, j, prefix, alive, one.target[j]))
        if j == gamma:
            break
        token = blocks // vocab_size ** (gamma - j - 1) % vocab_size
        accepted = acceptance(one.target[j][prefix, token], one.draft[j][prefix, token])
        replacement, _ = residual(one.target[j], one.draft[j])
        settled = settled + _place(one, j, prefix, alive * (1 - accepted), replacement)
        alive = alive * accepted
    return torch.stack(laws)


def _place(one: Round, j: int, prefix: Tensor, weight: Tensor, law: Tensor) -> Tensor:
    """Spread ``weight`` [B] over sequences: own ``prefix`` of j tokens, one from ``law``, the rest the target's."""
    vocab_size = one.vocab_size
    rest = torch.ones(vocab_size ** (one.gamma + 1), 1, dtype=torch.float64)
    for i in range(one.gamma, j, -1):
        rest = (one.target[i].unsqueeze(2) * rest.unflatten(0, (-1, vocab_size))).flatten(1)
    after = (law.unsqueeze(2) * rest.unflatten(0, (-1, vocab_size))).flatten(1)
    placed = torch.zeros(len(prefix), vocab_size**j, after.shape[1], dtype=torch.float64)
    placed[torch.arange(len(prefix)), prefix] = weight.unsqueeze(1) * after[prefix]
    return placed.flatten(1)
