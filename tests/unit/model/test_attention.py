from __future__ import annotations

import pytest
import torch
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, Qwen3RotaryEmbedding, apply_rotary_pos_emb

from sgl_dspark.model.attention import RotaryTable, block_mask, rotate
from sgl_dspark.model.backbone import RMSNorm
from sgl_dspark.model.context import ContextCache, concat_features


def test_block_mask_by_hand() -> None:
    mask = block_mask(torch.tensor([[1, 3], [2, 0]]), torch.tensor([[True, True], [True, False]]), 4, 2)
    first, second = [1, 0, 0, 0, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0, 1, 1]
    kept, dropped = [1, 1, 0, 0, 1, 1, 0, 0], [0] * 8
    assert mask.int().tolist() == [[first, first, second, second], [kept, kept, dropped, dropped]]


def test_rotation_is_qwen3s() -> None:
    config = Qwen3Config(head_dim=8, rope_parameters={"rope_type": "default", "rope_theta": 5000.0})
    positions = torch.tensor([0, 1, 7, 4000])
    x = torch.randn(4, 3, 8)
    cos, sin = Qwen3RotaryEmbedding(config)(x, positions[None])
    wanted, _ = apply_rotary_pos_emb(x.transpose(0, 1)[None], x.transpose(0, 1)[None], cos, sin)
    found = rotate(x, *RotaryTable(8, 5000.0, 4001).lookup(positions, torch.float32))
    torch.testing.assert_close(found, wanted[0].transpose(0, 1), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-7)])
def test_norm_is_qwen3s(dtype: torch.dtype, tolerance: float) -> None:
    ours, theirs = RMSNorm(32, 1e-6), Qwen3RMSNorm(32, 1e-6)
    weight = torch.randn(32)
    ours.weight.data, theirs.weight.data = weight.to(dtype), weight.to(dtype)
    # Large enough that squares overflow a half-precision sum, small enough that eps matters in the second row.
    x = (torch.randn(2, 32) * torch.tensor([[3e4], [1e-3]])).to(dtype)
    torch.testing.assert_close(ours(x), theirs(x), atol=0, rtol=tolerance)


def test_rotary_table_ends_where_it_says() -> None:
    table = RotaryTable(4, 100.0, 3)
    with pytest.raises(IndexError):
        table.lookup(torch.tensor([3]), torch.float32)
    table.reserve(4)
    assert table.lookup(torch.tensor([3]), torch.float32)[0].shape == (1, 1, 4)
    table.reserve(2)
    assert table.num_positions == 4


def test_features_follow_the_layer_ids() -> None:
    hidden_states = [torch.full((1, 2), float(i)) for i in range(4)]
    assert concat_features(hidden_states, (-1, 1)).tolist() == [[0, 0, 2, 2]]


def test_context_cache_grows_and_crops() -> None:
    cache = ContextCache(1, 1, 2, torch.float32, "cpu")
    rows = torch.arange(200, dtype=torch.float32).view(1, 100, 1, 2)
    cache.append(rows[:, :60], rows[:, :60])
    cache.append(rows[:, 60:], rows[:, 60:])
    assert cache.length == 100
    cache.crop(1)
    assert cache.length == 1
    # One context row and one block row with equal keys: attention averages their values.
    out = cache.attend(0, torch.zeros(1, 1, 2), rows[0, 3:4], rows[0, 3:4])
    assert out.tolist() == [[[3.0, 4.0]]]
    with pytest.raises(ValueError, match="cannot crop a context of 1 positions to 2"):
        cache.crop(2)
