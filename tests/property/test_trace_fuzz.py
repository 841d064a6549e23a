"""Whatever a trace file holds, it is read or refused in one sentence; nothing hangs, nothing else is raised."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dspark_loadtest.errors import TraceError
from dspark_loadtest.traces.canonical import FORMATS, load_trace, write_trace
from dspark_loadtest.traces.fit import Fit, fit_lengths, spread
from dspark_loadtest.traces.request import Trace, TraceRequest
from dspark_loadtest.traces.servegen import load_servegen

FIELDS = (
    *("timestamp", "input_length", "output_length", "hash_ids", "session_id", "delay", "text_input", "messages"),
    *("tools", "extra", "category", "chat_id", "parent_chat_id", "type", "turn"),
)
HEADERS = (
    "TIMESTAMP,ContextTokens,GeneratedTokens",
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
CELLS = st.one_of(
    st.integers(-5, 10**12).map(str),
    st.floats().map(str),
    st.text(max_size=12),
    st.sampled_from(["2023-11-16 18:15:46.6805900", "9999-12-31 23:59:59.99+99:99", "1e400", "0001-01-01", '"']),
)


# Drawing nested values is slow on a busy machine, which says nothing about what is tested.
PATIENT = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)


def read(content: bytes, name: str, form: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            trace = load_trace(path, form=form)
        except TraceError as error:
            assert name in str(error)  # noqa: PT017
            return
        assert len(trace) > 0
        fit_lengths(spread(trace), Fit(0.5, 0.5, 512, 64, 8))
        write_trace(trace, path.with_suffix(".out"))


@PATIENT
@given(st.binary(max_size=300), st.sampled_from(["t.csv", "t.jsonl", "t.jsonl.gz"]), st.sampled_from([None, *FORMATS]))
@example(b"[" * 100_000, "t.jsonl", "canonical")
@example(b'{"timestamp": ' + b"9" * 5000 + b"}", "t.jsonl", None)
@example(b"TIMESTAMP,ContextTokens,GeneratedTokens\n" + b'"' + b"x" * 200_000, "t.csv", None)
def test_any_bytes(content: bytes, name: str, form: str | None) -> None:
    read(content, name, form)


@PATIENT
@given(
    st.lists(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=8), min_size=1, max_size=5),
    st.sampled_from([None, "canonical", "bailian"]),
)
def test_any_objects(rows: list[dict[str, Any]], form: str | None) -> None:
    read("\n".join(json.dumps(row) for row in rows).encode(), "t.jsonl", form)


@PATIENT
@given(st.sampled_from(HEADERS), st.lists(st.lists(CELLS, min_size=1, max_size=9), max_size=5))
def test_any_tables(header: str, rows: list[list[str]]) -> None:
    read("\n".join([header, *(",".join(row) for row in rows)]).encode(errors="replace"), "t.csv", None)


@PATIENT
@given(st.text(max_size=120), st.one_of(st.text(max_size=80), VALUES.map(json.dumps)))
@example("0,1e300,1,Gamma,1,1\n", '{"0": {"input_tokens": "{1: 1.0}", "output_tokens": "{1: 1.0}"}}')
@example("0,50000,50,Weibull,1,1\n", '{"0": {"input_tokens": "{1: 1.0}", "output_tokens": "{1: 1.0}"}}')
def test_any_servegen_client(windows: str, lengths: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "chunk-0-trace.csv").write_text(windows, encoding="utf-8", errors="replace")
        (Path(folder) / "chunk-0-dataset.json").write_text(lengths, encoding="utf-8", errors="replace")
        try:
            trace = load_servegen(Path(folder), duration_s=1)
        except TraceError:
            return
        assert len(trace) > 0


REQUESTS = st.builds(
    TraceRequest,
    timestamp=st.floats(0, 1e9),
    input_length=st.integers(1, 10**6),
    output_length=st.integers(1, 10**5),
    hash_ids=st.lists(st.integers(0, 2**50), max_size=5).map(tuple),
)


@PATIENT
@given(
    st.lists(REQUESTS, min_size=1, max_size=8),
    st.floats(0.01, 4),
    st.floats(0.01, 4),
    st.integers(40, 10_000),
    st.integers(0, 30),
)
def test_fitted_requests_fit(
    requests: list[TraceRequest], prompt_scale: float, output_scale: float, context: int, overhead: int
) -> None:
    fitted = fit_lengths(Trace(tuple(requests)), Fit(prompt_scale, output_scale, context, None, overhead))
    for request in fitted.requests:
        assert request.input_length is not None
        assert request.output_length is not None
        assert request.input_length >= 1
        assert request.output_length >= 1
        assert request.input_length + request.output_length + overhead <= context


@PATIENT
@given(st.lists(REQUESTS, min_size=1, max_size=30), st.integers(0, 5))
def test_spreading_keeps_the_order_and_stays_within_a_tick(requests: list[TraceRequest], seed: int) -> None:
    stamped = [TraceRequest(1000.0 * (i // 3), r.input_length, r.output_length) for i, r in enumerate(requests)]
    moved = spread(Trace(tuple(stamped)), seed=seed).requests
    for before, after in zip(stamped, moved, strict=True):
        assert before.timestamp is not None
        assert after.timestamp is not None
        assert 0 <= after.timestamp - before.timestamp <= 1000
    assert [m.timestamp for m in moved] == sorted(m.timestamp or 0 for m in moved)
