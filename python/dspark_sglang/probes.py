"""Times the worker's own steps at start-up, with requests that exist only for that (Sec. 3.2.2: profiled once).

What is timed is what serves: the same draft, verification, acceptance and commit, on the real weights, before any
request is there. The host's share (scheduling, streaming) is not in it; serving learns that.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from dspark_sglang import compat
from dspark_sglang.allocation import DevicePlan
from dspark_sglang.compat_target import flat_verify_batch, forward_target_flat
from dspark_sglang.running import Running
from dspark_sglang.sampling_bridge import RowSampling
from sgl_dspark.sps.fit import Kind, Probe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dspark_sglang.verify import VerifyWindow
    from dspark_sglang.worker import DsparkWorker
    from sgl_dspark.sampling.block import DraftBlock

logger = logging.getLogger(__name__)

TURNS = 6
# No further turn begins that would end later than this.
TOTAL_S = 10.0
SHORT_CONTEXT, LONG_CONTEXT = 128, 768


@dataclass(frozen=True)
class Point:
    """One size to measure: ``requests`` of ``context`` tokens, of which ``tokens`` rows are verified."""

    requests: int
    tokens: int
    context: int


def ladder(
    max_requests: int, gamma: int, room: int, context_length: int, tiers: Sequence[int] | None = None
) -> list[Point]:
    """List the sizes to measure, smallest first.

    Parameters
    ----------
    max_requests : int
        Most requests that run at once.
    gamma : int
    room : int
        KV slots that may be written.
    context_length : int
        Tokens that a request may have.
    tiers : sequence of int, optional
        Verify tokens at which graphs exist; each is measured, since what a step costs is what its tier costs.

    Returns
    -------
    list of Point
        Empty if not even one request fits.
    """
    short, long = (min(context, context_length - gamma - 1) for context in (SHORT_CONTEXT, LONG_CONTEXT))
    if short < 1:
        return []
    counts = sorted({*(2**i for i in range(12) if 2**i < max_requests), max_requests})
    points = []
    for requests in counts:
        widths = range(1, gamma + 2) if requests < 4 else sorted({1, 2, 3, gamma + 1})
        points += [Point(requests, requests * width, short) for width in widths]
        if requests in (1, 4, 16) and long > short:
            points += [Point(requests, requests * width, long) for width in (1, gamma + 1)]
    for tokens in tiers or ():
        # As many requests as fill it with blocks half verified.
        requests = min(max_requests, max(1, 2 * tokens // (gamma + 2)))
        if requests < tokens <= requests * (gamma + 1):
            points.append(Point(requests, tokens, short))
    points = list(dict.fromkeys(points))
    fits = [p for p in points if p.requests * (p.context + gamma + 1) < room]
    return sorted(fits, key=lambda p: (p.tokens, p.requests, p.context))


def measure_step_times(worker: DsparkWorker) -> list[Probe]:
    """Time drafts, verifications and plain steps over a ladder of sizes.

    The ladder is climbed several times, so that a disturbance of the machine meets each size once; and since
    disturbances only ever add time, the slower half of the repeats is left out.

    Returns
    -------
    list of Probe
        The ``verify`` and ``plain`` times hold acceptance and commit.
    """
    started = time.perf_counter()
    context_length = worker.model_runner.model_config.context_len
    tiers = None if worker.device_path is None else worker.device_path.tiers
    points = ladder(worker.max_requests, worker.gamma, worker.num_slots, context_length, tiers)
    if not points:
        return []
    times: dict[tuple[Kind, Point], list[float]] = {}
    logger.info("measuring step times: %d sizes, up to %d verify tokens", len(points), points[-1].tokens)
    with _slot_table_restored(worker):
        for turn in range(TURNS + 1):
            for point in points:
                took = _one_step(worker, point)
                # The first turn warms caches up; it counts only where there is time for no other.
                for kind, seconds in took.items():
                    known = times.setdefault((kind, point), [])
                    if turn == 1:
                        known.clear()
                    known.append(seconds)
            spent = time.perf_counter() - started
            logger.info("measuring step times: turn %d of at most %d, %.1f s", turn + 1, TURNS + 1, spent)
            if spent * (turn + 2) / (turn + 1) > TOTAL_S:
                break
        if worker.device_path is not None:
            worker.device_path.flush()
    return [
        Probe(kind, point.requests, point.tokens, point.requests * point.context, seconds)
        for (kind, point), repeats in times.items()
        for seconds in sorted(repeats)[: (len(repeats) + 1) // 2]
    ]


@contextlib.contextmanager
def _slot_table_restored(worker: DsparkWorker) -> Iterator[None]:
    """Zero the rows of the slot table that the probes fill, as SGLang expects them of free rows."""
    table = worker.model_runner.req_to_token_pool.req_to_token
    before = table.clone()
    try:
        yield
    finally:
        table.copy_(before)


def _one_step(worker: DsparkWorker, point: Point) -> dict[Kind, float]:
    """Run the parts of one decode step and time each."""
    device, count, gamma = worker.device, point.requests, worker.gamma
    table = worker.model_runner.req_to_token_pool.req_to_token
    width = point.context + gamma + 1
    rows_of_table = torch.arange(1, count + 1, device=device)
    slots = torch.arange(1, count * width + 1, device=device).view(count, width)
    table[rows_of_table.unsqueeze(1), torch.arange(width, device=device)] = slots.to(table.dtype)
    seq_lens = torch.full((count,), point.context, dtype=torch.int64, device=device)
    anchors = torch.arange(count, device=device) % worker.drafter.config.vocab_size
    rows = RowSampling.greedy(count, device)
    on_device = worker.device_path is not None and point.tokens > count
    if worker.device_path is not None and not on_device:
        worker.device_path.flush()
    clock = _Clock(device)
    layout = worker.parts.layout(seq_lens, seq_lens.cpu(), rows_of_table)
    running = Running(anchors, seq_lens, rows_of_table, layout, rows, np.zeros(count, np.int64))
    return (_on_device if on_device else _from_host)(worker, running, point, clock)


def _from_host(worker: DsparkWorker, running: Running, point: Point, clock: _Clock) -> dict[Kind, float]:
    count, gamma, layout, rows = point.requests, worker.gamma, running.layout, running.rows
    took: dict[Kind, float] = {}
    block = None
    if point.tokens > count:
        block = worker.parts.draft(layout, running.anchors, running.seq_lens, running.request_rows, rows)
        if point.tokens == count * (gamma + 1):
            took["draft"] = clock.lap()
    lens = torch.full((count,), point.tokens // count, dtype=torch.int64)
    clock.lap()
    _verify(worker, running, layout.window(lens), block)
    took["verify" if block is not None else "plain"] = clock.lap()
    return took


def _on_device(worker: DsparkWorker, running: Running, point: Point, clock: _Clock) -> dict[Kind, float]:
    """Time the graphs that serve, or what serves where there are none."""
    count, gamma, path = point.requests, worker.gamma, worker.device_path
    assert path is not None
    took: dict[Kind, float] = {}
    room = np.full(count, gamma)
    plan = DevicePlan(0, room, _spread(point.tokens - count, count, gamma), point.tokens - count)
    proposal = path.propose(running, plan)
    drafted = clock.lap()
    if point.tokens == count * (gamma + 1):
        took["draft"] = drafted
    output, features, window = path.verify(running, plan, proposal)
    worker.parts.accept(proposal.block, window, output.next_token_logits, running.rows)
    path.commit(features, window)
    took["verify"] = clock.lap()
    return took


def _spread(drafts: int, requests: int, gamma: int) -> np.ndarray:
    """Deal ``drafts`` out evenly, at most ``gamma`` to each: int64 [requests]."""
    each, more = divmod(drafts, requests)
    return np.minimum(each + (np.arange(requests) < more), gamma)


def _verify(worker: DsparkWorker, running: Running, window: VerifyWindow, block: DraftBlock | None) -> None:
    if worker.device_path is not None:
        output, features = worker.device_path.verify_from_host(running, window, block)
    else:
        verify_input = worker.parts.verify_input(running.anchors, block, window)
        slots, lengths = window.pack(window.slots), running.seq_lens
        batch = flat_verify_batch(
            worker.target_worker, verify_input, lengths, lengths.cpu(), running.request_rows, slots
        )
        output = forward_target_flat(worker.target_worker, batch)
        features = compat.take_features(output)
    outcome = worker.parts.accept(block, window, output.next_token_logits, running.rows)
    worker.parts.commit(features, window, outcome.accept_lens)


class _Clock:
    """Laps of wall time; an accelerator is waited for at each."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._at = self._now()

    def _now(self) -> float:
        if self._device.type == "cuda":
            # Sync: start-up only; a lap must contain the work that it launched.
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def lap(self) -> float:
        """Seconds since the lap before."""
        now = self._now()
        took, self._at = now - self._at, now
        return took
