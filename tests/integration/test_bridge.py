"""SGLang's own DSPARK worker, planned by us, answers as the target alone does; on a CPU by `upstream_on_cpu`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest
import requests

from tests.integration.conftest import PlainAnswers
from tests.support import arms, pair, upstream_on_cpu
from tests.support.server import ServerProcess, serve_command, server_environment

pytestmark = pytest.mark.server

SOME = 48
FLAGS = [*pair.SERVER_FLAGS, "--speculative-draft-model-path", str(pair.DRAFT), "--step-time-profile", "off"]


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("bridge")
    path = os.pathsep.join(filter(None, (upstream_on_cpu.install(folder), os.environ.get("PYTHONPATH"))))
    server = ServerProcess(
        FLAGS, folder / "log", SGL_DSPARK_WORKER="bridge", PYTHONPATH=path, **pair.SERVER_ENVIRONMENT
    )
    with server.serving():
        yield server
    assert "DSpark bridge active" in server.log()


@pytest.mark.parametrize("policy", ["adaptive", "static"])
def test_greedy_answers_are_the_targets_own(bridge: ServerProcess, plain: PlainAnswers, policy: str) -> None:
    bridge.ask("/dspark/policy", {"policy": policy})
    asked = {f"prompt {i}": pair.generate(pair.prompts()[i]) for i in range(SOME)}
    try:
        for name, answer in arms.answer_all(bridge, asked).items():
            assert answer["output_ids"] == plain.greedy[name]["output_ids"], name
    finally:
        bridge.ask("/dspark/policy", {"policy": "adaptive"})


def test_it_plans_from_what_it_has_profiled_and_learned(bridge: ServerProcess) -> None:
    asked = {str(i): pair.generate(pair.prompts()[i], ignore_eos=True, max_new_tokens=120) for i in range(SOME)}
    emitted = sum(len(answer["output_ids"]) for answer in arms.answer_all(bridge, asked).values())
    assert emitted == SOME * 120
    shown = requests.get(f"{bridge.url}/dspark/state", timeout=60).json()
    assert shown["model"]["worker"] == "bridge"
    assert shown["step_time"]["source"] == "profiled while serving"
    assert shown["planner"]["profiling"] > 0
    assert "step_without_verdict" not in shown["fallbacks"]
    assert "verdict_without_step" not in shown["fallbacks"]
    decisions = [d for d in shown["decisions"] if d["tokens"] is not None]
    assert len({d["verify_tokens"] for d in decisions}) > 1
    for decision in decisions:
        drafts = decision["verify_tokens"] - decision["requests"]
        assert 0 <= drafts <= decision["budget"] <= 7 * decision["requests"]
        # Requests that had ended count no tokens.
        assert 0 <= decision["tokens"] <= decision["verify_tokens"]
    # Drafts are worth something, and the budget is well filled.
    assert shown["mean_accept_len"] > 1.5
    assert 0.5 < shown["predicted"]["tokens_ratio"] < 2.0
    assert shown["calibration"]["greedy"]["rounds"] > 0


def test_rounds_and_metrics_are_where_they_are_for_our_own_worker(bridge: ServerProcess) -> None:
    reply = requests.get(f"{bridge.url}/dspark/records", params={"after": 0}, timeout=60).json()
    assert reply["gamma"] == 7
    assert reply["count"] > 0
    text = requests.get(f"{bridge.url}/metrics", timeout=60).text
    counts = {line.split("{")[0]: line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith("dspark_")}
    assert float(counts["dspark_verified_tokens_total"]) > 0
    assert float(counts["dspark_accepted_tokens_total"]) > 0


def test_a_policy_that_sglang_cannot_follow_is_refused(bridge: ServerProcess) -> None:
    answer = bridge.post("/dspark/policy", {"policy": "threshold", "threshold": 0.5})
    assert answer.status_code == 400
    assert "policy: bridge mode serves adaptive and static, not threshold" in answer.text
    assert bridge.post("/dspark/policy", {"policy": "static", "verify_drafts": 2}).status_code == 400
    assert requests.get(f"{bridge.url}/dspark/state", timeout=60).json()["policy"]["policy"] == "adaptive"


@pytest.mark.parametrize("choice", ["bridge", "upstream"])
def test_sglangs_worker_refuses_a_cpu_in_one_sentence(choice: str) -> None:
    done = subprocess.run(
        serve_command(*FLAGS),
        env=server_environment(SGL_DSPARK_WORKER=choice),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 2
    assert "DSpark speculative decoding only supports CUDA, NPU or XPU device." in done.stderr
    assert "Traceback" not in done.stderr
