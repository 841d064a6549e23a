"""Fits a trace to the model that is served and to the time there is; every rule is stated in words for the report."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dspark_loadtest.errors import LoadtestError
from dspark_loadtest.traces.request import Trace, TraceRequest

# Below this share of repeated timestamps they were not rounded, but met by chance.
_REPEATED = 0.05
# Share of distances that the tick must explain.
_EXPLAINED = 0.95


@dataclass(frozen=True)
class Fit:
    """How lengths are rescaled and cut.

    Attributes
    ----------
    prompt_scale, output_scale : float
        Multiply lengths before they are cut.
    context : int or None
        Tokens that prompt and answer may have together, chat template included.
    max_output : int or None
        Longest answer.
    overhead : int
        Tokens that the chat template adds.
    """

    prompt_scale: float = 1.0
    output_scale: float = 1.0
    context: int | None = None
    max_output: int | None = None
    overhead: int = 0

    def __post_init__(self) -> None:
        for name in ("prompt_scale", "output_scale"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise LoadtestError(f"{name}: {value} is not a positive number")
        if self.context is not None and self.context < self.overhead + 2:
            raise LoadtestError(
                f"context: {self.context} tokens hold no request beside {self.overhead} of the template"
            )


def cut_out(trace: Trace, *, start_s: float = 0.0, duration_s: float | None = None, limit: int | None = None) -> Trace:
    """Keep the requests of a stretch of the trace's own time, at most ``limit``; time begins anew at its start.

    Sessions keep the turns that fall into it.
    """
    low, high = 1e3 * start_s, math.inf if duration_s is None else 1e3 * (start_s + duration_s)
    if not low and high == math.inf and limit is None:
        return trace
    kept: list[TraceRequest] = []
    inside: set[str] = set()
    for request in trace.requests:
        if request.timestamp is None:
            if trace.timed and request.session_id not in inside:
                continue
            kept.append(request)
        elif low <= request.timestamp < high:
            kept.append(replace(request, timestamp=round(request.timestamp - low, 4)))
        else:
            continue
        if request.session_id is not None:
            inside.add(request.session_id)
        if len(kept) == limit:
            break
    if not kept:
        raise LoadtestError(f"no request from {start_s:g} s on for {duration_s} s; the trace has {trace.span_s:g} s")
    stretch = f"from {start_s:g} s" + ("" if duration_s is None else f" for {duration_s:g} s")
    rule = f"kept {len(kept)} of {len(trace)} requests: {stretch}" + (f", the first {limit}" if limit else "")
    return trace.changed(tuple(kept), rule)


def thin(trace: Trace, share: float, *, seed: int = 0) -> Trace:
    """Keep each request, or whole session, with probability ``share``."""
    if not 0 < share <= 1:
        raise LoadtestError(f"share: {share} is outside (0, 1]")
    if share == 1:
        return trace
    rng = np.random.default_rng([seed, 1])
    names = {s: rng.random() < share for s in dict.fromkeys(r.session_id for r in trace.requests) if s is not None}
    chosen = rng.random(len(trace)) < share
    pairs = zip(trace.requests, chosen, strict=True)
    kept = tuple(r for r, one in pairs if (names[r.session_id] if r.session_id is not None else one))
    if not kept:
        raise LoadtestError(f"share: {share} leaves none of {len(trace)} requests; raise it")
    return trace.changed(kept, f"kept {len(kept)} of {len(trace)} requests, each with probability {share:g}")


def retime(trace: Trace, rate_rps: float, *, seed: int = 0) -> Trace:
    """Let the same requests, in the same order, arrive as a Poisson process of another rate; sessions come apart."""
    if not 0 < rate_rps < math.inf:
        raise LoadtestError(f"rate_rps: {rate_rps} is not a positive number")
    rng = np.random.default_rng([seed, 3])
    at = 1e3 * np.cumsum(rng.exponential(1 / rate_rps, len(trace)))
    pairs = zip(trace.requests, at, strict=True)
    moved = tuple(replace(r, timestamp=round(float(ms), 4), session_id=None, delay=None) for r, ms in pairs)
    return trace.changed(moved, f"arrivals replaced by a Poisson process of {rate_rps:g} requests a second")


def tick_ms(trace: Trace) -> float | None:
    """Return the tick, in ms, to which timestamps were rounded; None if they were not.

    They were if more than one in twenty repeats an earlier one, and nearly all distances between those that differ are
    multiples of the median distance, give or take a millisecond, which is the tick then.
    """
    stamps = [r.timestamp for r in trace.requests if r.timestamp is not None]
    distinct = np.unique(np.array(stamps))
    if len(distinct) < 3 or 1 - len(distinct) / len(stamps) <= _REPEATED:
        return None
    distances = np.diff(distinct)
    tick = float(np.median(distances))
    off = np.abs(distances - tick * np.maximum(np.rint(distances / tick), 1))
    return tick if tick >= 2 and (off <= 1 + 1e-3 * distances).mean() >= _EXPLAINED else None


def spread(trace: Trace, *, seed: int = 0) -> Trace:
    """Move rounded timestamps uniformly within their tick, in unchanged order; others stay as they are."""
    tick = tick_ms(trace)
    if tick is None:
        return trace
    rng = np.random.default_rng([seed, 2])
    counts = Counter(r.timestamp for r in trace.requests if r.timestamp is not None)
    offsets = {stamp: iter(np.sort(rng.uniform(0, tick, n))) for stamp, n in sorted(counts.items())}
    moved = tuple(
        r if r.timestamp is None else replace(r, timestamp=round(r.timestamp + float(next(offsets[r.timestamp])), 4))
        for r in trace.requests
    )
    return trace.changed(moved, f"timestamps were rounded to {tick:g} ms: each was moved uniformly within its tick")


def fit_lengths(trace: Trace, fit: Fit) -> Trace:
    """Rescale lengths, and cut what the context does not hold.

    Answers come first: ``round(output * output_scale)``, at least 1, at most ``max_output``. Prompts become
    ``round(input * prompt_scale)``, at least 1, and are cut at their end to what the answer leaves of the context, so
    that shared beginnings stay shared; a hash block stands for ``block_size * prompt_scale`` tokens from then on.
    Requests that carry their own text are left as they are.
    """
    cut_prompts = cut_outputs = 0
    block = max(1, round(trace.block_size * fit.prompt_scale))
    made = []
    for request in trace.requests:
        wanted = None if request.output_length is None else max(1, round(request.output_length * fit.output_scale))
        output = wanted
        if output is not None:
            most = min(_or_inf(fit.max_output), _or_inf(fit.context) - fit.overhead - 1)
            output = int(min(output, most))
            cut_outputs += output != wanted
        prompt = request.input_length
        ids = request.hash_ids
        if prompt is not None:
            scaled = max(1, round(prompt * fit.prompt_scale))
            prompt = int(min(scaled, max(1, _or_inf(fit.context) - fit.overhead - (output or 1))))
            cut_prompts += prompt != scaled
            ids = ids[: math.ceil(prompt / block)]
        made.append(replace(request, input_length=prompt, output_length=output, hash_ids=ids))
    rule = (
        f"lengths: prompts times {fit.prompt_scale:g}, answers times {fit.output_scale:g}, within a context of "
        f"{fit.context or 'any'} tokens; cut: {cut_prompts} prompts, {cut_outputs} answers of {len(trace)}"
    )
    return trace.changed(tuple(made), rule, block_size=block)


def _or_inf(value: int | None) -> float:
    return math.inf if value is None else value


def describe(trace: Trace) -> dict[str, Any]:
    """Return the shape of a trace: requests, seconds, rate, percentiles of lengths, how its arrivals cluster."""
    stamps = np.array([r.timestamp for r in trace.requests if r.timestamp is not None]) / 1e3
    found: dict[str, Any] = {"requests": len(trace), "span_s": trace.span_s}
    if len(stamps) > 1 and trace.span_s > 0:
        gaps = np.diff(np.sort(stamps))
        found["mean_rps"] = len(stamps) / trace.span_s
        found["gap_cv"] = float(gaps.std() / gaps.mean()) if gaps.mean() else None
        counts = np.bincount(((stamps - stamps.min()) // 10).astype(int))
        found["dispersion_10s"] = float(counts.var() / counts.mean())
    for name in ("input_length", "output_length"):
        values = [v for v in (getattr(r, name) for r in trace.requests) if v is not None]
        if values:
            found[name] = {f"p{q}": float(np.percentile(values, q)) for q in (50, 90, 99)} | {"max": max(values)}
    return found
