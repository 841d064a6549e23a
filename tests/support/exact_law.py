"""What the target itself says: laws from transformers in fp32, warped in fp64, and joint laws by enumeration."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tests.support.pair import TARGET, tokenizer

ROWS_AT_ONCE = 16


@cache
def target_model() -> Any:
    """Load the fixture target with transformers."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()


def warped(logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Tensor:
    """Turn logits [N, V] into laws in fp64: softmax, its top_k (0: all), top_p and min_p sets, renormalised once."""
    law = (logits.double() / temperature).softmax(-1)
    if top_k == 0 and top_p == 1 and min_p == 0:
        return law
    top, ids = law.topk(top_k or law.shape[1])
    top[(top.cumsum(-1) - top > top_p) | (top < min_p * law.amax(-1, keepdim=True))] = 0.0
    return torch.zeros_like(law).scatter_(-1, ids, top / top.sum(-1, keepdim=True))


@torch.no_grad()
def next_laws(texts: Sequence[Sequence[int]], **sampling: Any) -> Tensor:
    """Give the law fp64 [N, V] of the token after each of N texts of one length; ``sampling`` as of `warped`."""
    parts = [
        target_model()(torch.tensor(texts[i : i + ROWS_AT_ONCE])).logits[:, -1]
        for i in range(0, len(texts), ROWS_AT_ONCE)
    ]
    return warped(torch.cat(parts), **sampling)


def partition(prompt: Sequence[int], length: int, least: float, **sampling: Any) -> dict[tuple[int, ...], float]:
    """Split the continuations of ``length`` tokens, at temperature 1 by itself, into cells with exact probabilities.

    A continuation of probability ``least`` or more is a cell of its own. Every other one falls into the cell of its
    longest head that is that likely: the key of a cell is its sequence or its head.
    """
    cells: dict[tuple[int, ...], float] = {}
    heads: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        if not heads:
            break
        longer: dict[tuple[int, ...], float] = {}
        for (head, mass), law in zip(
            heads.items(), next_laws([[*prompt, *head] for head in heads], **sampling), strict=True
        ):
            listed = {(*head, t): mass * float(law[t]) for t in (law * mass >= least).nonzero().flatten().tolist()}
            longer |= listed
            cells[head] = max(mass - sum(listed.values()), 0.0)
        heads = longer
    return cells | heads


def cell_of(tokens: Sequence[int], cells: dict[tuple[int, ...], float]) -> tuple[int, ...]:
    """Find the cell of a continuation: its longest head among the keys."""
    return next(key for n in range(len(tokens), -1, -1) if (key := tuple(tokens[:n])) in cells)


def penalised_logits(
    logits: Tensor,
    answer: Sequence[int],
    *,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
) -> Tensor:
    """Penalise logits [N, V] of the positions of an answer one after another, each with the tokens before it."""
    found = logits.double().clone()
    counts = torch.zeros(logits.shape[1], dtype=torch.float64)
    for row, token in zip(found, answer, strict=True):
        seen = counts > 0
        row -= frequency_penalty * counts + presence_penalty * seen
        row[seen & (row < 0)] *= repetition_penalty
        row[seen & (row > 0)] /= repetition_penalty
        counts[token] += 1
    return found


def constrained_logits(logits: Tensor, answer: Sequence[int], pattern: str) -> Tensor:
    """Mask logits [N, V] of the positions of an answer by a regular expression, each after the tokens before it."""
    import xgrammar

    size, end = logits.shape[1], tokenizer().eos_token_id
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer(), vocab_size=size, stop_token_ids=[end])
    matcher = xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(info).compile_regex(pattern))
    mask = xgrammar.allocate_token_bitmask(len(answer), size)
    for row, token in enumerate(answer):
        matcher.fill_next_token_bitmask(mask, row)
        assert matcher.accept_token(token)
    found = logits.clone()
    xgrammar.apply_token_bitmask_inplace(found, mask, backend="cpu")
    return found


@torch.no_grad()
def answer_logits(prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
    """Give the target's logits fp32 [N, V] that each of N tokens of an answer was chosen by."""
    logits = target_model()(torch.tensor([[*prompt, *answer]])).logits[0]
    return logits[len(prompt) - 1 : -1]
