"""Ragged attention on a CPU without padding: each request's rows read exactly its own KV, straight from the pool.

What torch offers wants batches of one length: lengths that differ have to be padded, KV gathered in every layer, and
large temporaries are faulted in anew each time. At 16 requests of about 130 tokens (12 heads of 32, one thread) that
took 370 to 880 us a layer; this takes 160 to 210, and hardly more for four rows of a request than for one.

A row's result does not depend on which other rows are computed with it, so that verification rounds as decoding does.

Shape legend: T query tokens, H query heads, K KV heads, D head dim, S KV slots.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import torch

from dspark_sglang.attention.layout import LANES
from dspark_sglang.attention.microkernels import KEYS, ROWS, emit
from dspark_sglang.switches import ATTENTION_KERNEL, switched_on

if TYPE_CHECKING:
    from dspark_sglang.attention.layout import RaggedPlan

_MOST_DIM = 256


@functools.cache
def wanted() -> bool:
    """Return whether the kernel is to be used; read once, since every layer asks. Raises as `switched_on`."""
    return switched_on(ATTENTION_KERNEL)


def supported(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether `attend` can compute this: fp32 or bf16 on a CPU, contiguous KV of one shape, D a multiple of 16."""
    dim = queries.shape[-1]
    return (
        keys.device.type == "cpu"
        and keys.dtype in (torch.float32, torch.bfloat16)
        and keys.dtype == values.dtype == queries.dtype
        and keys.shape == values.shape
        and dim == keys.shape[-1]
        and dim % LANES == 0
        and dim <= _MOST_DIM
        and keys.is_contiguous()
        and values.is_contiguous()
        and wanted()
    )


def attend(
    plan: RaggedPlan, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> torch.Tensor:
    """Compute what `cpu.run_plan` does, for inputs that are `supported`.

    Sums are in fp32 whatever the type.

    Parameters
    ----------
    plan : RaggedPlan
    queries : float [T, H, D]
    keys, values : float [S, K, D]
    scale : float

    Returns
    -------
    float [T, H, D]
        In the queries' dtype.
    """
    rows, heads, dim = queries.shape
    num_kv = keys.shape[1]
    found = torch.empty((rows, heads, dim))
    host, work = plan.host, plan.work(num_kv, heads // num_kv)
    threads = torch.get_num_threads()
    run = _compiled(dim, heads // num_kv, keys.dtype == torch.bfloat16, threads > 1)
    if threads > 1:
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    run(
        queries.detach().float().contiguous().numpy(),
        _flat(keys),
        _flat(values),
        num_kv * dim,
        host.table,
        host.request_rows,
        host.indptr,
        host.kv_lens,
        *work,
        np.float32(scale),
        plan.causal,
        found.numpy(),
        _scratch(threads, host.longest + KEYS),
    )
    return found if queries.dtype == torch.float32 else found.to(queries.dtype)


_spaces: dict[int, np.ndarray] = {}


def _scratch(threads: int, tokens: int) -> np.ndarray:
    """Return scores of one work item for each thread: float32 [threads, at least tokens * LANES].

    Kept from call to call, since fresh pages are slow; a process attends in one call at a time.
    """
    space = _spaces.get(threads)
    if space is None or space.shape[1] < tokens * LANES:
        space = _spaces[threads] = np.empty((threads, 2 * tokens * LANES), np.float32)
    return space


def _flat(pool: torch.Tensor) -> np.ndarray:
    flat = pool.view(-1)
    return (flat.view(torch.int16) if pool.dtype == torch.bfloat16 else flat).numpy()


_NO_CHECKS: dict[str, Any] = {"boundscheck": False, "error_model": "numpy"}


@functools.cache
def _compiled(dim: int, group: int, half: bool, parallel: bool) -> Callable[..., None]:
    """Compile the loops around the vector code for one shape of heads; takes a second or two at the first call."""
    item = _item(dim, group, half)

    @numba.njit(parallel=parallel, **_NO_CHECKS)
    def run(  # type: ignore[no-untyped-def]
        queries, keys, values, stride, table, rows, indptr, kv_lens, request, head, first, scale, causal, out, space
    ):
        for n in numba.prange(len(request)):
            r = request[n]
            start, kv_len = indptr[r], kv_lens[r]
            slots, length = table[rows[r]], indptr[r + 1] - start
            scores = space[numba.get_thread_id()] if parallel else space[0]
            place = (start, length, kv_len, head[n], first[n])
            item(queries, keys, values, stride, slots, place, scale, causal, out, scores)

    return run


def _item(dim: int, group: int, half: bool) -> Callable[..., None]:
    """Make the function that computes one work item."""
    score, greatest, exponentials, accumulate, width = emit(dim, half)
    load, mask = _load(dim, group), _mask(group)
    lowest, one = np.float32(-np.inf), np.float32(1.0)

    @numba.njit(**_NO_CHECKS)
    def item(queries, keys, values, stride, slots, place, scale, causal, out, scores):  # type: ignore[no-untyped-def]
        q_start, q_len, kv_len, head, first = place
        count = min(LANES, q_len * group - first)
        columns, sums = np.empty(dim * LANES, np.float32), np.zeros(LANES * dim, np.float32)
        top, total = np.full(LANES, lowest), np.zeros(LANES, np.float32)
        # The last KEYS slots may reach past the request's own: those are read as its last one, and count nothing.
        tail = np.empty(KEYS, slots.dtype)
        whole = kv_len // KEYS * KEYS
        for i in range(KEYS):
            tail[i] = slots[min(whole + i, kv_len - 1)]
        load(queries, q_start, head, first, count, scale, columns)
        seen = kv_len - q_len + (first + count - 1) // group + 1 if causal else kv_len
        end = (seen + KEYS - 1) // KEYS * KEYS
        for token in range(0, end, KEYS):
            if token < whole:
                score(keys, stride, slots, token, head * dim, columns, scores, token)
            else:
                score(keys, stride, tail, 0, head * dim, columns, scores, token)
        mask(scores, first, count, seen, end, kv_len - q_len + first // group + 1, causal)
        for token in range(0, end, KEYS):
            greatest(scores, token, top)
        for token in range(0, end, KEYS):
            exponentials(scores, token, top, total)
        for row in range(0, count, ROWS):
            for column in range(0, dim, width):
                for token in range(0, end, KEYS):
                    if token < whole:
                        accumulate(values, stride, slots, token, head * dim, scores, token, row, sums, column)
                    else:
                        accumulate(values, stride, tail, 0, head * dim, scores, token, row, sums, column)
        for lane in range(count):
            pair, part = first + lane, one / total[lane]
            row = out[q_start + pair // group, head * group + pair % group]
            for d in range(dim):
                row[d] = sums[lane * dim + d] * part

    return item


def _load(dim: int, group: int) -> Callable[..., None]:
    """Make the function that turns an item's query rows into scaled columns; lanes without a row are zero."""
    zero = np.float32(0.0)

    @numba.njit(**_NO_CHECKS)
    def load(queries, start, head, first, count, scale, columns):  # type: ignore[no-untyped-def]
        for lane in range(LANES):
            if lane < count:
                pair = first + lane
                row = queries[start + pair // group, head * group + pair % group]
                for d in range(dim):
                    columns[d * LANES + lane] = row[d] * scale
            else:
                for d in range(dim):
                    columns[d * LANES + lane] = zero

    return load


def _mask(group: int) -> Callable[..., None]:
    """Make the function that hides what a row must not see: later tokens, and what only fills the last KEYS."""
    lowest = np.float32(-np.inf)

    @numba.njit(**_NO_CHECKS)
    def mask(scores, first, count, seen, end, begin, causal):  # type: ignore[no-untyped-def]
        """``begin`` tokens are seen by the item's first row, ``seen`` by its last."""
        for token in range(begin if causal else seen, end):
            for lane in range(count):
                if token >= seen or (causal and token >= begin + (first + lane) // group - first // group):
                    scores[token * LANES + lane] = lowest

    return mask
