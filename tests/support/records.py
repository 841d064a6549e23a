"""Records of requests, and runs of a sweep, as if measured, from a few numbers."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from dspark_loadtest.record import OK, RequestRecord
from dspark_loadtest.sweep import Run


def answered(
    index: int, sent: float, chunks: Sequence[tuple[float, int]], *, due: float | None = None, **fields: Any
) -> RequestRecord:
    """Make a record of an answer whose chunks came at (seconds, tokens); running usage beside each."""
    tokens = sum(count for _, count in chunks)
    record = RequestRecord(index, due=sent if due is None else due, sent=sent, outcome=OK)
    record.first, record.last = chunks[0][0], chunks[-1][0]
    record.end = record.last
    record.chunk_at = array("d", [at for at, _ in chunks])
    record.chunk_tokens = array("l", [count for _, count in chunks])
    record.seen_tokens = record.completion_tokens = record.asked_output = tokens
    record.prompt_tokens = 10
    record.finish_reason = "length"
    for name, value in fields.items():
        setattr(record, name, value)
    return record


def run_of(repeat: int, arm: str, load: float, user: float, total: float) -> Run:
    """Make a run of a sweep: tokens a second of a user, and of all."""
    series = {"p50": user, "p10": user / 2, "p90": user, "p99": user}
    summary = {
        "tok_s_user": series,
        "output_tok_s": total,
        "prompt_tokens": 100,
        "completion_tokens": 200,
        "wall_s": 3.0,
        "ttft_due_s": {"p50": 0.1, "p99": 0.2},
        "tpot_s": {"p50": 1 / user, "p90": 2 / user},
        "speculation": None if arm == "plain" else {"mean_accept_len": 2.0, "mean_verify_len": 4.0},
        "concurrency": load,
        "goodput": {"share": 1.0},
        "requests": {"failed": 0},
        "problems": [],
    }
    return Run(repeat, repeat, arm, load, summary)
