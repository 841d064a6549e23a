"""What the GPU tests judge by, shown where there is no GPU: the pair they serve, and how answers are judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sgl_dspark.evaluation.runner import Decoding, SpeculativeRunner
from sgl_dspark.evaluation.sides import BlockSide
from sgl_dspark.model.checkpoint import load_drafter
from sgl_dspark.model.target import TargetModel
from tests.support.pair import DRAFT, TARGET, prompts
from tests.support.teacher_forcing import judging_request, shortfalls
from tests.support.wide_pair import DIM, make_wide_pair


def runner_of(target: Path, draft: Path) -> SpeculativeRunner:
    model = TargetModel.from_dir(target, torch.float32)
    shared = {"target_embed": model.embed, "target_lm_head": model.lm_head}
    return SpeculativeRunner(model, BlockSide(load_drafter(draft, dtype=torch.float32, device="cpu", **shared)))


def test_wider_heads_answer_and_accept_as_the_fixture(tmp_path: Path) -> None:
    target, draft = make_wide_pair(tmp_path, torch.float32)
    narrow, wide = runner_of(TARGET, DRAFT), runner_of(target, draft)
    assert (wide.target.config.head_dim, narrow.target.config.head_dim) == (DIM, DIM // 2)
    for index, prompt in enumerate(prompts(3)):
        decoding = Decoding(temperature=0.0, max_new_tokens=40, seed=index)
        (expected,), (found,) = (r.run([prompt], decoding) for r in (narrow, wide))
        assert found.tokens == expected.tokens
        assert [r.num_correct_drafts for r in found.rounds] == [r.num_correct_drafts for r in expected.rounds]


def reply(tokens: list[int], logprobs: list[float], best: list[float]) -> dict[str, Any]:
    """SGLang's: of the tokens from the last of the prompt on, the first without a log-probability."""
    own = [(None, 9, None), *((p, t, None) for p, t in zip(logprobs, tokens, strict=True))]
    return {
        "meta_info": {
            "input_token_logprobs": own,
            "input_top_logprobs": [None, *([(p, 1, None)] for p in best)],
        }
    }


def test_answers_are_judged_token_by_token() -> None:
    path, payload = judging_request([1, 2, 9], [5, 6])
    assert (path, payload["input_ids"], payload["logprob_start_len"]) == ("/generate", [1, 2, 9, 5, 6], 2)
    assert shortfalls(reply([5, 6], [-0.5, -2.0], [-0.5, -0.25]), [5, 6]) == [0.0, 1.75]
    with pytest.raises(ValueError, match="not of this answer"):
        shortfalls(reply([5, 7], [-0.5, -2.0], [-0.5, -0.25]), [5, 6])
