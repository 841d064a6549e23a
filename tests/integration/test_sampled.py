"""Sampled text has the target's law: over 20,000 served tokens against the exact law of each, and joint laws.

The server draws from its own randomness, so a run fails by chance with probability ``ALPHA`` for each of the ten tests.
Power: at 20,000 tokens the test of uniforms sees Cohen's w = 0.06 with a power above 0.95; and the controls, which are
drawn by the shipped verifier after the served prefixes with a bias in its acceptance or its replacement, fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from sgl_dspark.sampling import rejection
from sgl_dspark.sampling.rejection import acceptance_probability
from tests.support import joint_law, pair
from tests.support.served import served_positions
from tests.support.server import ServerProcess, concurrently
from tests.support.token_tests import Outcome, TokenTests

pytestmark = pytest.mark.server
ALPHA = 1e-4
NUM_PROMPTS, WORKERS = 320, 40
# The controls need fewer tokens than the test they must fail.
CONTROL_TOKENS = 8_000


def serve(server: ServerProcess, **sampling: Any) -> list[list[int]]:
    requests = [pair.generate(p, temperature=1.0, max_new_tokens=100, **sampling) for p in pair.prompts(NUM_PROMPTS)]
    answers = concurrently(lambda request: server.ask(*request), requests, WORKERS)
    return [answer["output_ids"] for answer in answers]


def check(outcome: Outcome) -> None:
    assert outcome.samples >= 20_000
    assert outcome.power > 0.95
    assert all(p > ALPHA for p in outcome.p_values.values()), outcome


@contextmanager
def bias(name: str | None) -> Iterator[None]:
    """Bias the shipped verifier."""
    with pytest.MonkeyPatch.context() as patch:
        if name == "accepts half again too readily":
            patch.setattr(rejection, "acceptance_probability", lambda t, d: acceptance_probability(1.5 * t, d))
        if name == "replaces from the target":
            patch.setattr(
                rejection, "residual_law", lambda target, draft, _: (target, torch.zeros(len(target), dtype=torch.bool))
            )
        yield


CONTROLS = (None, "accepts half again too readily", "replaces from the target")


@pytest.fixture(scope="module")
def at_temperature_one(dspark: ServerProcess) -> dict[str | None, Outcome]:
    """Test what was served, and for each control what the verifier would have emitted after the same prefixes."""
    generator = torch.Generator().manual_seed(1)
    served, controls = TokenTests(seed=2), {name: TokenTests(seed=3) for name in CONTROLS}
    done = 0
    for part in served_positions(pair.prompts(NUM_PROMPTS), serve(dspark), generator=generator):
        served.add(part.tokens, part.laws, part.draft_laws)
        if done < CONTROL_TOKENS:
            for name, tests in controls.items():
                with bias(name):
                    tests.add(part.emitted_instead(generator), part.laws, part.draft_laws)
        done += len(part.tokens)
    return {"served": served.outcome(ALPHA), **{name: tests.outcome(ALPHA) for name, tests in controls.items()}}


def test_temperature_one(at_temperature_one: dict[str | None, Outcome]) -> None:
    assert at_temperature_one["served"].impossible == 0
    check(at_temperature_one["served"])


def test_the_shipped_verifier_passes_where_the_controls_fail(at_temperature_one: dict[str | None, Outcome]) -> None:
    assert at_temperature_one[None].samples >= CONTROL_TOKENS
    assert min(at_temperature_one[None].p_values.values()) > ALPHA


@pytest.mark.parametrize("control", CONTROLS[1:])
def test_a_biased_verifier_fails(at_temperature_one: dict[str | None, Outcome], control: str) -> None:
    assert min(at_temperature_one[control].p_values.values()) < 1e-6, at_temperature_one[control]


def test_top_p_and_top_k(dspark: ServerProcess) -> None:
    filters: dict[str, Any] = {"top_p": 0.9, "top_k": 20}
    generator, tests = torch.Generator().manual_seed(4), TokenTests(seed=5)
    for part in served_positions(pair.prompts(NUM_PROMPTS), serve(dspark, **filters), generator=generator, **filters):
        tests.add(part.tokens, part.laws, part.draft_laws)
    outcome = tests.outcome(ALPHA)
    # A token whose predecessors hold 0.9 up to rounding is in the set on one side only.
    assert outcome.impossible <= 3
    check(outcome)


@pytest.mark.parametrize("index", [8, 9])
def test_first_tokens_of_one_prompt_have_the_joint_law(dspark: ServerProcess, index: int) -> None:
    result = joint_law.sampled(dspark, pair.prompts()[index], ALPHA)
    assert result.samples == joint_law.SAMPLES
    assert result.dof >= 4
    assert result.power > 0.9
    assert result.p_value > ALPHA
