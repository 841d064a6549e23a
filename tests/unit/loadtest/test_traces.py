"""Trace files: hand-made good and bad ones of each format, the rules that fit them, and real ones where they lie."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from dspark_loadtest import options
from dspark_loadtest.errors import LoadtestError, TraceError
from dspark_loadtest.traces.canonical import load_trace, write_trace
from dspark_loadtest.traces.fit import Fit, cut_out, describe, fit_lengths, retime, spread, thin, tick_ms
from dspark_loadtest.traces.request import Trace, TraceRequest
from dspark_loadtest.traces.servegen import load_servegen, read_lengths, read_windows, weibull_shape
from dspark_loadtest.traces.synthetic import Phase, Prefixes, diurnal, generate, step_burst
from sgl_dspark.simulator.arrivals import Lengths

FOLDER = Path(__file__).parents[2] / "fixtures" / "traces"
GOOD, BAD = FOLDER / "good", FOLDER / "bad"
REAL = Path(__file__).parents[4] / "shared" / "traces"


def test_mooncake_is_the_canonical_form() -> None:
    trace = load_trace(GOOD / "mooncake.jsonl")
    assert [r.timestamp for r in trace.requests] == [0, 2000, None, 3000]
    assert trace.requests[0] == TraceRequest(0, 700, 5, (0, 1))
    assert trace.requests[2] == TraceRequest(output_length=4, session_id="a", delay=50, text_input="And then?")
    assert trace.source["dropped_without_tokens"] == 1
    assert trace.block_size == 512
    assert trace.source["attribution"].startswith("kvcache-ai")


def test_azure_2023_has_seven_digits_and_2024_an_offset() -> None:
    old, new = load_trace(GOOD / "azure-2023.csv"), load_trace(GOOD / "azure-2024.csv")
    assert [(r.timestamp, r.input_length, r.output_length) for r in old.requests] == [
        (0.0, 374, 44),
        (400.0001, 20, 1),
        (4314.579, 396, 109),
    ]
    assert old.source["dropped_without_tokens"] == 1
    # 02:00:01.5+02:00 is half past the second second of the same midnight.
    assert [r.timestamp for r in new.requests] == [0.0, 998.837, 1498.837]


def test_burstgpt_with_and_without_sessions() -> None:
    trace = load_trace(GOOD / "burstgpt.csv")
    assert [(r.timestamp, r.session_id) for r in trace.requests] == [(0, None), (40_000, "s1"), (115_000, "s1")]
    assert trace.source["dropped_failures"] == 1
    assert len(load_trace(GOOD / "burstgpt-v1.csv")) == 1


def test_bailian_turns_find_their_session_and_blocks_their_size() -> None:
    trace = load_trace(GOOD / "bailian.jsonl")
    assert [(r.timestamp, r.session_id) for r in trace.requests] == [(0, "1"), (1500, None), (4250, "1")]
    assert trace.block_size == 16


def test_servegen_windows_are_drawn_with_their_rate() -> None:
    trace = load_servegen(GOOD / "servegen", duration_s=600, seed=1)
    # 600 s at 2 a second: five standard deviations of a Poisson count.
    assert abs(len(trace) - 1200) < 5 * 1200**0.5
    assert {r.output_length for r in trace.requests} == {5}
    assert {r.input_length for r in trace.requests} == {10, 20}
    assert trace.source["clients_without_lengths"] == 1
    with pytest.raises(TraceError, match="no client asks anything"):
        load_servegen(GOOD / "servegen", start_s=700, duration_s=100)
    assert [w.end_s for w in read_windows(GOOD / "servegen" / "chunk-0-trace.csv")] == [600, 1200, 1800]
    (law,) = read_lengths(GOOD / "servegen" / "chunk-0-dataset.json").values()
    assert law["input_tokens"].cumulated.tolist() == [0.25, 1.0]


def test_weibull_shape_has_the_variation_that_was_asked_for() -> None:
    # The exponential law has variation 1 and shape 1; shape 2 (Rayleigh) has sqrt(4/pi - 1).
    assert weibull_shape(1.0) == pytest.approx(1.0)
    assert weibull_shape((4 / np.pi - 1) ** 0.5) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("mooncake-negative-time.jsonl", "line 2, timestamp: -1 is not between 0 and"),
        ("mooncake-unknown-field.jsonl", "line 1, hash_id: is no field of a trace; did you mean hash_ids"),
        ("mooncake-two-contents.jsonl", "line 1, input_length: exactly one of input_length, text_input, messages"),
        ("mooncake-half-token.jsonl", "line 1, input_length: 7.5 is not a whole number"),
        ("mooncake-hash-text.jsonl", "line 1, hash_ids: 'two' is not a whole number of at least 0"),
        ("mooncake-cut-off.jsonl", "line 2: is not JSON"),
        ("mooncake-field-twice.jsonl", "line 2: has two fields 'input_length'; which one holds"),
        ("mooncake-time-missing.jsonl", "line 2, timestamp: is there in some requests and missing in others"),
        ("azure-column-twice.csv", "line 1: has two columns 'ContextTokens'; which one holds"),
        ("azure-time.csv", "line 3, TIMESTAMP: '16.11.2023 18:15' is not a time such as"),
        ("azure-cut-off.csv", "line 2: has 2 values for 3 columns"),
        ("azure-tokens.csv", "line 2, ContextTokens: 'many' is not a number"),
        ("burstgpt-time.csv", "line 2, Timestamp: 'nan' is not between"),
        ("burstgpt-only-failures.csv", "holds no request with a prompt and an answer"),
        ("bailian-twice.jsonl", "line 2, chat_id: '1' comes twice"),
        ("bailian-parent.jsonl", "line 1, parent_chat_id: is missing"),
        ("unknown.csv", "begins no trace that is known; give --format"),
    ],
)
def test_a_bad_file_is_named_with_line_and_field(file: str, message: str) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        load_trace(BAD / file)
    assert file in str(caught.value)


def test_what_cannot_be_unpacked_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "trace.jsonl.gz"
    broken.write_bytes(gzip.compress(b'{"timestamp": 0}')[:-6])
    with pytest.raises(TraceError, match="cannot be read as text"):
        load_trace(broken)


def test_a_written_trace_is_read_back(tmp_path: Path) -> None:
    trace = load_trace(GOOD / "mooncake.jsonl")
    write_trace(trace, tmp_path / "again.jsonl.gz")
    assert load_trace(tmp_path / "again.jsonl.gz").requests == trace.requests
    write_trace(trace, tmp_path / "twice.jsonl.gz")
    assert (tmp_path / "again.jsonl.gz").read_bytes() == (tmp_path / "twice.jsonl.gz").read_bytes()


def _trace(*stamps: float, **fields: object) -> Trace:
    return Trace(tuple(TraceRequest(stamp, 100, 50, **fields) for stamp in stamps), {}, 512)  # type: ignore[arg-type]


def test_rounded_timestamps_are_spread_in_their_tick_and_order() -> None:
    rounded = _trace(0, 0, 0, 3000, 3000, 5999, 9000, 9000, 9000)
    assert tick_ms(rounded) == pytest.approx(3000, abs=2)
    moved = [r.timestamp for r in spread(rounded).requests]
    assert all(0 <= after - before < 3001 for before, after in zip((0, 0, 0, 3000, 3000), moved, strict=False))  # type: ignore[operator]
    assert moved == sorted(moved)  # type: ignore[type-var]
    assert "timestamps were rounded" in spread(rounded).source["changes"][0]
    exact = _trace(0, 17, 40, 41, 77, 1000)
    assert spread(exact) is exact


def test_cutting_thinning_and_retiming_say_what_they_did() -> None:
    trace = _trace(*range(0, 100_000, 1000))
    cut = cut_out(trace, start_s=10, duration_s=5)
    assert [r.timestamp for r in cut.requests] == [0, 1000, 2000, 3000, 4000]
    assert cut.source["changes"] == ["kept 5 of 100 requests: from 10 s for 5 s"]
    assert 20 < len(thin(trace, 0.5, seed=1)) < 80
    assert thin(trace, 1.0) is trace
    timed = retime(trace, 2.0, seed=3)
    assert timed.span_s == pytest.approx(50, rel=0.5)
    with pytest.raises(LoadtestError, match="no request from 200 s on"):
        cut_out(trace, start_s=200)


def test_a_session_is_kept_or_dropped_as_a_whole() -> None:
    turns = [TraceRequest(1000.0 * i, 10, 5, session_id=f"s{i % 20}") for i in range(100)]
    kept = thin(Trace(tuple(turns)), 0.5, seed=4)
    names = [r.session_id for r in kept.requests]
    assert 0 < len(set(names)) < 20
    assert all(names.count(name) == 5 for name in names)


def test_lengths_are_scaled_then_cut_to_the_context() -> None:
    request = TraceRequest(0, 2000, 400, hash_ids=(1, 2, 3, 4))
    fitted = fit_lengths(Trace((request,), {}, 512), Fit(0.5, 0.25, context=900, overhead=20))
    # Answer 400 / 4; prompt 2000 / 2, cut to 900 - 20 - 100; blocks of 256 tokens, of which 780 need four.
    assert fitted.requests[0] == TraceRequest(0, 780, 100, hash_ids=(1, 2, 3, 4))
    assert fitted.block_size == 256
    assert "cut: 1 prompts, 0 answers of 1" in fitted.source["changes"][0]
    tiny = fit_lengths(Trace((request,), {}, 512), Fit(context=40, overhead=20, max_output=5)).requests[0]
    assert (tiny.input_length, tiny.output_length, tiny.hash_ids) == (15, 5, (1,))


def test_synthetic_arrivals_have_rate_and_burstiness() -> None:
    even = describe(generate([Phase(2000, 5)], Lengths(), seed=1))
    bursty = describe(generate([Phase(2000, 5)], Lengths(), cv=3, seed=1))
    assert even["mean_rps"] == pytest.approx(5, rel=0.05)
    assert even["gap_cv"] == pytest.approx(1, rel=0.05)
    assert bursty["gap_cv"] == pytest.approx(3, rel=0.1)


def test_phases_keep_their_own_rates() -> None:
    trace = generate(step_burst(61, 10, factor=10, burst_s=1), Lengths(), seed=2)
    stamps = np.array([r.timestamp for r in trace.requests])
    inside = int(((stamps >= 30_000) & (stamps < 31_000)).sum())
    # 100 in that second and 600 around it, each within five standard deviations.
    assert abs(inside - 100) < 50
    assert abs(len(stamps) - inside - 600) < 123
    night = generate(diurnal(1000, 5, swing=1.0), Lengths(), seed=3)
    thirds = np.histogram([r.timestamp for r in night.requests], bins=3, range=(0, 1e6))[0]
    assert thirds[1] > 2 * max(thirds[0], thirds[2])
    with pytest.raises(LoadtestError, match="ask for 0 requests"):
        generate([Phase(10, 0)], Lengths())


def test_shared_prefixes_come_before_what_is_a_request_s_own() -> None:
    trace = generate([Phase(20, 5)], Lengths(64, 8, 0, 0), prefixes=Prefixes(count=2, blocks=3), block_size=64)
    beginnings = {r.hash_ids[:3] for r in trace.requests}
    assert len(beginnings) == 2
    assert len({r.hash_ids[3:] for r in trace.requests}) == len(trace)
    assert {r.input_length for r in trace.requests} == {4 * 64}


def test_the_built_in_excerpt_loads() -> None:
    from argparse import Namespace

    args = Namespace(trace="azure-conv", start_s=0.0, take=None, limit=None, keep=1.0, seed=0)
    trace = options.trace_of(args)
    assert len(trace) == 2867
    assert 590 < trace.span_s < 600
    assert trace.source["attribution"] == "Azure/AzurePublicDataset, CC-BY-4.0"


@pytest.mark.skipif(not REAL.is_dir(), reason="the traces are not part of the repository")
@pytest.mark.parametrize(
    ("file", "rows", "tick"),
    [
        ("mooncake_conversation_trace.jsonl.gz", 12_031, 3000.0),
        ("mooncake_synthetic_trace.jsonl.gz", 3_993, None),
        ("AzureLLMInferenceTrace_code.csv.gz", 8_819, None),
        ("AzureLLMInferenceTrace_conv.csv.gz", 19_366, None),
    ],
)
def test_real_traces_load_whole(file: str, rows: int, tick: float | None) -> None:
    trace = load_trace(REAL / file)
    assert len(trace) == rows
    assert trace.block_size == 512
    assert tick_ms(trace) == tick


def test_a_cell_may_hold_what_only_python_calls_the_end_of_a_line(tmp_path: Path) -> None:
    header, row = (GOOD / "azure-2024.csv").read_text().splitlines()[:2]
    path = tmp_path / "azure.csv"
    path.write_text(f"{header},note\n{row},one\u2028two\x85\n", encoding="utf-8")
    assert len(load_trace(path).requests) == 1


def test_a_trace_with_half_a_character_is_written_and_read_again(tmp_path: Path) -> None:
    trace = Trace((TraceRequest(0, output_length=2, text_input="a\u2028b \ud83d"),), {})
    write_trace(trace, tmp_path / "trace.jsonl")
    assert load_trace(tmp_path / "trace.jsonl").requests[0].text_input == "a\u2028b \ud83d"
