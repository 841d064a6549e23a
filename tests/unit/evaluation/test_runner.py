"""Batch-1 speculative decoding says what the target alone would say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sgl_dspark.config import DrafterConfig
from sgl_dspark.evaluation.runner import SpeculativeRunner
from sgl_dspark.model.drafter import Drafter
from sgl_dspark.training.generate import BatchGenerator, Prompt
from sgl_dspark.training.target import TargetModel
from tests.support.tiny_target import HIDDEN, VOCAB, write_tiny_target

PROMPTS = [(1, 9, 4, 20 + i, *range(30, 30 + i % 4)) for i in range(12)]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> SpeculativeRunner:
    folder: Path = tmp_path_factory.mktemp("target")
    write_tiny_target(folder)
    target = TargetModel.from_dir(folder, torch.float32)
    torch.manual_seed(1)
    config = DrafterConfig(
        hidden_size=HIDDEN, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, vocab_size=VOCAB, rms_norm_eps=1e-6, rope_theta=1e4, max_position_embeddings=256, gamma=4,
        mask_token_id=0, target_layer_ids=(0, 2), num_target_layers=4, markov_rank=8, markov_head_type="gated",
        enable_confidence_head=True, confidence_head_with_markov=True,
    )  # fmt: skip
    drafter = Drafter(config)
    drafter.share_embeddings(target.embed, target.lm_head)
    return SpeculativeRunner(target, drafter.eval())


def test_greedy_output_is_the_targets_own(runner: SpeculativeRunner) -> None:
    generator = BatchGenerator(runner.target, (), rows=4, max_positions=64, max_new_tokens=20)
    wanted = {r.prompt.ids: r.ids[r.prompt_len :].tolist() for r in generator.run([Prompt(p, 0.0) for p in PROMPTS])}
    for prompt in PROMPTS:
        sample = runner.run(prompt, temperature=0.0, max_new_tokens=20, seed=0)
        assert sample.tokens == wanted[prompt]


def test_rounds_account_for_every_token(runner: SpeculativeRunner) -> None:
    for seed, prompt in enumerate(PROMPTS):
        sample = runner.run(prompt, temperature=1.0, max_new_tokens=20, seed=seed)
        emitted = 1 + sum(r.emitted for r in sample.rounds)
        ended = sample.tokens[-1] in runner.target.config.eos_token_ids
        assert emitted == len(sample.tokens) if ended else emitted >= len(sample.tokens) == 20
        assert all(1 <= r.emitted <= 5 for r in sample.rounds)


def test_a_sample_is_a_function_of_its_seed(runner: SpeculativeRunner) -> None:
    first, again, other = (
        runner.run(PROMPTS[0], temperature=1.0, max_new_tokens=20, seed=seed).tokens for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
