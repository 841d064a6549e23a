"""Captured graphs against the same operations one by one, on the device."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("sglang")
pytest.importorskip("flashinfer")

from dspark_sglang.attention.flashinfer import Capacity, PagedAttention, PageTable
from dspark_sglang.graphs import CudaGraph, request_tiers
from dspark_sglang.target_graph import TargetGraphs, verify_eagerly
from tests.support.draft_world import MOST, World
from tests.support.tiny_ragged_target import TinyTarget

pytestmark = pytest.mark.gpu
DTYPE, DIM, W, WIDTH = torch.bfloat16, 64, 5, 40


def draft_world(head: str = "gated", shortlist: int | None = None) -> World:
    device = torch.device("cuda")
    pool = torch.cuda.graph_pool_handle()
    return World(
        shortlist,
        head=head,
        device=device,
        dtype=DTYPE,
        head_dim=DIM,
        make_wrapper=None,
        make_graph=lambda: CudaGraph(pool),
    )


# The vanilla head over a shortlist is drawn by a Triton kernel, anything else by torch.
@pytest.mark.parametrize(("head", "shortlist"), [("vanilla", 9), ("gated", None)])
@pytest.mark.parametrize("greedy", [True, False])
def test_draft_replay_equals_eager(greedy: bool, head: str, shortlist: int | None) -> None:
    world, twin = draft_world(head, shortlist), draft_world(head, shortlist)
    assert world.graphs.capture(world.table) == 2 * len(request_tiers(MOST))
    # A twin without graphs takes the same way through the same buffers.
    for number, count in enumerate((3, 4, 1, 2), start=1):
        step = world.step(number, count, greedy=greedy, commits=number)
        twin.inputs.step.copy_(world.inputs.step)
        got = world.replayed(step, greedy=greedy)
        want = twin.eagerly(step, greedy=greedy)
        assert got is not None
        torch.testing.assert_close(got.survival, want.survival, rtol=2e-2, atol=2e-2)
        assert torch.equal(got.block.tokens, want.block.tokens)
        assert torch.equal(got.lens, want.lens)
    assert not world.fallbacks


@pytest.mark.parametrize(("head", "shortlist"), [("vanilla", 30), ("gated", None)])
def test_draft_numbers_are_fresh_at_every_replay(head: str, shortlist: int | None) -> None:
    world = draft_world(head, shortlist)
    world.graphs.capture(world.table)
    step = world.step(9, 4)
    step.temperatures.fill_(50.0)
    drafts = []
    for _ in range(3):
        got = world.replayed(step)
        assert got is not None
        drafts.append(got.block.tokens.clone())
    assert not torch.equal(drafts[0], drafts[1])
    assert not torch.equal(drafts[1], drafts[2])


@pytest.mark.parametrize("page_size", [1, 4])
def test_verification_replay_equals_eager(page_size: int) -> None:
    from tests.unit.plugin.test_target_graph import TABLE, make_round

    device = torch.device("cuda")
    table = TABLE.to(device)
    slots = (MOST * WIDTH // 4 + 1) * 4
    target = TinyTarget(slots, table, page_size, dim=DIM, dtype=DTYPE, make_wrapper=None)
    twin = TinyTarget(slots, table, page_size, dim=DIM, dtype=DTYPE, make_wrapper=None)
    backend, counts = target.backend, []
    assert backend.obstacle is None

    def attention(capacity: Capacity) -> PagedAttention:
        return PagedAttention(backend.heads, device, backend.workspace, capacity)

    pool = torch.cuda.graph_pool_handle()
    graphs = TargetGraphs(
        forward=target.flat,
        prepare=backend.prepare,
        requests=MOST,
        width=W,
        table=PageTable(MOST * WIDTH, device),
        device=device,
        make_attention=attention,
        make_graph=lambda: CudaGraph(pool),
        count=counts.append,
        page_size=page_size,
    )
    assert graphs.capture(table) == len(graphs.tiers)
    counting = torch.arange(200, device=device)
    for seed, count in enumerate((4, 1, 3, 2)):
        step = make_round(seed, count, tail=2).to(device)
        for name in ("keys", "values"):
            getattr(twin.pool, name).copy_(getattr(target.pool, name))
        got, want = graphs.run(step, table), verify_eagerly(step, twin.planned(step), counting)
        assert got is not None
        rows = int(step.verify_lens.sum())
        torch.testing.assert_close(got.logits[:rows], want.logits[:rows], rtol=2e-2, atol=2e-2)
    assert not counts
