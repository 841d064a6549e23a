"""What the target itself says: laws from transformers in fp32, warped in fp64, and joint laws by enumeration."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tests.support.pair import TARGET

ROWS_AT_ONCE = 16


@cache
def target_model() -> Any:
    """Load the fixture target with transformers."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()


def warped(logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """Turn logits [N, V] into laws in fp64: softmax, the top_k (0: all) and top_p sets of it, renormalised once."""
    law = (logits.double() / temperature).softmax(-1)
    if top_k == 0 and top_p == 1:
        return law
    top, ids = law.topk(top_k or law.shape[1])
    top[top.cumsum(-1) - top > top_p] = 0.0
    return torch.zeros_like(law).scatter_(-1, ids, top / top.sum(-1, keepdim=True))


@torch.no_grad()
def next_laws(texts: Sequence[Sequence[int]], temperature: float = 1.0) -> Tensor:
    """Give the law fp64 [N, V] of the token after each of N texts of one length."""
    parts = [
        target_model()(torch.tensor(texts[i : i + ROWS_AT_ONCE])).logits[:, -1]
        for i in range(0, len(texts), ROWS_AT_ONCE)
    ]
    return warped(torch.cat(parts), temperature)


def partition(prompt: Sequence[int], length: int, least: float) -> dict[tuple[int, ...], float]:
    """Split the continuations of ``length`` tokens at temperature 1 into cells, with their exact probabilities.

    A continuation of probability ``least`` or more is a cell of its own. Every other one falls into the cell of its
    longest head that is that likely: the key of a cell is its sequence or its head.
    """
    cells: dict[tuple[int, ...], float] = {}
    heads: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        if not heads:
            break
        longer: dict[tuple[int, ...], float] = {}
        for (head, mass), law in zip(heads.items(), next_laws([[*prompt, *head] for head in heads]), strict=True):
            listed = {(*head, t): mass * float(law[t]) for t in (law * mass >= least).nonzero().flatten().tolist()}
            longer |= listed
            cells[head] = max(mass - sum(listed.values()), 0.0)
        heads = longer
    return cells | heads


def cell_of(tokens: Sequence[int], cells: dict[tuple[int, ...], float]) -> tuple[int, ...]:
    """Find the cell of a continuation: its longest head among the keys."""
    return next(key for n in range(len(tokens), -1, -1) if (key := tuple(tokens[:n])) in cells)
