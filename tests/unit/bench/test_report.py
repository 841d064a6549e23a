"""Tables and JSON of a small benchmark whose figures are worked out by hand."""

from __future__ import annotations

import json

import pytest

from dspark_sglang.bench.metrics import RequestResult
from dspark_sglang.bench.report import aligned, markdown, rows, summarise, to_json
from dspark_sglang.bench.session import Run
from sgl_dspark.comparison import Spread

ARMS = ["plain", "dspark"]


def _run(round_: int, arm: str, seconds: float, text: str = "same", **counters: object) -> Run:
    """One request of 11 tokens: first text after a sixth of the time, end after ``seconds``."""
    result = RequestResult(0, 50.0, 50.0 + seconds / 6, 50.0 + seconds, 4, 11, "length", text, **counters)  # type: ignore[arg-type]
    return Run(round_, 0, arm, 4, 0.0, [result])


RUNS = [
    _run(0, "plain", 6.0),
    _run(0, "dspark", 3.0, verify_rounds=4, correct_drafts=6, histogram=(1, 1, 1, 1)),
    _run(1, "dspark", 2.0, text="other", verify_rounds=5, correct_drafts=5, histogram=(0, 5)),
    _run(1, "plain", 5.0),
]


def test_ratios_are_taken_within_a_round() -> None:
    (level,) = summarise(RUNS, ARMS)
    assert level["concurrency"] == 4
    assert level["arms"]["plain"]["tok_s"] == Spread(
        pytest.approx((11 / 6 + 11 / 5) / 2), pytest.approx(11 / 6), pytest.approx(11 / 5), pytest.approx((11 / 6, 2.2))
    )
    # Round 0: 6/3 = 2; round 1: 5/2 = 2.5.
    assert level["ratios"]["dspark"]["tok_s"].values == pytest.approx((2.0, 2.5))
    assert level["ratios"]["dspark"]["ttft_ms"].values == pytest.approx((0.5, 0.4))
    assert level["arms"]["dspark"]["mean_accept_len"].values == pytest.approx((2.5, 2.0))
    assert level["arms"]["plain"]["mean_accept_len"] is None
    assert level["same_text"] == {"dspark": [1, 2]}


def test_the_table_shows_median_and_range() -> None:
    table = rows(summarise(RUNS, ARMS), ARMS, same_text=True)
    assert table == [
        ["concurrency", "arm", "tok/s", "tok/s/user", "end to end", "TTFT ms", "accept length", "same text"],
        ["4", "plain", "2.0 (1.8-2.2)", "2.2 (2.0-2.4)", "2.0 (1.8-2.2)", "917 (833-1000)", "", ""],
        ["", "dspark", "4.6 (3.7-5.5)", "5.0 (4.0-6.0)", "4.6 (3.7-5.5)", "417 (333-500)", "2.25 (2.00-2.50)", "1/2"],
        ["", "dspark / plain", *["2.25x (2.00-2.50)"] * 3, "0.45x (0.40-0.50)", "", ""],
    ]  # fmt: skip
    lines = aligned(table).splitlines()
    assert {line.index(name) for line, name in zip(lines[1:], ("plain", "dspark", "dspark"), strict=True)} == {13}
    assert markdown(table).splitlines()[1] == "|---:|---|---:|---:|---:|---:|---:|---:|"


def test_one_round_has_no_range_and_a_missing_arm_no_ratio() -> None:
    table = rows(summarise(RUNS[:1], ARMS), ARMS, same_text=False)
    assert table[1:] == [
        ["4", "plain", "1.8", "2.0", "1.8", "1000", ""],
        ["", "dspark", "", "", "", "", ""],
        ["", "dspark / plain", "", "", "", "", ""],
    ]


def test_json_holds_every_run_and_request() -> None:
    data = json.loads(json.dumps(to_json(RUNS, ARMS, {"command": ["dspark", "bench"]})))
    assert (data["schema"], data["command"], data["arms"]) == (1, ["dspark", "bench"], ARMS)
    run = data["runs"][2]
    assert (run["round"], run["arm"], run["concurrency"], run["wall_s"]) == (1, "dspark", 4, 2.0)
    assert run["accept_histogram"] == [0, 5]
    assert run["mean_accept_len"] == 2.0
    (request,) = run["requests"]
    assert (request["verify_rounds"], request["correct_drafts"], request["completion_tokens"]) == (5, 5, 11)
    assert request["e2e_s"] == 2.0
    assert request["ttft_s"] == pytest.approx(1 / 3)
    assert data["summary"][0]["ratios"]["dspark"]["tok_s"]["values"] == pytest.approx([2.0, 2.5])
