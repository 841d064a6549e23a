"""The fleet study: one replica of many, its slowest users, and what it bears under an SLA."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest

from sgl_dspark.reports.simulate_fleet import by_unevenness, capacity, tables
from sgl_dspark.simulator.arrivals import Lengths, bursty
from sgl_dspark.simulator.log import Log, StepRow
from sgl_dspark.simulator.results import Figures, measure
from sgl_dspark.simulator.studies import Cell

ARM = "adaptive lag 2"
NOTHING = Figures(**{field.name: 1 for field in fields(Figures)})


def cell(rate: float, speed: float, ttft_s: float, cv: float = 1.0) -> Cell:
    figures = replace(NOTHING, slow_user_tok_s=speed, ttft_p99_s=ttft_s, tokens=500, requests=2)
    return Cell("h200", f"{rate:g} rps, CV {cv:g}", None, {ARM: [figures]})


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        # Speed falls from 80 to 40 on the way; 50 is three quarters of the way.
        ([cell(10, 80, 0.1), cell(20, 40, 0.1)], 17.5),
        # The first token is late first: from a tenth of what is owed to ten times it, half-way on a logarithm.
        ([cell(10, 80, 0.1), cell(20, 50, 10.0)], 15.0),
        # Kept, then kept, then broken.
        ([cell(10, 90, 0.1), cell(20, 60, 0.1), cell(30, 40, 0.1)], 25.0),
        ([cell(10, 90, 0.1), cell(20, 60, 0.1)], math.inf),
        ([cell(10, 49, 0.1), cell(20, 60, 0.1)], None),
    ],
)
def test_capacity_lies_between_what_was_served_and_never_beyond(cells: list[Cell], expected: float | None) -> None:
    (rows,) = by_unevenness(cells).values()
    found = capacity(rows, ARM, 50.0, 1.0)
    assert found == expected if found is None or expected is None else found == pytest.approx(expected)


def test_tables_say_how_many_replicas_and_do_not_guess() -> None:
    text = tables([cell(20, 40, 0.1), cell(10, 80, 0.1), cell(10, 15, 0.1, cv=4), cell(20, 10, 0.1, cv=4)])
    assert text[0].splitlines()[4:6] == ["| 10 | 80 / 0.10 / 1 |", "| 20 | 40 / 0.10 / 1 |"]
    rows = text[-1].splitlines()
    # 17.5 requests a second of 250 tokens each; at 20 tok/s nothing was broken, so nothing is known.
    assert "| 1 | adaptive lag 2 | above 20 |  |  | 17.5 | 58 | 16 | 10.0 | 100 | 9 |" in rows
    assert "| 4 | adaptive lag 2 | below 10 |  |  | below 10 |  |  | below 10 |  |  |" in rows


def test_every_nth_arrival_is_as_uneven_as_the_study_says() -> None:
    """CV 4 over 16 replicas, handed out in turn, is CV 1 at each: exponential gaps of 16 times the mean."""
    whole = bursty(160_000, 160.0, 4.0, Lengths(8, 8), np.random.default_rng(0))
    gaps = np.diff(whole.arrival_s[::16])
    assert gaps.mean() == pytest.approx(0.1, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.05)


def test_the_slowest_users_are_the_fifth_percentile() -> None:
    log = Log(100)
    log.admitted_s[:] = log.first_token_s[:] = 0.0
    log.emitted_tok[:] = 11
    # User i needs 10 / (i + 1) seconds for the ten tokens after the first, so speeds are 1..100 tok/s.
    log.finish_s[:] = 10.0 / np.arange(1, 101)
    log.decode(StepRow(10.0, 10.0, 100, 0, 0, 0, 1000, np.nan, np.nan), "")
    log.close(np.zeros(100), 10.0)
    figures = measure(log)
    assert figures.slow_user_tok_s == pytest.approx(np.percentile(np.arange(1, 101), 5))
    assert figures.user_tok_s == pytest.approx(50.5)
