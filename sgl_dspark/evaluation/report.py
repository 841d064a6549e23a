"""What a set of rounds says about a draft: τ, survival and acceptance per slot (reference protocol)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Round:
    """One draft-and-verify round.

    Attributes
    ----------
    num_correct_drafts : int
        Accepted drafts.
    proposed : int
        Drafts that count as proposed: gamma, or up to an accepted end-of-turn token.
    emitted : int
        Accept length of the round, bonus or replacement included; an accepted end-of-turn token leaves no bonus.
    """

    num_correct_drafts: int
    proposed: int
    emitted: int


@dataclass(frozen=True)
class Acceptance:
    """Statistics over rounds.

    Attributes
    ----------
    rounds : int
    mean_accept_len : float
        τ, weighted by rounds: tokens emitted per round, bonus included.
    survival : tuple of float
        Slot j: rounds whose drafts 0..j were all accepted, over rounds that proposed slot j.
    conditional : tuple of float
        Slot j: the same, over rounds whose drafts before j were all accepted.
    mean_verify_len : float
        Verified tokens per round, anchor included; drafts behind an accepted end-of-turn token do not count.
    """

    rounds: int
    mean_accept_len: float
    survival: tuple[float, ...]
    conditional: tuple[float, ...]
    mean_verify_len: float


def round_of(drafts: Sequence[int], num_correct: int, eos_ids: Sequence[int]) -> Round:
    """Count one verified block.

    Parameters
    ----------
    drafts : sequence of int
        The gamma drafts.
    num_correct : int
        How many of them were accepted.
    eos_ids : sequence of int
        End-of-turn tokens.
    """
    for slot, token in enumerate(drafts[:num_correct]):
        if token in eos_ids:
            return Round(num_correct_drafts=slot + 1, proposed=slot + 1, emitted=slot + 1)
    return Round(num_correct_drafts=num_correct, proposed=len(drafts), emitted=num_correct + 1)


def summarise(rounds: Sequence[Round], gamma: int) -> Acceptance:
    """Reduce rounds to statistics; rates of slots that were never proposed are 0."""

    def ratio(part: float, whole: float) -> float:
        return part / whole if whole else 0.0

    survival, conditional = [], []
    for slot in range(gamma):
        proposed = [r for r in rounds if r.proposed > slot]
        reached = [r for r in proposed if r.num_correct_drafts >= slot]
        correct = sum(r.num_correct_drafts > slot for r in proposed)
        survival.append(ratio(correct, len(proposed)))
        conditional.append(ratio(correct, len(reached)))
    mean = ratio(sum(r.emitted for r in rounds), len(rounds))
    verified = ratio(sum(r.proposed + 1 for r in rounds), len(rounds))
    return Acceptance(len(rounds), mean, tuple(survival), tuple(conditional), verified)
