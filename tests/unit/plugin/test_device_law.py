"""What `device_decode.run` emits under sampling has the target's joint law, whatever is drafted and verified."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("sglang")
from dspark_sglang import device_path
from dspark_sglang.allocation import DevicePlan
from dspark_sglang.sampling_bridge import RowSampling
from sgl_dspark.sampling.counter import DRAFT
from sgl_dspark.sampling.statistics import ChiSquare, chi_square
from tests.support.device_world import World
from tests.support.exact_law import warped
from tests.support.sampling_batches import batch_info
from tests.support.tiny_ragged_target import VOCAB

# A context in which the draft is good and its numbers, used twice, would shift the first token's law by w = 0.9.
PROMPT, ANCHOR, TOKENS = [8, 2, 5], 1, 2
ALPHA, EFFECT, ROUNDS = 1e-4, 0.5, 300
KINDS: list[dict[str, Any]] = [
    {"temperature": 3.0},
    {"temperature": 2.4, "top_k": 5},
    {"temperature": 2.2, "top_p": 0.8},
    {"temperature": 2.5, "top_k": 7, "top_p": 0.9, "min_p": 0.25},
]


def joint_law(world: World, sampling: dict[str, Any]) -> np.ndarray:
    """Enumerate the law of the tokens after the anchor: fp64 [VOCAB] * TOKENS."""
    law = np.zeros((VOCAB,) * TOKENS)
    heads: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(TOKENS):
        longer = {}
        for head, mass in heads.items():
            logits, _ = world.forward(0, [*PROMPT, ANCHOR, *head], 0)
            own = warped(logits[-1:], **sampling)[0]
            longer |= {(*head, t): mass * float(own[t]) for t in own.nonzero().flatten().tolist()}
        heads = longer
    for tokens, mass in heads.items():
        law[tokens] = mass
    return law


def argmax_text(world: World) -> list[int]:
    text = [*PROMPT, ANCHOR]
    for _ in range(TOKENS):
        text.append(int(world.forward(0, text, 0)[0][-1].argmax()))
    return text[-TOKENS:]


def answers(world: World, requested: list[dict[str, Any]], rounds: int) -> tuple[list[list[tuple[int, ...]]], int]:
    """Decode one context again and again, under budgets that rank; gives each request's texts, and drafts accepted."""
    for request in range(len(requested)):
        world.prefill(request)
    generator, accepted = np.random.default_rng(0), 0
    found: list[list[tuple[int, ...]]] = [[] for _ in requested]
    for _ in range(rounds):
        running = {r: [ANCHOR] for r in range(len(requested))}
        while running:
            rows = RowSampling.of(batch_info([requested[r] for r in running], VOCAB))
            room = np.full(len(running), world.gamma)
            budget = int(generator.integers(0, room.sum() + 1))
            verdict = world.decode(running, rows, DevicePlan(budget, room, np.zeros_like(room), budget))
            accepted += int(verdict.accept_lens.sum()) - len(running)
            for r in [r for r, text in running.items() if len(text) > TOKENS]:
                found[r].append(tuple(running.pop(r)[1 : TOKENS + 1]))
        world.path.flush()
    return found, accepted


def results_of(monkeypatch: pytest.MonkeyPatch, kinds: list[dict[str, Any]], *, graphs: bool) -> list[ChiSquare]:
    """Test the first token, then both, of each kind in turn."""
    requested = [*kinds, {"temperature": 0.0}]
    world = World(monkeypatch, graphs=graphs, head="vanilla", prompts=[PROMPT] * len(requested))
    greedy, laws = argmax_text(world), [joint_law(world, kind) for kind in kinds]
    found, accepted = answers(world, requested, ROUNDS)
    assert set(found.pop()) == {tuple(greedy)}
    assert accepted > ROUNDS / 4
    assert not graphs or not world.fallbacks
    results = []
    for texts, law in zip(found, laws, strict=True):
        counts = np.zeros_like(law)
        for text, count in Counter(texts).items():
            counts[text] = count
        for seen, expected in ((counts.sum(1), law.sum(1)), (counts.ravel(), law.ravel())):
            results.append(chi_square(seen, expected, effect_size=EFFECT, alpha=ALPHA))
    return results


@torch.no_grad()
@pytest.mark.parametrize(("kinds", "graphs"), [(KINDS, False), (KINDS[:1], True)])
def test_sampled_text_has_the_targets_law(
    monkeypatch: pytest.MonkeyPatch, kinds: list[dict[str, Any]], graphs: bool
) -> None:
    """One by one and from replays, alone and in company."""
    for result in results_of(monkeypatch, kinds, graphs=graphs):
        assert result.power > 0.9
        assert result.p_value > ALPHA


@torch.no_grad()
def test_accepting_by_the_drafts_own_numbers_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control. The first row shows it, whose places in a stream are the same for drafting and for accepting."""
    monkeypatch.setattr(device_path, "ACCEPT", DRAFT)
    assert results_of(monkeypatch, KINDS[:1], graphs=False)[0].p_value < ALPHA / 1000
