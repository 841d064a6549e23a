"""The CUDA path's host side on a real server: plans, device-side lengths and replays, with kernels in plain torch."""

from __future__ import annotations

import pytest
import requests

from tests.integration.conftest import PlainAnswers
from tests.support import arms, joint_law, pair
from tests.support.server import ServerProcess

pytestmark = pytest.mark.server
ALPHA = 1e-4
# Few requests at once: a replay here runs each recorded operation from Python.
MOST, PROMPTS = 4, 24


def served(tmp_path_factory: pytest.TempPathFactory, hook: str) -> ServerProcess:
    flags = [*pair.SERVER_FLAGS, "--speculative-draft-model-path", str(pair.DRAFT), "--step-time-profile", "off"]
    flags += ["--max-running-requests", str(MOST)]
    environment = {
        "SGL_DSPARK_TEST_HOOK": f"tests.support.device_path_on_cpu:{hook}",
        # Packed weights are opaque to what records operations; an accelerator has none.
        "SGL_DSPARK_PACK_WEIGHTS": "0",
    }
    log = tmp_path_factory.mktemp("device-path") / "log"
    return ServerProcess(flags, log, **pair.SERVER_ENVIRONMENT, **environment)


def fallbacks(server: ServerProcess) -> dict[str, int]:
    found: dict[str, int] = requests.get(f"{server.url}/dspark/state", timeout=60).json()["fallbacks"]
    return found


def check_greedy(server: ServerProcess, plain: PlainAnswers) -> None:
    """Cold, warm, and with requests taken out for lack of memory."""
    some = dict(list(arms.greedy_requests().items())[:PROMPTS])
    for wanted, known in ((some, plain.greedy), (some, plain.greedy), (arms.length_requests(), plain.lengths)):
        answers = arms.answer_all(server, wanted, MOST)
        different = [name for name in answers if arms.essence(answers[name]) != arms.essence(known[name])]
        assert not different


def test_replayed_steps_serve_the_target(plain: PlainAnswers, tmp_path_factory: pytest.TempPathFactory) -> None:
    with served(tmp_path_factory, "with_graphs").serving() as server:
        check_greedy(server, plain)
        state = requests.get(f"{server.url}/dspark/state", timeout=60).json()
        assert state["totals"]["drafted_steps"] > 0
        assert state["mean_accept_len"] > 2
        assert abs(state["predicted"]["tokens_ratio"] - 1) < 0.3
        assert not [name for name in state["fallbacks"] if "graph" in name], state["fallbacks"]
        result = joint_law.sampled(server, pair.prompts()[8], ALPHA)
        assert result.power > 0.9
        assert result.p_value > ALPHA
        adjusted = {n: r for n, r in arms.adjusted_requests().items() if n in plain.adjusted}
        arms.answer_all(server, dict(list(adjusted.items())[:4]), MOST)
        assert fallbacks(server).get("draft_graph_adjusted", 0) > 0


def test_steps_that_could_not_be_captured_serve_the_target(
    plain: PlainAnswers, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with served(tmp_path_factory, "without_graphs").serving(failing=True) as server:
        check_greedy(server, plain)
        counted = fallbacks(server)
        assert counted["draft_graph_failed"] > 0
        assert counted["target_graph_failed"] > 0
