"""The draft's slot-indexed context KV against the cached path of one request."""

from __future__ import annotations

import pytest
import torch

from sgl_dspark.model.incremental import IncrementalDrafter
from tests.support.drafts import tiny_drafter

pytest.importorskip("sglang")
from dspark_sglang.attention.layout import build_plan
from dspark_sglang.draft_kv import DraftKvPool

CONTEXTS = [7, 1, 30]


@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize("fused", [True, False])
@torch.inference_mode()
def test_blocks_of_several_requests_equal_one_request_at_a_time(chunk: int, fused: bool) -> None:
    """Slots are scattered and stale ones hold garbage; the context arrives in chunks."""
    drafter = tiny_drafter("vanilla")
    generator = torch.Generator().manual_seed(5)
    gamma = drafter.config.gamma
    features = [torch.randn(n, drafter.config.num_features, generator=generator) for n in CONTEXTS]
    anchors = torch.tensor([4, 9, 11])
    want = []
    for request, anchor in zip(features, anchors.tolist(), strict=True):
        one = IncrementalDrafter(drafter)
        one.append(request)
        want.append(one.block_hidden(anchor))
    if fused:
        drafter.fuse_for_serving()

    width = max(CONTEXTS) + gamma
    table = torch.randperm(6 * width, generator=generator)[: 4 * width].view(4, width)
    rows = torch.tensor([2, 0, 3])
    pool = DraftKvPool(drafter.config, 6 * width, torch.float32, torch.device("cpu"))
    pool.buffer.copy_(torch.randn(pool.buffer.shape, generator=generator) * 50)
    for request, row in zip(features, rows.tolist(), strict=True):
        for start in range(0, len(request), chunk):
            part = request[start : start + chunk]
            positions = torch.arange(start, start + len(part))
            pool.write_context(drafter, part, positions, table[row, positions])
    lengths = torch.tensor(CONTEXTS)
    plan = build_plan(table, rows, [gamma] * 3, [n + gamma for n in CONTEXTS], causal=False)
    slots = table[rows.unsqueeze(1), lengths.unsqueeze(1) + torch.arange(gamma)]
    got = drafter.block_hidden(anchors, lengths, pool.attend(plan, slots.reshape(-1)))
    torch.testing.assert_close(got, torch.stack(want), rtol=1e-4, atol=1e-5)


def test_a_new_pool_is_finite() -> None:
    """Masked positions are multiplied by zero weight; NaN there would spread."""
    config = tiny_drafter("vanilla").config
    pool = DraftKvPool(config, 10, torch.bfloat16, torch.device("cpu"))
    assert pool.buffer.shape == (config.num_hidden_layers, 2, 10, config.num_key_value_heads, config.head_dim)
    assert bool((pool.buffer == 0).all())
