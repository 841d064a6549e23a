"""A real server on the device: DSPARK's greedy text is the target's own, and graphs really serve."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests

from tests.support import arms, pair
from tests.support.server import ServerProcess

pytestmark = [pytest.mark.gpu, pytest.mark.server]
PROMPTS = 60


@pytest.fixture(autouse=True)
def _sglang() -> None:
    pytest.importorskip("sglang")


def test_greedy_text_in_fp32_is_the_targets(tmp_path: Path) -> None:
    """In fp32 attention is torch's; everything else is as it serves."""
    wanted = dict(list(arms.greedy_requests().items())[:PROMPTS])
    with ServerProcess(
        ["--plain", *pair.SERVER_FLAGS], tmp_path / "plain", **pair.SERVER_ENVIRONMENT
    ).serving() as plain:
        known = arms.answer_all(plain, wanted)
    flags = [*pair.SERVER_FLAGS, "--speculative-draft-model-path", str(pair.DRAFT), "--step-time-profile", "off"]
    with ServerProcess(flags, tmp_path / "dspark", **pair.SERVER_ENVIRONMENT).serving() as server:
        answers = arms.answer_all(server, wanted)
    different = [name for name in answers if arms.essence(answers[name]) != arms.essence(known[name])]
    assert not different


def test_a_pair_of_head_dim_64_is_served_from_graphs(tmp_path: Path) -> None:
    """Random weights in bf16: nothing is accepted for its merit, but every step runs as on a large model."""
    from tests.support.wide_pair import make_wide_pair

    target, draft = make_wide_pair(tmp_path)
    flags = ["--model-path", str(target), "--speculative-draft-model-path", str(draft), "--dtype", "bfloat16"]
    flags += [
        "--step-time-profile",
        "off",
        "--policy",
        "static",
        "--max-running-requests",
        "8",
        "--skip-tokenizer-init",
    ]
    with ServerProcess(flags, tmp_path / "log", **pair.SERVER_ENVIRONMENT).serving() as server:
        wanted = {f"p{i}": pair.generate([7 + i] * (5 + 9 * i), max_new_tokens=40, ignore_eos=True) for i in range(8)}
        answers = arms.answer_all(server, wanted)
        state = requests.get(f"{server.url}/dspark/state", timeout=60).json()
    assert all(len(answer["output_ids"]) == 40 for answer in answers.values())
    assert state["totals"]["drafted_steps"] > 0
    assert not [name for name in state["fallbacks"] if "graph" in name], state["fallbacks"]
