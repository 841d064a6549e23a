"""The state behind adjusted requests: traits by slot, answers, grammar walks, the draft's side."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("sglang")
from sglang.srt.constrained.xgrammar_backend import XGrammarGrammarBackend
from sglang.srt.sampling.sampling_params import SamplingParams

from dspark_sglang.adjust import traits as t
from dspark_sglang.adjust.adjuster import Adjuster
from dspark_sglang.adjust.answers import Answers
from dspark_sglang.adjust.grammars import GrammarWalk
from dspark_sglang.adjust.prefill import SettledSampler, leave_an_end
from dspark_sglang.adjust.processors import ProcessedRequests
from dspark_sglang.adjust.seeds import SeededRequests, following, move_on
from dspark_sglang.adjust.settings import Biases
from dspark_sglang.adjust.step import StepAdjustments
from sgl_dspark.sampling.block import DraftBlock
from tests.support import pair
from tests.unit.plugin.test_sampling_bridge import window_of

CPU = torch.device("cpu")


def request(prompt: int = 4, **sampling: Any) -> SimpleNamespace:
    grammar = sampling.pop("grammar", None)
    processor = sampling.pop("processor", None)
    params = SamplingParams(**sampling)
    params.normalize(pair.tokenizer())
    return SimpleNamespace(
        sampling_params=params, origin_input_ids=[0] * prompt, grammar=grammar, custom_logit_processor=processor
    )


@pytest.mark.parametrize(
    ("sampling", "flags"),
    [
        ({}, 0),
        ({"temperature": 0, "sampling_seed": 3}, 0),
        ({"sampling_seed": 0}, t.SEEDED),
        ({"frequency_penalty": 0.1}, t.PENALISED),
        ({"repetition_penalty": 1.1, "min_new_tokens": 3}, t.PENALISED | t.SHORTEST),
        ({"logit_bias": {"4": 1.0}}, t.BIASED),
        ({"logit_bias": {}}, 0),
        ({"grammar": object()}, t.CONSTRAINED),
        ({"processor": "code"}, t.PROCESSED),
    ],
)
def test_traits(sampling: dict[str, Any], flags: int) -> None:
    found = t.RequestTraits(3).look([request(**sampling)], np.array([2]), np.array([5]))
    assert found.tolist() == [flags]


def test_a_slot_is_read_again_for_its_next_occupant_only() -> None:
    traits = t.RequestTraits(2)
    slots = np.array([1])
    assert traits.look([request(presence_penalty=1.0)], slots, np.array([7])).any()
    assert traits.look([request()], slots, np.array([7])).any()
    assert not traits.look([request()], slots, np.array([8])).any()


def test_answers_grow_and_count() -> None:
    answers, rng = Answers(40, 11, CPU), np.random.default_rng(0)
    known: dict[int, list[int]] = {}
    for slot in (3, 39, *range(10, 22)):
        earlier = rng.integers(0, 11, slot % 3).tolist()
        first = int(rng.integers(0, 11))
        answers.begin(slot, slot + 100, earlier, torch.tensor(first))
        known[slot] = [*earlier, first]
    slots = np.array(list(known))
    for _ in range(120):
        tokens = torch.from_numpy(rng.integers(0, 11, (len(slots), 5)))
        emitted = torch.from_numpy(rng.integers(1, 6, len(slots)))
        ends = [len(known[s]) for s in slots]
        answers.append(answers.rows(slots), torch.tensor(ends), tokens, emitted, max(ends) + 5)
        for row, slot in enumerate(slots):
            known[slot] += tokens[row, : emitted[row]].tolist()
    longest = max(map(len, known.values()))
    assert longest > 256
    assert answers.knows(slots, slots + 100).all()
    assert not answers.knows(slots, slots + 101).any()
    rows = answers.rows(slots)
    for row, slot in enumerate(slots):
        listed = answers.tokens(rows, longest)[row].tolist()
        assert listed[: len(known[slot])] == known[slot]
        assert set(listed) <= set(known[slot])
        assert answers.counts(rows)[row].tolist() == np.bincount(known[slot], minlength=11).tolist()
    answers.begin(3, 999, [], torch.tensor(4))
    assert answers.counts(answers.rows(np.array([3])))[0].tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]


@pytest.fixture(scope="module")
def backend() -> XGrammarGrammarBackend:
    tokenizer = pair.tokenizer()
    return XGrammarGrammarBackend(tokenizer, len(tokenizer), [tokenizer.eos_token_id])


def test_a_walk_masks_each_row_and_leaves_the_matcher_where_it_was(backend: XGrammarGrammarBackend) -> None:
    tokenizer, size = pair.tokenizer(), len(pair.tokenizer())
    grammar = backend.dispatch_regex("[0-9]{2}")
    one, two, letter = (tokenizer.encode(c)[0] for c in ("1", "2", "a"))
    end = tokenizer.eos_token_id
    window = window_of([4, 2, 4])
    logits = torch.zeros(10, size)
    walk = GrammarWalk({0: grammar, 2: grammar.copy()}, 4, size)
    # Request 0 drafts "1", "2", the end; request 2 a letter, which the grammar forbids.
    walk.apply(logits, window, [[one, two, end], [0, 0, 0], [letter, one, one]])
    walk.finish()
    allowed = [set(torch.isfinite(row).nonzero().view(-1).tolist()) for row in logits]
    assert {one, two} <= allowed[0]
    assert letter not in allowed[0]
    assert {one, two} <= allowed[1]
    assert end not in allowed[1]
    assert allowed[2] == {end}
    # After the end, and after a forbidden draft, nothing is looked at any more; a neighbour is not touched.
    assert len(allowed[4]) == len(allowed[5]) == size
    assert allowed[6] == allowed[0]
    assert grammar.accepted_tokens == []
    grammar.accept_token(one)
    grammar.accept_token(two)
    grammar.accept_token(end)
    assert grammar.is_terminated()


def test_a_walk_beside_a_draft_is_the_same_walk(backend: XGrammarGrammarBackend) -> None:
    tokenizer, size = pair.tokenizer(), len(pair.tokenizer())
    one, letter = tokenizer.encode("1")[0], tokenizer.encode("a")[0]
    grammar = backend.dispatch_regex("[0-9]{3}")
    walk = GrammarWalk({0: grammar}, 4, size)
    step = StepAdjustments(np.array([True]), None, Biases({}, {}), walk, None, None)
    draft = step.for_draft(None)
    assert draft is not None
    candidates = torch.tensor([[letter, one, 5]])
    flat = torch.zeros(1, 3)
    drafts: list[torch.Tensor] = []
    for slot in range(3):
        found = draft.adjust(slot, flat, candidates, drafts)
        assert torch.isfinite(found).tolist() == [[False, True, False]]
        drafts.append(torch.tensor([one]))
    # Three digits are written: of these candidates none may follow, so the draft keeps its own law.
    window, logits = window_of([4]), torch.zeros(4, size)
    block = DraftBlock(torch.stack(drafts, 1), torch.zeros(1, 3))
    step.apply(logits, window, block)
    assert torch.isfinite(logits[3]).nonzero().view(-1).tolist() == [tokenizer.eos_token_id]
    assert grammar.accepted_tokens == []


def test_a_complete_grammar_wins_over_the_least_length(backend: XGrammarGrammarBackend) -> None:
    """Before it is complete its end is barred; then nothing else is allowed, and a row must have something to draw."""
    tokenizer, size = pair.tokenizer(), len(pair.tokenizer())
    one, end = tokenizer.encode("1")[0], tokenizer.eos_token_id
    walk = GrammarWalk({0: backend.dispatch_regex("[0-9]{0,2}")}, 4, size)
    barred = Biases({}, {0: (torch.tensor([end]), 4)})
    step = StepAdjustments(np.array([True]), None, barred, walk, None, None)
    window, logits = window_of([4]), torch.zeros(4, size)
    step.apply(logits, window, DraftBlock(torch.tensor([[one, one, end]]), torch.zeros(1, 3)))
    allowed = [set(torch.isfinite(row).nonzero().view(-1).tolist()) for row in logits]
    assert one in allowed[0]
    assert end not in allowed[0] | allowed[1]
    assert allowed[2] == {end}


def test_a_first_token_that_may_be_nothing_is_an_end() -> None:
    low = float("-inf")
    logits = torch.tensor([[low, low, low], [low, 0.5, low], [low, low, low]])
    leave_an_end(logits, torch.tensor([2, 2, 0]))
    assert logits.tolist() == [[low, low, 0.0], [low, 0.5, low], [0.0, low, low]]
    tokenizer = SimpleNamespace(eos_token_id=7)
    assert t.end_token(SimpleNamespace(eos_token_ids={5, 3}, tokenizer=tokenizer)) == 3
    assert t.end_token(SimpleNamespace(eos_token_ids=None, tokenizer=tokenizer)) == 7
    assert t.end_token(SimpleNamespace(eos_token_ids=None, tokenizer=None)) == 0


def test_draft_without_anything_left_keeps_its_law() -> None:
    step = StepAdjustments(np.array([True]), None, Biases({}, {0: (torch.tensor([1, 2]), 2)}), None, None, None)
    draft = step.for_draft(None)
    assert draft is not None
    logits = torch.tensor([[0.5, 0.25]])
    assert draft.adjust(0, logits, torch.tensor([[1, 2]]), []).tolist() == logits.tolist()
    assert draft.adjust(0, logits, torch.tensor([[1, 3]]), []).tolist() == [[float("-inf"), 0.25]]
    # Two tokens are missing to the least length: the third slot may end the answer.
    assert draft.adjust(2, logits, torch.tensor([[1, 3]]), []).tolist() == logits.tolist()


def test_biases_and_least_lengths_touch_their_own_rows() -> None:
    window = window_of([2, 3])
    biases = Biases({0: (torch.tensor([3]), torch.tensor([1.5]))}, {1: (torch.tensor([0]), 2)})
    logits = torch.zeros(5, 4)
    StepAdjustments(np.array([True, True]), None, biases, None, None, None).apply(logits, window, None)
    low = float("-inf")
    assert logits.tolist() == [[0, 0, 0, 1.5], [0, 0, 0, 1.5], [low, 0, 0, 0], [low, 0, 0, 0], [0, 0, 0, 0]]


def test_seeded_requests_of_a_part_of_the_batch() -> None:
    seeded = SeededRequests(torch.tensor([1, 3, 4]), torch.tensor([10, 30, 40]), torch.tensor([5, 6, 7]))
    part = seeded.select(torch.tensor([0, 3, 4, 6]))
    assert part is not None
    assert part.places.tolist() == [1, 2]
    assert part.seeds.tolist() == [30, 40]
    assert torch.equal(part.uniforms(4), seeded.uniforms(4)[1:])
    assert seeded.mask(5).tolist() == [False, True, False, True, True]
    assert seeded.select(torch.tensor([0, 2])) is None


def test_each_of_several_answers_has_its_own_seed() -> None:
    """The seed moves on with each answer that is sent, over all of int64, and stays where one answer is asked."""
    for seed in (0, 7, -1, 2**63 - 1, -(2**63)):
        several, alone = SamplingParams(n=3, sampling_seed=seed), SamplingParams(n=1, sampling_seed=seed)
        seeds = []
        for _ in range(64):
            seeds.append(several.sampling_seed)
            move_on(several)
            move_on(alone)
        assert seeds[:2] == [seed, following(seed)]
        assert len(set(seeds)) == 64
        several.verify(10)
        assert alone.sampling_seed == seed
    unseeded = SamplingParams(n=3)
    move_on(unseeded)
    assert unseeded.sampling_seed is None


def test_the_answers_to_one_prompt_do_not_share_their_uniforms() -> None:
    seeds = [5]
    for _ in range(3):
        seeds.append(following(seeds[-1]))
    width = 4000
    one = torch.tensor([0])
    found = torch.stack([SeededRequests(one, torch.tensor([s]), one).uniforms(width)[0] for s in seeds])
    assert found.unique().numel() == found.numel()
    assert (torch.corrcoef(found) - torch.eye(4)).abs().max() < 5 / width**0.5


@pytest.mark.parametrize("top_k", [2, 5, 2048])
def test_a_first_token_of_tied_logits_is_the_same_alone_and_beside_a_sampled_neighbour(top_k: int) -> None:
    """SGLang's sampler takes a greedy row of a mixed batch from a sort, which orders ties as it likes."""
    vocab = 2048

    class Sampler:
        def _preprocess_logits(self, logits: torch.Tensor, _: Any) -> torch.Tensor:
            return logits

        def __call__(self, output: Any, info: Any, return_logprob: bool, **named: Any) -> torch.Tensor:
            self.named = named
            probs = output.next_token_logits.softmax(-1)
            return torch.topk(probs, top_k).indices[:, 0] if not info.is_all_greedy else probs.argmax(-1)

    generator = torch.Generator().manual_seed(4)
    inner = Sampler()
    sampler = SettledSampler(inner)
    for _ in range(20):
        logits = torch.zeros(3, vocab)
        logits[:, torch.randperm(vocab, generator=generator)[:3]] = torch.tensor([1.0, 1.0, 0.5])
        found = []
        for top_ks in ([1, 1, 1], [1, top_k, 1]):
            info = SimpleNamespace(
                is_all_greedy=top_ks[1] == 1,
                is_any_greedy=True,
                top_ks=torch.tensor(top_ks),
                has_custom_logit_processor=False,
            )
            found.append(sampler(SimpleNamespace(next_token_logits=logits.clone()), info, True)[[0, 2]].tolist())
        assert found[0] == found[1]
        # What log-probabilities are told of is the whole law.
        assert torch.equal(inner.named["logprob_logits"], logits)


def test_what_was_prepared_for_a_prefill_that_was_not_sampled_is_dropped() -> None:
    sampler = SettledSampler(None)
    sampler.seeded = SeededRequests(torch.tensor([0]), torch.tensor([1]), torch.tensor([2]))
    sampler.ends = torch.ones(1)
    sampler.processed = ProcessedRequests({}, [], {}, {})
    adjuster: Any = SimpleNamespace(_sampler=sampler, _look=lambda _: (None, None, np.zeros(3, np.uint8)))
    batch: Any = SimpleNamespace(reqs=[None] * 3)
    Adjuster.before_prefill(adjuster, batch)
    assert sampler.seeded is None
    assert sampler.ends is None
    assert sampler.processed is None
