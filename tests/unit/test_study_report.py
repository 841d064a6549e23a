"""The study's pages: accept lengths from one pass, times from another, means over seeds."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tools import study_report
from tools.study_report import About, Result

ABOUT = About("length", "Draft length", "figure 4", "fixture", 400, (1, 2), 1498)


def _evaluation(accept_len: float, *, ms: float | None = None) -> dict[str, Any]:
    row = {
        "name": "chat", "temperature": 1.0, "threshold": 0.0,
        "acceptance": {"mean_accept_len": accept_len, "conditional": [0.5, 0.5], "rounds": 10},
    }  # fmt: skip
    times = (
        {} if ms is None else {"latency": [{"rows": n, "draft_ms": n * ms, "verify_ms": n * 2 * ms} for n in (1, 32)]}
    )
    return {"results": [row], **times}


def _results(name: str, arm: str) -> list[Result]:
    return [
        Result(arm, 1, name, _evaluation(2.0), []),
        Result(arm, 2, name, _evaluation(3.0), []),
        # Timed on one prompt: its accept length is noise, and must not get into a mean.
        Result(arm, 1, f"{name}-latency", _evaluation(9.0, ms=1.0), []),
        Result(arm, 2, f"{name}-latency", _evaluation(9.0, ms=3.0), []),
    ]


def test_length_takes_accept_lengths_and_times_from_their_own_passes(tmp_path: Path) -> None:
    page = study_report.length(ABOUT, _results("length", "dspark-gamma-7"), tmp_path).read_text()
    assert "| dspark | 7 | 2.500 | 1.000 | 6.0 | 192.0 |" in page
    assert (tmp_path / "training_length.png").is_file()


def test_shortlist_pairs_each_size_with_its_own_times(tmp_path: Path) -> None:
    few = [Result("dspark", 1, "shortlist-8", _evaluation(1.5), [])]
    timed = [Result("dspark", 1, "shortlist-8-latency", _evaluation(9.0, ms=0.5), [])]
    page = study_report.shortlist(ABOUT, [*_results("shortlist", "dspark"), *few, *timed], tmp_path).read_text()
    assert "| all | 2.500 | 1.000 | 2.0 | 64.0 |" in page
    assert "| 8 | 1.500 | 0.000 | 0.5 | 16.0 |" in page


def test_a_page_names_its_command(tmp_path: Path) -> None:
    page = study_report.per_arm(ABOUT, _results("depth", "dspark-layers-2")[:2], tmp_path).read_text()
    assert "python tools/study.py length" in page
    assert "| dspark-layers-2 | 2.500 | 2.500 | 1.000 | 0 |" in page


def test_calibration_is_shown_beside_what_chance_alone_gives(tmp_path: Path) -> None:
    slots = [{"count": 500, "floor": 0.02}, {"count": 200, "floor": 0.04}, {"count": 0, "floor": None}]
    found = {
        "method": "sts", "temperatures": [1.1], "mean_ece_before": 0.05, "mean_ece_after": 0.031, "after": slots,
    }  # fmt: skip
    result = Result("dspark", 1, "calibration", {**_evaluation(2.0), "calibration": {"1": found}}, [])
    page = study_report.calibration(ABOUT, [result], tmp_path).read_text()
    assert "| 1 | 1 | sts | 5.00 % | 3.10 % | 3.00 % | 1.10 |" in page


def test_a_page_says_how_much_data_it_was_made_with(tmp_path: Path) -> None:
    about = replace(ABOUT, answers=6975, made=" --prompts 6975")
    page = study_report.per_arm(about, _results("depth", "dspark-layers-2")[:2], tmp_path).read_text()
    assert "Trained on 6,975 answers" in page
    assert "python tools/study.py length --prompts 6975\n" in page


def test_a_page_about_the_shipped_draft_says_so(tmp_path: Path) -> None:
    about = replace(ABOUT, name="shortlist", steps=0, answers=0)
    page = study_report.shortlist(about, _results("shortlist", "shipped"), tmp_path).read_text()
    assert "The draft in checkpoints/,\nseed 1 and 2;" in page
    assert "optimiser" not in page
    assert "Trained" not in page
