"""What is measured, each figure defined once.

Times are seconds of the client's monotonic clock. For one request: ``start`` is when it is sent, ``first`` when the
first chunk with text arrives, ``end`` when the chunk with the finish reason arrives; ``n`` is the server's
``usage.completion_tokens``.

For one run (one arm, one round, one concurrency level; closed loop, each worker sends its next request when the
previous one has ended):

``tok_s``
    sum of ``n`` over requests / (last ``end`` - first ``start``); the tail with fewer requests in flight included.
``tok_s_user``
    mean over requests of ``(n - 1) / (end - first)``: decoding alone. The token that prefill yields is left out of
    the count as its time is left out of the interval; requests of one token are left out.
``tok_s_user_e2e``
    mean over requests of ``n / (end - start)``: what the user waits, prefill and queueing included.
``ttft_ms``
    median over requests of ``first - start``.
``mean_accept_len``
    tokens per verification round, bonus included, weighted by rounds:
    1 + (sum of accepted drafts) / (sum of verification rounds) over requests. Both are the server's own counters of
    the request (``sglext.spec_tokens_details``), so nothing is sampled or averaged twice. The token of prefill is in
    no round; a last round that overruns ``max_tokens`` or a stop counts whole, as in the paper's protocol.
``emitted_per_round``
    sum of ``n - 1`` / sum of rounds: the same after what overran was cut off, so never more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

METRICS = ("tok_s", "tok_s_user", "tok_s_user_e2e", "ttft_ms", "mean_accept_len", "emitted_per_round")
# Reported as a ratio of an arm to the baseline.
RATIO_METRICS = ("tok_s", "tok_s_user", "tok_s_user_e2e", "ttft_ms")


@dataclass(frozen=True)
class RequestResult:
    """One answered request.

    Attributes
    ----------
    prompt : int
        Its place in the prompt list.
    start, first, end : float
        See the module; seconds.
    prompt_tokens, completion_tokens : int
        As the server counts them.
    finish_reason : str
        ``length`` or ``stop``, as a rule.
    text : str
        What was answered.
    verify_rounds, correct_drafts : int or None
        Server's counters of this request; None if it reports none (no speculation).
    histogram : tuple of int
        Rounds by number of accepted drafts, 0 first; empty if not reported.
    """

    prompt: int
    start: float
    first: float
    end: float
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    text: str
    verify_rounds: int | None = None
    correct_drafts: int | None = None
    histogram: tuple[int, ...] = ()


def run_metrics(results: Sequence[RequestResult]) -> dict[str, float | None]:
    """Reduce the requests of one run to `METRICS`.

    Parameters
    ----------
    results : sequence of RequestResult
        At least one.

    Returns
    -------
    dict
        By metric name; None where it is not defined (accept length without speculation, decoding rate when every
        answer is one token).
    """
    wall_s = max(r.end for r in results) - min(r.start for r in results)
    decoding = [
        (r.completion_tokens - 1) / (r.end - r.first) for r in results if r.completion_tokens > 1 and r.end > r.first
    ]
    speculative = [r for r in results if r.verify_rounds]
    rounds = sum(r.verify_rounds or 0 for r in speculative)
    correct = sum(r.correct_drafts or 0 for r in speculative)
    emitted = sum(r.completion_tokens - 1 for r in speculative)
    return {
        "tok_s": sum(r.completion_tokens for r in results) / wall_s,
        "tok_s_user": fmean(decoding) if decoding else None,
        "tok_s_user_e2e": fmean(r.completion_tokens / (r.end - r.start) for r in results),
        "ttft_ms": 1000 * median(r.first - r.start for r in results),
        "mean_accept_len": 1 + correct / rounds if rounds else None,
        "emitted_per_round": emitted / rounds if rounds else None,
    }


def merge_histograms(histograms: Sequence[Sequence[int]]) -> list[int]:
    """Add histograms of different lengths bin by bin."""
    width = max((len(h) for h in histograms), default=0)
    return [sum(h[i] for h in histograms if len(h) > i) for i in range(width)]


def paired_ratios(baseline: dict[int, float], other: dict[int, float]) -> list[float]:
    """Divide ``other`` by ``baseline`` round by round.

    Parameters
    ----------
    baseline, other : dict of int to float
        Value by round; a round that only one of them has, or whose baseline is 0, is left out.
    """
    return [other[r] / baseline[r] for r in sorted(baseline.keys() & other.keys()) if baseline[r]]
