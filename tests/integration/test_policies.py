"""Under every verify policy, and while they are switched between steps, the text is the target's and nothing else."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import requests
import torch

from tests.integration.conftest import PlainAnswers
from tests.integration.test_logprobs import FIELDS, same_entries
from tests.support import arms, joint_law, pair
from tests.support.served import served_positions
from tests.support.server import ServerProcess, concurrently
from tests.support.token_tests import TokenTests

pytestmark = pytest.mark.server
ALPHA = 1e-4
DEFAULT = {"policy": "adaptive", "min_gain": 0.02, "keep_gain": 0.0, "max_budget": None, "threshold": 0.0}
POLICIES: dict[str, dict[str, Any]] = {
    "adaptive": {},
    "never drafts, but for probes": {"min_gain": 10.0, "keep_gain": 10.0},
    "always drafts": {"min_gain": -1.0, "keep_gain": -1.0},
    "five drafts a step": {"max_budget": 5, "min_gain": -1.0, "keep_gain": -1.0},
    "early stop": {"policy": "early-stop"},
    "threshold": {"policy": "threshold", "threshold": 0.6},
    "two drafts": {"policy": "static", "verify_drafts": 2},
    "no drafts": {"policy": "static", "verify_drafts": 0},
    "whole blocks": {"policy": "static"},
}


def switch(server: ServerProcess, name: str) -> dict[str, Any]:
    answer = server.ask("/dspark/policy", {**DEFAULT, **POLICIES[name]})
    return dict(answer["policy"])


def state(server: ServerProcess) -> dict[str, Any]:
    return dict(requests.get(f"{server.url}/dspark/state", timeout=60).json())


@pytest.fixture(autouse=True)
def _restored(dspark: ServerProcess) -> Iterator[None]:
    yield
    switch(dspark, "adaptive")


@contextmanager
def switching(server: ServerProcess) -> Iterator[Counter[str]]:
    """Switch from policy to policy as fast as the server answers, until the block ends; counts the switches."""
    over, switches = threading.Event(), Counter[str]()

    def run() -> None:
        for name in itertools.cycle(POLICIES):
            if over.is_set():
                return
            switch(server, name)
            switches[name] += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield switches
    finally:
        over.set()
        thread.join()
    # Fewer would mean that the server answered without switching between steps.
    assert min(switches[name] for name in POLICIES) >= 3, switches


@pytest.mark.parametrize("name", POLICIES)
def test_greedy_text_and_logprobs(dspark: ServerProcess, plain: PlainAnswers, name: str) -> None:
    switch(dspark, name)
    before = state(dspark)["totals"]
    wanted = dict(itertools.islice(arms.greedy_requests().items(), 48))
    for asked, known in ((wanted, plain.greedy), (arms.logprob_requests(), plain.logprobs)):
        for key, answer in arms.answer_all(dspark, asked).items():
            assert arms.essence(answer) == arms.essence(known[key]), key
            for field in FIELDS if key.startswith("generate") else ():
                same_entries(answer["meta_info"][field], known[key]["meta_info"][field])
    after = state(dspark)["totals"]
    grew = {key: after[key] - before[key] for key in after}
    per_round = grew["verify_tokens"] / grew["rounds"]
    bounds = {
        "two drafts": (2.9, 3.0),
        "no drafts": (1.0, 1.0),
        "whole blocks": (7.9, 8.0),
        "always drafts": (1.5, 8.0),
    }
    least, most = bounds.get(name, (1.0, 8.0))
    assert least <= per_round <= most
    if name == "never drafts, but for probes":
        assert grew["plain_steps"] > 4 * grew["drafted_steps"]
    if name == "five drafts a step":
        # A probe may verify one whole block more.
        assert grew["verify_tokens"] - grew["rounds"] <= 5 * grew["steps"] + 7 * 0.02 * grew["verify_tokens"]


def test_greedy_text_while_policies_are_switched(dspark: ServerProcess, plain: PlainAnswers) -> None:
    groups = (
        (arms.greedy_requests(), plain.greedy),
        (arms.stopping_requests(plain.greedy), plain.stopping),
        (arms.length_requests(), plain.lengths),
    )
    with switching(dspark):
        for asked, known in groups:
            for key, answer in arms.answer_all(dspark, asked).items():
                assert arms.essence(answer) == arms.essence(known[key]), key


def sampled_law(server: ServerProcess, seed: int) -> None:
    """Serve prompts at temperature 1 and test every token against its exact law."""
    prompts = pair.prompts(320)
    asked = [pair.generate(p, temperature=1.0, max_new_tokens=100) for p in prompts]
    answers = [a["output_ids"] for a in concurrently(lambda request: server.ask(*request), asked, 40)]
    generator, tests = torch.Generator().manual_seed(seed), TokenTests(seed=seed)
    for part in served_positions(prompts, answers, generator=generator):
        tests.add(part.tokens, part.laws, part.draft_laws)
    outcome = tests.outcome(ALPHA)
    assert outcome.samples >= 20_000
    assert outcome.power > 0.95
    assert outcome.impossible == 0
    assert all(p > ALPHA for p in outcome.p_values.values()), outcome


def test_sampled_law_while_policies_are_switched(dspark: ServerProcess) -> None:
    with switching(dspark):
        sampled_law(dspark, 11)


@pytest.mark.parametrize("name", ["five drafts a step", "early stop", "threshold"])
def test_joint_law_of_the_first_tokens(dspark: ServerProcess, name: str) -> None:
    """The policies that look at confidences: whatever they trim, the first six tokens keep their joint law."""
    switch(dspark, name)
    result = joint_law.sampled(dspark, pair.prompts()[8], ALPHA)
    assert (result.samples, result.power > 0.9) == (joint_law.SAMPLES, True)
    assert result.p_value > ALPHA


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"policy": "fastest"}, "policy"),
        ({"policy": "static", "verify_drafts": 8}, "verify_drafts"),
        ({"policy": "static", "verify_drafts": -1}, "verify_drafts"),
        ({"threshold": 1.5}, "threshold"),
        ({"budget": 3}, "budget"),
        ({"min_gain": "much"}, "min_gain"),
        ([], "JSON object"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_by_field(dspark: ServerProcess, body: Any, named: str) -> None:
    before = state(dspark)["policy"]
    response = requests.post(f"{dspark.url}/dspark/policy", json=body, timeout=60)
    assert response.status_code == 400
    assert named in response.json()["error"]["message"]
    assert state(dspark)["policy"] == before


def test_the_state_shows_predicted_beside_actual(dspark: ServerProcess, plain: PlainAnswers) -> None:
    arms.answer_all(dspark, dict(itertools.islice(arms.greedy_requests().items(), 32)))
    shown = state(dspark)
    assert shown["step_time"]["source"] == "measured at start-up"
    assert shown["model"]["gamma"] == 7
    last = [d for d in shown["decisions"] if d["tokens"] is not None and d["actual_s"] is not None]
    assert last
    assert all(d["predicted_s"] > 0 and d["verify_tokens"] >= d["requests"] for d in last)
    assert shown["predicted"]["step_time_error"] is not None
    assert shown["predicted"]["tokens_ratio"] == pytest.approx(1.0, abs=0.25)
    totals = shown["totals"]
    assert totals["drafts_accepted"] <= totals["drafts_verified"] <= totals["verify_tokens"]
    assert totals["plain_steps"] + totals["drafted_steps"] == totals["steps"]
    assert totals["tokens"] == totals["live_rounds"] + totals["drafts_accepted"]
