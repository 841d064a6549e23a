"""Invariants of the sequential and confidence heads."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sgl_dspark.model.drafter import Drafter
from sgl_dspark.model.heads import SequentialHead
from sgl_dspark.training.forward import draft_logits, head_latents
from tests.support.drafts import HEAD_KINDS, KINDS, tiny_drafter

GAMMA, VOCAB, HIDDEN = 4, 40, 16
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
blocks = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=GAMMA, max_size=GAMMA), min_size=1, max_size=3)
seeds = st.integers(0, 2**16)


def hidden_states(rows: int, seed: int) -> Tensor:
    return torch.randn(rows, GAMMA, HIDDEN, generator=torch.Generator().manual_seed(seed))


def head_of(drafter: Drafter) -> SequentialHead:
    assert drafter.markov_head is not None
    return drafter.markov_head


def step_by_step(head: SequentialHead, prev_tokens: Tensor, h: Tensor) -> Tensor:
    state = head.initial_state(len(h), h.device, h.dtype)
    latents = []
    for slot in range(h.shape[1]):
        latent, state = head.step(prev_tokens[:, slot], h[:, slot], state)
        latents.append(latent)
    return torch.stack(latents, dim=1)


@given(tokens=blocks, seed=seeds, kind=st.sampled_from(HEAD_KINDS))
@settings(max_examples=40, deadline=None)
def test_sampling_steps_equal_the_teacher_forced_unroll(tokens: list[list[int]], seed: int, kind: str) -> None:
    head = head_of(tiny_drafter(kind, seed=seed))
    prev, h = torch.tensor(tokens), hidden_states(len(tokens), seed)
    torch.testing.assert_close(step_by_step(head, prev, h), head.teacher_forced(prev, h), **CLOSE)


@given(tokens=blocks, seed=seeds, kind=st.sampled_from(HEAD_KINDS), size=st.integers(1, VOCAB))
@settings(max_examples=40, deadline=None)
def test_bias_on_candidates_is_the_full_bias_at_them(tokens: list[list[int]], seed: int, kind: str, size: int) -> None:
    head = head_of(tiny_drafter(kind, seed=seed))
    latents = head.teacher_forced(torch.tensor(tokens), hidden_states(len(tokens), seed))
    full = head.bias(latents)
    candidates = full.topk(size, dim=-1).indices
    torch.testing.assert_close(head.bias(latents, candidates), full.gather(-1, candidates), **CLOSE)


@given(tokens=st.lists(st.integers(0, VOCAB - 1), min_size=GAMMA, max_size=GAMMA), seed=seeds, slot=st.integers(1, 3))
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize(("kind", "remembers"), [("vanilla", False), ("gated", False), ("rnn", True)])
def test_only_the_recurrent_head_remembers_earlier_tokens(
    kind: str, remembers: bool, tokens: list[int], seed: int, slot: int
) -> None:
    drafter = tiny_drafter(kind, seed=seed)
    head = head_of(drafter)
    prev = torch.tensor([tokens, tokens])
    prev[1, :slot] = (prev[1, :slot] + 1) % VOCAB
    bias = head.bias(head.teacher_forced(prev, hidden_states(1, seed).expand(2, -1, -1)))
    assert torch.allclose(bias[0, slot], bias[1, slot], **CLOSE) != remembers
    assert not torch.allclose(bias[0, slot - 1], bias[1, slot - 1], **CLOSE)


@given(tokens=blocks, seed=seeds, kind=st.sampled_from(KINDS))
@settings(max_examples=20, deadline=None)
def test_without_output_weights_only_base_logits_remain(tokens: list[list[int]], seed: int, kind: str) -> None:
    drafter = tiny_drafter(kind, seed=seed)
    h = hidden_states(len(tokens), seed)
    if drafter.markov_head is not None:
        torch.nn.init.zeros_(drafter.markov_head.markov_w2.weight)
    logits = draft_logits(drafter, h, head_latents(drafter, h, torch.tensor(tokens)))
    assert torch.equal(logits, drafter.base_logits(h))


@given(tokens=blocks, seed=seeds, kind=st.sampled_from(KINDS), slot=st.integers(0, GAMMA - 1))
@settings(max_examples=40, deadline=None)
def test_slots_never_see_the_token_drafted_at_them(tokens: list[list[int]], seed: int, kind: str, slot: int) -> None:
    """Anchor and drafts x_1..x_3 feed slots 0..3: changing x_{slot} on must leave slots up to it as they were."""
    drafter = tiny_drafter(kind, seed=seed)
    h, prev = hidden_states(len(tokens), seed), torch.tensor(tokens)
    changed = prev.clone()
    changed[:, slot + 1 :] = (changed[:, slot + 1 :] + 1) % VOCAB
    seen = slice(0, slot + 1)
    before, after = (drafter.confidence_logits(h, x) for x in (prev, changed))
    assert torch.equal(before[:, seen], after[:, seen])
    assert before.dtype == torch.float32
    if drafter.markov_head is not None:
        latents = [drafter.markov_head.teacher_forced(x, h)[:, seen] for x in (prev, changed)]
        torch.testing.assert_close(latents[0], latents[1], **CLOSE)
