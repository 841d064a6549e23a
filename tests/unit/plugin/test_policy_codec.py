from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_sglang import policy_codec
from sgl_dspark.errors import ConfigError
from sgl_dspark.planner.config import POLICIES, PlannerConfig

GAMMA = 7


@given(
    st.sampled_from(POLICIES),
    st.none() | st.integers(0, GAMMA),
    st.floats(0, 1),
    st.none() | st.integers(0, 99),
    st.floats(-0.5, 2),
)
def test_what_is_encoded_is_decoded(
    policy: str, drafts: int | None, threshold: float, budget: int | None, gain: float
) -> None:
    body = {"policy": policy, "verify_drafts": drafts, "threshold": threshold, "max_budget": budget}
    body |= {"min_gain": gain, "keep_gain": -1.0}
    numbers = policy_codec.encode(body, policy_codec.shown(PlannerConfig()), GAMMA)
    assert all(isinstance(value, int | float) and not isinstance(value, bool) for value in numbers.values())
    assert all(policy_codec.is_ours(name) for name in numbers)
    decoded = policy_codec.decode(numbers, PlannerConfig(max_age=99))
    assert policy_codec.shown(decoded) == body
    assert decoded.max_age == 99


def test_what_is_left_out_stays_but_the_length_of_another_policy() -> None:
    current = policy_codec.shown(PlannerConfig("static", verify_drafts=2, min_gain=0.1))
    kept = policy_codec.decode(policy_codec.encode({"max_budget": 5}, current, GAMMA), PlannerConfig())
    assert (kept.policy, kept.verify_drafts, kept.max_budget, kept.min_gain) == ("static", 2, 5, 0.1)
    named = policy_codec.decode(policy_codec.encode({"policy": "static"}, current, GAMMA), PlannerConfig())
    assert (named.verify_drafts, named.min_gain) == (None, 0.1)


def test_what_cannot_change_while_serving_is_refused_by_the_worker_too() -> None:
    with pytest.raises(ConfigError, match="lag"):
        policy_codec.decode({"dspark_policy_lag": 0}, PlannerConfig())


def test_a_lower_gain_takes_the_gain_at_which_drafting_ends_along() -> None:
    numbers = policy_codec.encode({"min_gain": -0.5}, policy_codec.shown(PlannerConfig()), GAMMA)
    assert policy_codec.decode(numbers, PlannerConfig()).keep_gain == -0.5


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "JSON object"),
        (["adaptive"], "JSON object"),
        ({"polcy": "static"}, "polcy"),
        ({"policy": "static", "verify_drafts": GAMMA + 1}, "verify_drafts"),
        ({"verify_drafts": "3"}, "verify_drafts"),
        ({"verify_drafts": True}, "verify_drafts"),
        ({"policy": None}, "policy"),
        ({"min_gain": float("nan")}, "min_gain"),
        ({"keep_gain": 0.5}, "keep_gain"),
    ],
)
def test_nonsense_is_refused_by_field(body: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        policy_codec.encode(body, policy_codec.shown(PlannerConfig()), GAMMA)
