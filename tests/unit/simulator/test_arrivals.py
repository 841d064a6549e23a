"""Arrival processes keep their rate and their variation; traces are read as they are described."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from sgl_dspark.errors import ConfigError, DataError
from sgl_dspark.simulator.arrivals import Lengths, Workload, bursty, closed_loop, draining, poisson
from sgl_dspark.simulator.traces import TraceOptions, load_trace

SHORT = Lengths(32, 16)
SHARED_TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0, 10.0])
def test_gaps_have_the_mean_and_variation_that_were_asked_for(cv: float) -> None:
    gaps = np.diff(bursty(200_000, 20.0, cv, SHORT, rng()).arrival_s)
    # Standard error of the mean gap is cv / sqrt(n); heavy tails make the deviation's own error larger.
    assert gaps.mean() == pytest.approx(0.05, rel=4 * cv / np.sqrt(gaps.size))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


def test_lengths_do_not_depend_on_the_rate_under_one_seed() -> None:
    slow, fast = poisson(50, 1.0, SHORT, rng(3)), bursty(50, 9.0, 5.0, SHORT, rng(3))
    assert (slow.output_tok == fast.output_tok).all()
    assert (slow.prompt_tok == fast.prompt_tok).all()
    assert slow.arrival_s[-1] > fast.arrival_s[-1]


def test_lengths_have_the_median_and_the_cut() -> None:
    prompts, outputs = Lengths(100, 40, 0.5, 0.0, max_prompt_tok=150).draw(20_000, rng())
    assert np.median(prompts) == pytest.approx(100, abs=2)
    assert prompts.max() == 150
    assert (outputs == 40).all()


def test_a_burst_comes_at_once_and_a_closed_loop_knows_its_clients() -> None:
    assert draining(5, SHORT, rng()).arrival_s.tolist() == [0.0] * 5
    assert closed_loop(5, 2, SHORT, rng()).concurrency == 2


@pytest.mark.parametrize(
    ("field", "build"),
    [
        ("rate_rps", lambda: poisson(5, 0.0, SHORT, rng())),
        ("rate_rps", lambda: poisson(5, float("nan"), SHORT, rng())),
        ("cv", lambda: bursty(5, 1.0, 10.5, SHORT, rng())),
        ("cv", lambda: bursty(5, 1.0, 0.0, SHORT, rng())),
        ("count", lambda: draining(0, SHORT, rng())),
        ("concurrency", lambda: closed_loop(5, 0, SHORT, rng())),
        ("prompt_tok", lambda: Lengths(0, 1)),
        ("output_spread", lambda: Lengths(1, 1, 0.0, float("nan"))),
        ("arrival_s", lambda: Workload(np.array([1.0, 0.0]), np.ones(2, np.int64), np.ones(2, np.int64))),
        ("output_tok", lambda: Workload(np.zeros(2), np.ones(2, np.int64), np.array([1, 0]))),
        ("prompt_tok", lambda: Workload(np.zeros(2), np.ones(3, np.int64), np.ones(2, np.int64))),
        ("speed", lambda: TraceOptions(speed=0.0)),
        ("limit", lambda: TraceOptions(limit=0)),
    ],
)
def test_wrong_input_is_refused_by_field(field: str, build: object) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        build()  # type: ignore[operator]


def test_azure_csv_keeps_100_ns_and_drops_requests_without_output(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 23:59:59.9999999,374,44"]
    rows += ["2023-11-17 00:00:00.5000000,10,0", "2023-11-17 00:00:02.0000001,8000,700"]
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    load = load_trace(path, TraceOptions(speed=2.0, max_prompt_tok=4000, length_scale=0.5), rng())
    assert load.arrival_s == pytest.approx([0.0, 1.0000001], abs=2e-7)
    assert load.prompt_tok.tolist() == [187, 4000]
    assert load.output_tok.tolist() == [22, 350]


def test_mooncake_stamps_that_repeat_are_spread_within_their_tick(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    row = '{"timestamp": %d, "input_length": 6, "output_length": 5, "hash_ids": []}\n'
    path.write_text("".join(row % stamp for stamp in [0] * 40 + [3000] * 40))
    load = load_trace(path, TraceOptions(limit=60), rng())
    assert len(load) == 60
    assert len(np.unique(load.arrival_s)) == 60
    assert load.arrival_s[39] < 3.0 <= load.arrival_s[40] + 0.2
    assert load.arrival_s[-1] < 6.0


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6,three,4\n", "row 1 is not"),
        ("a.jsonl", '{"timestamp": 0, "input_length": 1}\n', "row 1 is not"),
        ("a.jsonl", "", "no request"),
        ("a.txt", "", ".csv or .jsonl"),
        ("a.csv.gz", "not gzip", "not a readable trace"),
    ],
)
def test_files_that_are_no_traces_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        load_trace(tmp_path / name, TraceOptions(), rng())


@pytest.mark.skipif(not SHARED_TRACES.is_dir(), reason="the production traces are not part of the repository")
@pytest.mark.parametrize(
    ("name", "rows"), [("AzureLLMInferenceTrace_conv.csv.gz", 19_366), ("mooncake_conversation_trace.jsonl.gz", 12_031)]
)
def test_production_traces_load_whole(name: str, rows: int) -> None:
    load = load_trace(SHARED_TRACES / name, TraceOptions(), rng())
    assert rows - 50 <= len(load) <= rows
    assert 3000 < load.arrival_s[-1] < 4000
