"""Synthetic drafts reproduce the paper's acceptance; outcomes belong to positions, not to policies."""

from __future__ import annotations

import numpy as np
import pytest

from sgl_dspark.errors import ConfigError
from sgl_dspark.simulator.acceptance import (
    CONDITIONAL_ACCEPTANCE,
    DOMAINS,
    Recorded,
    Synthetic,
    SyntheticConfig,
    num_correct,
)

REQUESTS, TOKENS = 600, 300
EVERY = np.repeat(np.arange(REQUESTS), TOKENS), np.tile(np.arange(TOKENS), REQUESTS)


def synthetic(seed: int = 0, gamma: int = 7, **changes: object) -> Synthetic:
    return Synthetic(SyntheticConfig(**changes), gamma, np.full(REQUESTS, TOKENS), seed)  # type: ignore[arg-type]


@pytest.mark.parametrize("domain", DOMAINS)
def test_conditional_acceptance_is_the_papers(domain: str) -> None:
    mix = tuple(float(name == domain) for name in DOMAINS)
    accepted = synthetic(mix=mix).draft(*EVERY).accepted
    alive = np.ones(len(accepted), dtype=bool)
    for slot, wanted in enumerate(CONDITIONAL_ACCEPTANCE[domain]):
        # 600 requests with a level of their own: about 0.005 of standard error.
        assert accepted[alive, slot].mean() == pytest.approx(wanted, abs=0.015)
        alive &= accepted[:, slot]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_alone_decides_whether_confidence_is_calibrated(temperature: float) -> None:
    drafts = synthetic(temperature=temperature).draft(*EVERY)
    confidence = 1 / (1 + np.exp(-drafts.logits[:, 0].astype(np.float64)))
    bins = np.minimum((confidence * 20).astype(int), 19)
    ece = sum(
        abs(confidence[bins == b].mean() - drafts.accepted[bins == b, 0].mean()) * (bins == b).mean()
        for b in np.unique(bins)
    )
    assert ece < 0.01 if temperature == 1.0 else ece > 0.03


def test_confidence_ranks_about_as_well_as_the_papers_head() -> None:
    drafts = synthetic(mix=(0.0, 0.0, 1.0)).draft(*EVERY)
    ranks = np.argsort(np.argsort(drafts.logits[:, 0]))
    yes = drafts.accepted[:, 0]
    area = (ranks[yes].mean() - (yes.sum() - 1) / 2) / (~yes).sum()
    assert area == pytest.approx(0.818, abs=0.02)


def test_an_outcome_belongs_to_its_position() -> None:
    source = synthetic(constant=0.6)
    here = source.draft(np.array([5]), np.array([10]))
    later = source.draft(np.array([5]), np.array([12]))
    assert (here.accepted[0, 2:] == later.accepted[0, :-2]).all()
    again = synthetic(constant=0.6).draft(*EVERY).accepted
    assert (again == source.draft(*EVERY).accepted).all()
    assert (again != synthetic(seed=1, constant=0.6).draft(*EVERY).accepted).any()


def test_difficulty_lasts_within_a_request_as_far_as_drift_says() -> None:
    source = synthetic(mix=(1.0, 0.0, 0.0), request_sigma=0.0, drift=0.5)
    first = source.draft(*EVERY).logits[:, 0].reshape(REQUESTS, TOKENS)
    for apart, wanted in ((1, 0.5), (2, 0.25), (8, 0.004)):
        measured = np.corrcoef(first[:, :-apart].ravel(), first[:, apart:].ravel())[0, 1]
        assert measured == pytest.approx(wanted, abs=0.02)


def test_recorded_outcomes_are_kept_where_they_were_observed() -> None:
    logits = np.array([[4.0, 4.0, -4.0], [-30.0, 30.0, -30.0]], dtype=np.float32)
    # Row 0: two correct of three verified. Row 1: one correct, verified no further: slot 1 follows its confidence.
    source = Recorded(logits, np.array([3, 1]), np.array([2, 1]), np.full(REQUESTS, TOKENS), seed=0)
    drafts = source.draft(*EVERY)
    whole = drafts.logits[:, 0] == 4.0
    assert 0.45 < whole.mean() < 0.55
    assert drafts.accepted[whole].tolist() == [[True, True, False]] * int(whole.sum())
    assert drafts.accepted[~whole].tolist() == [[True, True, False]] * int((~whole).sum())


def test_num_correct_counts_up_to_the_first_rejection_or_the_verified_length() -> None:
    accepted = np.array([[1, 1, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1]], dtype=bool)
    assert num_correct(accepted, np.array([4, 4, 3])).tolist() == [2, 0, 3]
    assert num_correct(accepted, np.array([1, 0, 0])).tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("mix", {"mix": (0.0, 0.0, 0.0)}),
        ("mix", {"mix": (1.0, -1.0, 1.0)}),
        ("token_sigma", {"token_sigma": -1.0}),
        ("drift", {"drift": 1.0}),
        ("temperature", {"temperature": 0.0}),
        ("constant", {"constant": 1.0}),
    ],
)
def test_wrong_input_is_refused_by_field(field: str, changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        SyntheticConfig(**changes)  # type: ignore[arg-type]


def test_a_block_longer_than_the_paper_measured_is_refused() -> None:
    with pytest.raises(ConfigError, match="^gamma: 8"):
        synthetic(gamma=8)
