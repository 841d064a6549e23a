"""What a server that ranks on the device and replays graphs must satisfy, in half precision too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import requests

from tests.support import arms, joint_law, pair
from tests.support.server import ServerProcess
from tests.support.teacher_forcing import judging_request, shortfalls

ALPHA = 1e-4
# Logits of the pair reach 16, where bf16 has steps of 1/16 and a token beside the best is seldom within half a nat.
MARGIN_NATS, MOST_BESIDE = 0.5, 0.02
# Fewer drafts than a block of each of these requests has, so that the device has to rank.
AT_ONCE, BUDGET, SHORTLIST = 8, 20, 64
FILTERS = {"top_k": 20, "top_p": 0.9, "min_p": 0.05}


def flags(target: Path, dtype: str) -> list[str]:
    """Serve ``target`` as the tests serve the fixture pair; of a flag that is given twice the last counts."""
    return [*pair.SERVER_FLAGS, "--model-path", str(target), "--dtype", dtype, "--max-running-requests", str(AT_ONCE)]


def dspark_flags(target: Path, draft: Path, dtype: str) -> list[str]:
    """Draft too, under the adaptive policy: the vanilla head over a shortlist, which has a kernel of its own."""
    own = ["--speculative-draft-model-path", str(draft), "--step-time-profile", "off"]
    return [*flags(target, dtype), *own, "--shortlist", str(SHORTLIST), "--max-verify-budget", str(BUDGET)]


def greedy_requests(count: int) -> dict[str, pair.Request]:
    """Ask some of the pair's prompts for greedy answers."""
    return dict(list(arms.greedy_requests().items())[:count])


def check_ranked_in_graphs(server: ServerProcess) -> None:
    """Blocks were cut by rank, some of their drafts accepted, and no step ran without its graphs."""
    state = requests.get(f"{server.url}/dspark/state", timeout=60).json()
    assert state["totals"]["drafted_steps"] > 0
    assert state["mean_accept_len"] > 1.5
    assert 1 < state["mean_verify_len"] < 8
    assert not [name for name in state["fallbacks"] if "graph" in name], state["fallbacks"]


def check_laws(server: ServerProcess) -> None:
    """Test the joint law of sampled answers, plain and under all filters; their first tokens are SGLang's sampler's."""
    for filters in ({}, FILTERS):
        result = joint_law.sampled(server, pair.prompts()[8], ALPHA, **filters)
        assert result.power > 0.9
        assert result.p_value > ALPHA


def check_best_tokens(plain: ServerProcess, wanted: dict[str, pair.Request], answers: dict[str, Any]) -> None:
    """Let the target alone judge greedy answers: each token the best of its place, up to rounding at near ties."""
    texts = {name: answers[name]["output_ids"] for name in wanted}
    prompts = {name: request.payload["input_ids"] for name, request in wanted.items()}
    judged = arms.answer_all(plain, {name: judging_request(prompts[name], text) for name, text in texts.items()})
    found = [short for name, text in texts.items() for short in shortfalls(judged[name], text)]
    assert max(found) < MARGIN_NATS
    assert sum(short > 0 for short in found) <= MOST_BESIDE * len(found)
