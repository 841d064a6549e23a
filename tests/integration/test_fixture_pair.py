"""The committed fixture pair loads, speaks losslessly offline, and drafts as well as its card says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("reasoning_gym")
pytest.importorskip("transformers")

from sgl_dspark.data.decode import BatchGenerator
from sgl_dspark.data.direct import encode_prompts
from sgl_dspark.data.prompts import PromptRecord
from sgl_dspark.data.template import ChatEncoder
from sgl_dspark.demo.fixture_text import conversations
from sgl_dspark.evaluation.report import summarise
from sgl_dspark.evaluation.runner import Decoding, SpeculativeRunner
from sgl_dspark.evaluation.sides import load_side
from sgl_dspark.model.target import TargetModel

PAIR = Path(__file__).parents[1] / "fixtures" / "pair"
HELD_OUT_SEED = 2_000_000


def test_greedy_rounds_give_the_targets_tokens_at_the_stated_accept_length() -> None:
    target = TargetModel.from_dir(PAIR / "target", torch.float32)
    side = load_side(PAIR / "draft", target)
    records = [PromptRecord.of((question,)) for question, _ in conversations(HELD_OUT_SEED, 9)]
    encoder = ChatEncoder(PAIR / "target", target.config.eos_token_ids)
    prompts = encode_prompts(encoder, records, [0.0])
    generator = BatchGenerator(target, (), rows=9, max_positions=400, max_new_tokens=60)
    wanted = {r.prompt.id: r.ids[r.prompt_len :].tolist() for r in generator.run(prompts)}
    runner = SpeculativeRunner(target, side, rows=3)
    samples = runner.run([prompt.ids for prompt in prompts], Decoding(temperature=0.0, max_new_tokens=60))
    for prompt, sample in zip(prompts, samples, strict=True):
        assert sample.tokens == wanted[prompt.id]
    rounds = [r for sample in samples for r in sample.rounds]
    assert summarise(rounds, side.gamma).mean_accept_len >= 3.5
