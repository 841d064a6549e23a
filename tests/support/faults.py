"""Faults that a test puts into a worker (`dspark_sglang.switches.run_test_hook`), all at once, each now and then.

What is no matter of a moment is another server's: a draft that belongs to another model.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from sgl_dspark.model.checkpoint import WEIGHTS_FILE, save_weights
from tests.support import pair


def inject(worker: Any) -> None:
    """Put every fault in."""
    break_confidence(worker)
    stall_relay(worker)
    lose_verdicts(worker)
    lie_about_times(worker)
    poison_freed_slots(worker)


def every(count: int) -> Callable[[], bool]:
    """Give a function that returns True at each ``count``-th call."""
    calls = itertools.count(1)
    return lambda: next(calls) % count == 0


def break_confidence(worker: Any) -> None:
    """Now NaN, later also beyond every range, now as it should be.

    What is out of range ruins the calibration, after which nothing else is asked of confidences.
    """
    right, turn = worker.drafter.confidence_logits, itertools.count()

    def wrong(h: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        found, turns = right(h, previous), next(turn)
        now = turns % 6
        if now == 1:
            return torch.full_like(found, torch.nan)
        if now == 3:
            found[::2] = torch.nan
        if now == 5 and turns > 400:
            return torch.where(torch.arange(found.shape[1]) % 2 == 0, 3e38, -3e38).expand_as(found).clone()
        return found

    worker.drafter.confidence_logits = wrong


def stall_relay(worker: Any) -> None:
    """Of 600 steps the last 300 hear nothing, and the next everything at once."""
    relay = worker.scheduler._relay
    receive, steps = relay.receive, itertools.count()
    relay.receive = lambda: [] if next(steps) % 600 >= 300 else receive()


def lose_verdicts(worker: Any) -> None:
    """Forget to tell one verdict in 50, which leaves the next ones without their step."""
    tell, now = worker.on_verify_complete_cpu, every(50)

    def forgetful(counts: list[int], batch_size: int = 0) -> None:
        if not now():
            tell(counts, batch_size)

    worker.on_verify_complete_cpu = forgetful


def lie_about_times(worker: Any) -> None:
    """Say that steps take a thousandth, or a thousand times, of what they do."""
    observe, turn = worker.knowledge.observe_time, itertools.count()

    def lie(requests: int, budget: int, drafted: int, context: int, seconds: float) -> None:
        observe(requests, budget, drafted, context, seconds * (1e-3 if next(turn) // 40 % 2 else 1e3))

    worker.knowledge.observe_time = lie


def poison_freed_slots(worker: Any) -> None:
    """Fill slots with NaN when they are given back: whoever reads one that was not written again shows it."""
    allocator, pool = worker.token_to_kv_pool_allocator, worker.model_runner.token_to_kv_pool
    give_back = allocator.free

    def poison(slots: torch.Tensor) -> None:
        for buffer in (*pool.k_buffer, *pool.v_buffer):
            buffer[slots] = torch.nan
        worker.parts.pool.buffer[:, :, slots] = torch.nan
        give_back(slots)

    allocator.free = poison


def write_foreign_draft(folder: Path) -> Path:
    """Write a draft of the fixture's form whose weights know nothing of its target; returns the folder.

    Its confidence head is the right one's, so that it is as sure of its drafts.
    """
    shutil.copytree(pair.DRAFT, folder)
    file, generator = folder / WEIGHTS_FILE, torch.Generator().manual_seed(0)
    weights = load_file(file)
    for name, weight in weights.items():
        if weight.dim() > 1 and "confidence" not in name:
            order = torch.randperm(weight.numel(), generator=generator)
            weights[name] = weight.flatten()[order].view_as(weight)
    save_weights(weights, file)
    return folder
