"""Whatever breaks beside the output path costs speed and is counted; what comes out is the target's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests

from tests.integration.conftest import PlainAnswers
from tests.support import arms, joint_law, pair
from tests.support.faults import write_foreign_draft
from tests.support.server import ServerProcess

pytestmark = pytest.mark.server
ALPHA = 1e-4


@pytest.fixture(scope="module")
def broken(plain: PlainAnswers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serve the pair with every fault of `tests.support.faults`."""
    folder = tmp_path_factory.mktemp("broken")
    flags = [*pair.SERVER_FLAGS, "--speculative-draft-model-path", str(pair.DRAFT), "--step-time-profile", "off"]
    hook = {"SGL_DSPARK_TEST_HOOK": "tests.support.faults:inject"}
    with ServerProcess(flags, folder / "log", **pair.SERVER_ENVIRONMENT, **hook).serving() as server:
        yield server
        server.wait_until_idle()
        server.flush_cache()
        assert server.load()["num_used_tokens"] == 0
        assert "SGL_DSPARK_TEST_HOOK is set" in server.log()


def test_greedy_text_is_the_targets(broken: ServerProcess, plain: PlainAnswers) -> None:
    """Cold, warm, with requests taken out for lack of memory, and with settings that change logits."""
    for wanted, known, workers in (
        (arms.greedy_requests(), plain.greedy, arms.CONCURRENCY),
        (arms.burst_requests(), plain.burst, arms.BURST),
        (dict(list(arms.greedy_requests().items())[:60]), plain.greedy, 3),
        ({n: r for n, r in arms.adjusted_requests().items() if n in plain.adjusted}, plain.adjusted, arms.CONCURRENCY),
    ):
        answers = arms.answer_all(broken, wanted, workers)
        different = [name for name in answers if arms.essence(answers[name]) != arms.essence(known[name])]
        assert not different


def test_sampled_tokens_have_the_targets_law(broken: ServerProcess) -> None:
    result = joint_law.sampled(broken, pair.prompts()[8], ALPHA)
    assert result.power > 0.9
    assert result.p_value > ALPHA


def test_each_fault_is_counted_by_its_name(broken: ServerProcess) -> None:
    fallbacks = requests.get(f"{broken.url}/dspark/state", timeout=60).json()["fallbacks"]
    for name in ("nan_confidence", "calibration_drift", "confidence_late", "verdict_without_step"):
        assert fallbacks.get(name, 0) > 0, fallbacks


@pytest.fixture(scope="module")
def foreign(plain: PlainAnswers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serve the target with a draft whose weights belong to another model, which no check at the start can see."""
    folder = tmp_path_factory.mktemp("foreign")
    draft = write_foreign_draft(folder / "draft")
    flags = [*pair.SERVER_FLAGS, "--speculative-draft-model-path", str(draft), "--step-time-profile", "off"]
    with ServerProcess(flags, folder / "log", **pair.SERVER_ENVIRONMENT).serving() as server:
        yield server


def test_a_draft_of_another_model_costs_only_speed_and_is_counted(foreign: ServerProcess, plain: PlainAnswers) -> None:
    """Verified in whole blocks, and as the planner likes, which learns that nothing of it survives."""
    asked = dict(list(arms.greedy_requests().items())[:60])
    for policy in ("static", "adaptive"):
        foreign.ask("/dspark/policy", {"policy": policy})
        for name, answer in arms.answer_all(foreign, asked).items():
            assert arms.essence(answer) == arms.essence(plain.greedy[name]), name
    state = requests.get(f"{foreign.url}/dspark/state", timeout=60).json()
    assert state["fallbacks"]["low_gain"] > 0, state["fallbacks"]
    assert state["calibration"]["greedy"]["drifts"] > 0
    assert state["totals"]["drafts_accepted"] < 0.01 * state["totals"]["drafts_verified"]


def test_sampled_tokens_beside_a_draft_of_another_model(foreign: ServerProcess) -> None:
    foreign.ask("/dspark/policy", {"policy": "static"})
    result = joint_law.sampled(foreign, pair.prompts()[8], ALPHA)
    assert result.power > 0.9
    assert result.p_value > ALPHA
