"""The committed fixture pair loads, speaks losslessly offline, and drafts as well as its card says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("reasoning_gym")
pytest.importorskip("transformers")

from sgl_dspark.demo.fixture_text import conversations
from sgl_dspark.evaluation.report import summarise
from sgl_dspark.evaluation.runner import SpeculativeRunner
from sgl_dspark.model.checkpoint import load_drafter
from sgl_dspark.training.generate import BatchGenerator
from sgl_dspark.training.make_data import format_prompts
from sgl_dspark.training.target import TargetModel

PAIR = Path(__file__).parents[1] / "fixtures" / "pair"
HELD_OUT_SEED = 2_000_000


def test_greedy_rounds_give_the_targets_tokens_at_the_stated_accept_length() -> None:
    target = TargetModel.from_dir(PAIR / "target", torch.float32)
    drafter = load_drafter(
        PAIR / "draft",
        dtype=torch.float32,
        device="cpu",
        target_embed=target.embed,
        target_lm_head=target.lm_head,
    )
    records = [{"turns": [question]} for question, _ in conversations(HELD_OUT_SEED, 9)]
    prompts = format_prompts(PAIR / "target", records, [0.0])
    generator = BatchGenerator(target, (), rows=9, max_positions=400, max_new_tokens=60)
    wanted = {r.prompt.ids: r.ids[r.prompt_len :].tolist() for r in generator.run(prompts)}
    runner = SpeculativeRunner(target, drafter)
    rounds = []
    for prompt in prompts:
        sample = runner.run(prompt.ids, temperature=0.0, max_new_tokens=60, seed=0)
        assert sample.tokens == wanted[prompt.ids]
        rounds += sample.rounds
    assert summarise(rounds, drafter.config.gamma).mean_accept_len >= 3.5
