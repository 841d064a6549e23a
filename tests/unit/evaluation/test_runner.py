"""Offline speculative decoding says what the target alone would say, whatever the draft and the batch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from sgl_dspark.config import DrafterConfig
from sgl_dspark.data.decode import BatchGenerator, Prompt
from sgl_dspark.evaluation.runner import Decoding, Sample, SpeculativeRunner, _verify_lens
from sgl_dspark.evaluation.sides import BlockSide, ChainSide, DraftSide
from sgl_dspark.model.drafter import Drafter
from sgl_dspark.model.eagle3 import Eagle3Drafter
from sgl_dspark.model.target import TargetModel
from sgl_dspark.sampling.block import DraftBlock
from tests.support.tiny_target import HIDDEN, VOCAB, write_tiny_target

PROMPTS = [(1, 9, 4, 20 + i, *range(30, 30 + i % 4)) for i in range(12)]


KINDS = ("block", "chain")
GREEDY = Decoding(temperature=0.0, max_new_tokens=20, seed=0)
SAMPLED = Decoding(temperature=1.0, max_new_tokens=20, seed=3)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TargetModel:
    folder: Path = tmp_path_factory.mktemp("target")
    write_tiny_target(folder)
    return TargetModel.from_dir(folder, torch.float32)


def make_side(target: TargetModel, kind: str) -> DraftSide:
    torch.manual_seed(1)
    rank = 8 if kind == "block" else 0
    config = DrafterConfig(
        hidden_size=HIDDEN, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, vocab_size=VOCAB, rms_norm_eps=1e-6, rope_theta=1e4, max_position_embeddings=256, gamma=4,
        mask_token_id=0, target_layer_ids=(0, 2), num_target_layers=4, markov_rank=rank,
        markov_head_type="gated" if rank else None, enable_confidence_head=rank > 0,
        confidence_head_with_markov=rank > 0,
    )  # fmt: skip
    draft = Drafter(config) if rank else Eagle3Drafter(config)
    draft.share_embeddings(target.embed, target.lm_head)
    return BlockSide(draft.eval()) if isinstance(draft, Drafter) else ChainSide(draft.eval())


def answers(target: TargetModel, kind: str, rows: int, decoding: Decoding) -> list[Sample]:
    return SpeculativeRunner(target, make_side(target, kind), rows, 64).run(PROMPTS, decoding)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 5])
def test_greedy_output_is_the_targets_own(target: TargetModel, kind: str, rows: int) -> None:
    generator = BatchGenerator(target, (), rows=4, max_positions=64, max_new_tokens=20)
    wanted = {r.prompt.ids: r.ids[r.prompt_len :].tolist() for r in generator.run([Prompt(p, 0.0) for p in PROMPTS])}
    found = answers(target, kind, rows, GREEDY)
    assert [sample.tokens for sample in found] == [wanted[prompt] for prompt in PROMPTS]


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_account_for_every_token(target: TargetModel, kind: str) -> None:
    for sample in answers(target, kind, 3, SAMPLED):
        emitted = 1 + sum(r.emitted for r in sample.rounds)
        ended = sample.tokens[-1] in target.config.eos_token_ids
        assert emitted == len(sample.tokens) if ended else emitted >= len(sample.tokens) == 20
        assert all(1 <= r.emitted <= 5 for r in sample.rounds)
        assert len(sample.logits) == len(sample.rounds)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_is_a_function_of_its_seed_and_not_of_its_company(target: TargetModel, kind: str) -> None:
    alone, together = answers(target, kind, 1, SAMPLED), answers(target, kind, 6, SAMPLED)
    assert [s.tokens for s in alone] == [s.tokens for s in together]
    assert [s.rounds for s in alone] == [s.rounds for s in together]
    other = answers(target, kind, 1, Decoding(temperature=1.0, max_new_tokens=20, seed=4))
    assert [s.tokens for s in alone] != [s.tokens for s in other]


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_tokens_follow_the_targets_law(target: TargetModel, kind: str) -> None:
    prompt, count = PROMPTS[0], 5000
    runner = SpeculativeRunner(target, make_side(target, kind), 64, 32)
    samples = runner.run([prompt] * count, Decoding(temperature=1.0, max_new_tokens=3, seed=0))
    hidden, _ = target.forward(torch.tensor([prompt]), target.empty_cache(1, 32))
    first = target.logits(hidden[0, -1]).softmax(-1)
    chosen = int(first.argmax())
    hidden, _ = target.forward(torch.tensor([[*prompt, chosen]]), target.empty_cache(1, 32))
    second = target.logits(hidden[0, -1]).softmax(-1)
    # The second token is the first that a draft had a say in.
    seen = Counter(s.tokens[1] for s in samples if s.tokens[0] == chosen and len(s.tokens) > 1)
    total = sum(seen.values())
    assert total > 250
    expected = second * total
    common = expected >= 5
    rest = 1.0 - float(second[common].sum())
    cells = [(seen[int(t)], float(expected[t])) for t in common.nonzero().flatten()]
    cells.append((total - sum(n for n, _ in cells), rest * total))
    statistic = sum((n - e) ** 2 / e for n, e in cells if e > 0)
    # 0.9999 quantile of chi-square, by Wilson and Hilferty.
    freedom = len(cells) - 1
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.719 * (2 / (9 * freedom)) ** 0.5) ** 3


def test_a_threshold_verifies_less_and_stays_lossless(target: TargetModel) -> None:
    whole = answers(target, "block", 2, GREEDY)
    cut = answers(target, "block", 2, Decoding(temperature=0.0, max_new_tokens=20, seed=0, threshold=0.5))
    assert [s.tokens for s in whole] == [s.tokens for s in cut]
    assert all(r.proposed == 4 or r.num_correct_drafts == r.proposed for s in whole for r in s.rounds)
    assert sum(r.proposed for s in cut for r in s.rounds) < sum(r.proposed for s in whole for r in s.rounds)


def test_a_block_is_cut_at_the_first_slot_below_the_threshold() -> None:
    logits = torch.tensor([[2.0, -2.0, 2.0], [2.0, 2.0, 2.0], [-2.0, 2.0, 2.0]])
    block = DraftBlock(torch.zeros(3, 3, dtype=torch.long), logits)
    assert _verify_lens(block, 0.5).tolist() == [2, 4, 1]
    assert _verify_lens(block, 0.0).tolist() == [4, 4, 4]
    # The threshold itself is enough.
    assert _verify_lens(DraftBlock(block.tokens, torch.zeros(3, 3)), 0.5).tolist() == [4, 4, 4]


def test_a_shortlist_stays_lossless(target: TargetModel) -> None:
    whole = answers(target, "block", 2, GREEDY)
    side = make_side(target, "block")
    assert isinstance(side, BlockSide)
    short = SpeculativeRunner(target, BlockSide(side.drafter, shortlist=3), 2, 64).run(PROMPTS, GREEDY)
    assert [s.tokens for s in whole] == [s.tokens for s in short]
    sampled = SpeculativeRunner(target, BlockSide(side.drafter, shortlist=3), 2, 64).run(PROMPTS, SAMPLED)
    assert all(sample.tokens for sample in sampled)


def test_prompts_without_room_get_an_empty_answer(target: TargetModel) -> None:
    runner = SpeculativeRunner(target, make_side(target, "block"), 2, 8)
    found = runner.run([(1, 2), tuple(range(8)), (3, 4)], GREEDY)
    assert found[1].tokens == []
    assert len(found[0].tokens) == len(found[2].tokens) == 6 or found[0].tokens[-1] in target.config.eos_token_ids
