"""What the draft is drawn from is adjusted as the target's rows are, whichever requests are concerned or drafted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("sglang")
from sglang.srt.constrained.xgrammar_backend import XGrammarGrammarBackend

from dspark_sglang.adjust.answers import Answers
from dspark_sglang.adjust.grammars import GrammarWalk
from dspark_sglang.adjust.settings import Biases, PenalisedRequests
from dspark_sglang.adjust.step import StepAdjustments
from sgl_dspark.sampling.block import DraftBlock
from sgl_dspark.sampling.penalties import Penalties
from tests.support import pair
from tests.unit.plugin.test_sampling_bridge import window_of

REQUESTS, GAMMA, SHORTLIST = 4, 3, 60
VOCAB = len(pair.tokenizer())
END = pair.tokenizer().eos_token_id


def adjustments(penalised: list[int], constrained: list[int]) -> StepAdjustments:
    answers, generator = Answers(REQUESTS, VOCAB, torch.device("cpu")), torch.Generator().manual_seed(3)
    said = torch.randint(VOCAB, (REQUESTS, 30), generator=generator).tolist()
    for slot in range(REQUESTS):
        answers.begin(slot, slot, said[slot][:-1], torch.tensor(said[slot][-1]))
    one = None
    if penalised:
        strengths = [torch.rand(len(penalised), generator=generator) + least for least in (0.1, 0.1, 1.1)]
        one = PenalisedRequests(
            penalised, answers.rows(np.array(penalised)), [30] * len(penalised), Penalties(*strengths), answers
        )
    backend = XGrammarGrammarBackend(pair.tokenizer(), VOCAB, [END])
    walk = None
    if constrained:
        walk = GrammarWalk({p: backend.dispatch_regex("[a-z ]{9,20}") for p in constrained}, GAMMA + 1, VOCAB)
    biases = Biases({1: (torch.tensor([7, 90]), torch.tensor([9.0, -4.0]))}, {2: (torch.tensor([END, 40]), 2)})
    return StepAdjustments(np.ones(REQUESTS, bool), one, biases, walk, None, None)


def draw(step: StepAdjustments, logits: Tensor, places: list[int] | None, shortlists: Tensor | None) -> list[Tensor]:
    """Give what each slot is drawn from, the greedy drafts before it being drawn from the same."""
    draft, drafts, seen = step.for_draft(places), list[Tensor](), list[Tensor]()
    assert draft is not None
    for slot in range(GAMMA):
        listed = None if shortlists is None else shortlists[slot]
        given = logits[:, slot] if listed is None else logits[:, slot].gather(1, listed)
        before = given.clone()
        seen.append(draft.adjust(slot, given, listed, drafts))
        assert torch.equal(given, before)
        choice = seen[-1].argmax(1)
        drafts.append(choice if listed is None else listed.gather(1, choice.unsqueeze(1)).squeeze(1))
    return [*seen, torch.stack(drafts, 1)]


@pytest.mark.parametrize("places", [None, [0, 2], [3, 1]])
@pytest.mark.parametrize("shortlisted", [False, True])
@pytest.mark.parametrize(
    ("penalised", "constrained"), [([0, 1, 2, 3], []), ([0, 1, 3], [0, 3]), ([], [0, 1, 2, 3]), ([2], [])]
)
def test_as_the_targets_rows(
    penalised: list[int], constrained: list[int], shortlisted: bool, places: list[int] | None
) -> None:
    if places is not None and constrained == [0, 1, 2, 3]:
        constrained = places
    generator = torch.Generator().manual_seed(5)
    rows = list(range(REQUESTS)) if places is None else places
    logits = torch.randn(len(rows), GAMMA, VOCAB, generator=generator) * 2
    shortlists = None
    if shortlisted:
        # Something that the grammar allows is always on the list.
        letters = torch.tensor([pair.tokenizer().encode(letter)[0] for letter in "etaoin"])
        rest = [torch.randperm(VOCAB, generator=generator)[:SHORTLIST] for _ in range(GAMMA * len(rows))]
        shortlists = torch.stack(rest).view(GAMMA, len(rows), SHORTLIST)
        shortlists[:, :, :6] = letters
    *seen, tokens = draw(adjustments(penalised, constrained), logits, places, shortlists)

    window = window_of([GAMMA + 1] * REQUESTS)
    right = torch.zeros(REQUESTS, GAMMA + 1, VOCAB)
    right[rows, :GAMMA] = logits
    all_tokens = torch.zeros(REQUESTS, GAMMA, dtype=torch.int64)
    all_tokens[rows] = tokens
    flat = right.view(-1, VOCAB)
    adjustments(penalised, constrained).apply(flat, window, DraftBlock(all_tokens, torch.zeros(REQUESTS, GAMMA)))
    changed = flat.view(REQUESTS, GAMMA + 1, VOCAB)[rows]
    for slot, found in enumerate(seen):
        expected = changed[:, slot] if shortlists is None else changed[:, slot].gather(1, shortlists[slot])
        torch.testing.assert_close(found, expected)
    # It was no test of nothing.
    assert not torch.equal(changed[:, :GAMMA], logits)
