"""Reduces the records of a run to figures; `dspark_loadtest.record` defines each of a single request.

Over a run:

``output_tok_s``
    Tokens that arrived during the steady time over its length. A chunk counts where it arrived; without running usage
    an answer's tokens are taken to have come evenly between its first and last chunk. Those of broken answers count,
    as the server carried them; how many may break is for `dspark_loadtest.session.problems`.
``output_tok_s_whole``
    Tokens of all answers, broken ones included, over the whole run, beginning and tail included.
``tok_s_user``
    Of each answer, then percentiles; ``p10`` is what nine of ten users get at least.
TTFT, latency, ``tpot_s`` and ``tok_s_user``
    Of answers to their end, and of requests that were given up (``given_up`` of them: timed out, or still open when the
    run waited no longer), which count with the time that was waited: the true one is longer, and without them the worst
    would be missing from every percentile.
``mean_accept_len``
    ``1 + correct drafts / verification rounds``, summed over requests before dividing; the bonus token included.
``mean_verify_len``
    Verified tokens over rounds, in the same way, anchors included; ``1 + proposed drafts / rounds`` where the server
    does not tell apart what it proposed and what it verified.
``goodput``
    Requests that met every bound: answered, TTFT from when they were due, tok/s of the user. An error, or an answer
    too short for a rate, is judged by what there is of it: errors never count, one-chunk answers meet any rate.
``concurrency``
    Mean number of requests under way during the steady time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dspark_loadtest.plan import Outcome
from dspark_loadtest.record import RequestRecord

# Of the accounting, what is worth telling but no token lost or counted twice.
FAULTLESS = ("tokens_without_text", "without_running_usage")
PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)


@dataclass(frozen=True)
class Slo:
    """What a user is owed.

    Attributes
    ----------
    ttft_s : float or None
        Longest time from when a request was due to its first token.
    tok_s_user : float or None
        Least tokens a second while it decodes.
    """

    ttft_s: float | None = None
    tok_s_user: float | None = None

    def met(self, record: RequestRecord) -> bool:
        """Whether one request got what it is owed."""
        if not record.ok:
            return False
        ttft, rate = record.ttft_due_s, record.tok_s_user
        if self.ttft_s is not None and (ttft is None or ttft > self.ttft_s):
            return False
        return self.tok_s_user is None or rate is None or rate >= self.tok_s_user


def series(values: Iterable[float | None]) -> dict[str, float] | None:
    """Return count, mean, extremes and percentiles, linear between neighbours, of the values there are."""
    found = np.array([value for value in values if value is not None], dtype=np.float64)
    if not len(found):
        return None
    ranks = np.percentile(found, PERCENTILES)
    named = {f"p{q}": float(rank) for q, rank in zip(PERCENTILES, ranks, strict=True)}
    return {
        "count": len(found),
        "mean": float(found.mean()),
        "min": float(found.min()),
        **named,
        "max": float(found.max()),
    }


def summarise(outcome: Outcome, slo: Slo) -> dict[str, Any]:
    """Return every figure of a run; see the module. Series are in seconds, tokens, or tokens a second."""
    records = outcome.records
    done = [record for record in records if record.ok]
    waited = [record for record in records if record.ok or record.given_up]
    begin, end = outcome.steady
    good = [record for record in records if slo.met(record)]
    tokens = sum(record.completion_tokens for record in records)
    wall = max(outcome.wall_s, 1e-9)
    return {
        "requests": counts(records),
        "wall_s": outcome.wall_s,
        "steady_s": [begin, end],
        "output_tok_s": tokens_between(records, begin, end) / (end - begin) if end > begin else None,
        "output_tok_s_whole": tokens / wall,
        "prompt_tokens": sum(record.prompt_tokens for record in records),
        "completion_tokens": tokens,
        "concurrency": under_way(records, begin, end),
        "ttft_s": series(at_least(record, record.ttft_s, record.sent) for record in waited),
        "ttft_due_s": series(at_least(record, record.ttft_due_s, record.due) for record in waited),
        "latency_s": series(at_least(record, record.latency_s, record.sent) for record in waited),
        "latency_due_s": series(at_least(record, record.latency_due_s, record.due) for record in waited),
        "tpot_s": series(tpot_at_least(record) for record in waited),
        "tok_s_user": series(1 / tpot for tpot in map(tpot_at_least, waited) if tpot),
        "chunk_gap_s": series(gap for record in done for gap in np.diff(record.chunk_at)),
        "tokens_per_chunk": series(count for record in done for count in record.chunk_tokens[1:] if count),
        "send_lag_s": series(record.send_lag_s for record in records),
        "turn_wait_s": series(record.waited for record in records if record.turn and record.sent is not None),
        "speculation": speculation(done),
        "goodput": {
            "slo": {"ttft_s": slo.ttft_s, "tok_s_user": slo.tok_s_user},
            "share": len(good) / len(records) if records else None,
            "requests_per_s": len(good) / wall,
            "tok_s": sum(record.completion_tokens for record in good) / wall,
        },
        "accounting": accounting(records),
        "categories": by_category(done),
        "client": {"cpu_share": outcome.cpu_share, "cpu_s": outcome.cpu_s},
    }


def at_least(record: RequestRecord, measured: float | None, since: float | None) -> float | None:
    """Return what was measured; of a request that was given up before that, the seconds that were waited."""
    if measured is not None or not record.given_up or record.end is None or since is None:
        return measured
    return record.end - since


def tpot_at_least(record: RequestRecord) -> float | None:
    """Return the time per output token; of an answer that was given up, the silence at its end included."""
    if not record.given_up or record.first is None or record.end is None:
        return record.tpot_s
    after = record.seen_tokens - record.chunk_tokens[0] if record.seen_tokens else len(record.chunk_at) - 1
    return max(0.0, record.end - record.first) / max(1, after)


def counts(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Count requests by how they ended, and retries by why."""
    return {
        "sent": sum(record.sent is not None for record in records),
        "ok": sum(record.ok for record in records),
        "failed": sum(record.failed for record in records),
        "given_up": sum(record.given_up for record in records),
        "outcomes": dict(sorted(Counter(record.outcome for record in records).items())),
        "retries": dict(sorted(Counter(kind for record in records for kind in record.retries).items())),
        "finish_reasons": dict(sorted(Counter(r.finish_reason for r in records if r.finish_reason).items())),
    }


def tokens_between(records: Iterable[RequestRecord], begin: float, end: float) -> float:
    """Return the tokens that arrived in [begin, end)."""
    total = 0.0
    for record in records:
        if record.first is None or record.last is None:
            continue
        if record.seen_tokens:
            at = np.frombuffer(record.chunk_at, dtype=np.float64)
            total += float(np.asarray(record.chunk_tokens)[(at >= begin) & (at < end)].sum())
        elif record.last > record.first:
            inside = max(0.0, min(end, record.last) - max(begin, record.first))
            total += record.completion_tokens * inside / (record.last - record.first)
        elif begin <= record.first < end:
            total += record.completion_tokens
    return total


def under_way(records: Iterable[RequestRecord], begin: float, end: float) -> float | None:
    """Return the mean number of requests between sending and end during [begin, end)."""
    if end <= begin:
        return None
    spans = ((r.sent, r.end) for r in records if r.sent is not None and r.end is not None)
    return sum(max(0.0, min(end, last) - max(begin, first)) for first, last in spans) / (end - begin)


def speculation(records: Iterable[RequestRecord]) -> dict[str, Any] | None:
    """Pool the server's counters of requests by summing them; None if none has any."""
    found = [record for record in records if record.verify_rounds]
    rounds = sum(record.verify_rounds or 0 for record in found)
    if not rounds:
        return None
    correct = sum(record.correct_drafts or 0 for record in found)
    proposed = sum(record.proposed_drafts or 0 for record in found)
    verified = sum(
        (record.verify_rounds or 0) + (record.proposed_drafts or 0)
        if record.verify_tokens is None
        else record.verify_tokens
        for record in found
    )
    return {
        "requests": len(found),
        "rounds": rounds,
        "correct_drafts": correct,
        "proposed_drafts": proposed,
        "mean_accept_len": 1 + correct / rounds,
        "verify_tokens": verified,
        "mean_verify_len": verified / rounds,
    }


def accounting(records: Sequence[RequestRecord]) -> dict[str, int]:
    """Count the requests whose tokens do not add up, and what is no fault: see `FAULTLESS`."""
    done = [record for record in records if record.ok]
    running = [record for record in done if record.seen_tokens]
    return {
        "usage_went_back": sum(record.went_back for record in records),
        # Its text is empty or not yet a whole character, so that no chunk of its own shows it.
        "tokens_without_text": sum(max(0, record.completion_tokens - record.seen_tokens) for record in running),
        "chunks_do_not_add_up": sum(sum(record.chunk_tokens) != record.seen_tokens for record in running),
        "stopped_at_other_length": sum(
            record.finish_reason == "length" and record.completion_tokens != record.asked_output
            for record in done
            if record.asked_output is not None
        ),
        "without_running_usage": len(done) - len(running),
    }


def by_category(records: Iterable[RequestRecord]) -> dict[str, Any]:
    """Return tokens, rate and speculation of each category of text."""
    groups: dict[str, list[RequestRecord]] = {}
    for record in records:
        groups.setdefault(record.category or "given", []).append(record)
    return {
        name: {
            "requests": len(group),
            "completion_tokens": sum(record.completion_tokens for record in group),
            "tok_s_user": series(record.tok_s_user for record in group),
            "speculation": speculation(group),
        }
        for name, group in sorted(groups.items())
    }
