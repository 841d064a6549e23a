from __future__ import annotations

import pytest
import torch

from sgl_dspark.model.attention import window_attend
from tests.support.drafts import KINDS, tiny_drafter


def test_shapes_and_rows() -> None:
    drafter = tiny_drafter()
    context = drafter.project_context(torch.randn(5, 48))
    assert context.shape == (5, 16)
    k, v = drafter.context_kv(context, torch.arange(5))
    assert k.shape == v.shape == (2, 5, 2, 6)
    seen: list[tuple[int, ...]] = []

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen.append((layer, *q.shape, *k.shape, *v.shape))
        return torch.zeros_like(q)

    h = drafter.block_hidden(torch.tensor([1, 2, 4]), torch.tensor([0, 9, 5]), attend)
    assert h.shape == (3, 4, 16)
    assert seen == [(layer, 12, 4, 6, 12, 2, 6, 12, 2, 6) for layer in (0, 1)]
    assert drafter.base_logits(h).shape == (3, 4, 40)


def test_blocks_reach_the_end_of_the_context_window() -> None:
    drafter = tiny_drafter()
    attend = window_attend(*(torch.zeros(2, 1, 0, 2, 6),) * 2, torch.zeros(1, 1, 0, dtype=torch.bool))
    last = torch.tensor([drafter.config.max_position_embeddings - 1])
    assert drafter.block_hidden(torch.tensor([1]), last, attend).isfinite().all()
    beyond = last + 2
    with pytest.raises(IndexError):
        drafter.block_hidden(torch.tensor([1]), beyond, attend)
    drafter.reserve_positions(int(beyond) + 1)
    assert drafter.block_hidden(torch.tensor([1]), beyond, attend).isfinite().all()


def test_without_a_confidence_head_logits_are_zero() -> None:
    drafter = tiny_drafter(enable_confidence_head=False, confidence_head_with_markov=False)
    logits = drafter.confidence_logits(torch.randn(2, 4, 16), torch.ones(2, 4, dtype=torch.int64))
    assert logits.dtype == torch.float32
    assert logits.tolist() == [[0.0] * 4] * 2


@pytest.mark.parametrize("with_markov", [True, False])
def test_confidence_reads_the_previous_token_only_when_asked(with_markov: bool) -> None:
    drafter = tiny_drafter(confidence_head_with_markov=with_markov)
    h = torch.randn(1, 16).expand(2, -1)
    first, second = drafter.confidence_logits(h, torch.tensor([1, 2])).tolist()
    assert (first != second) == with_markov


def test_confidence_by_hand() -> None:
    drafter = tiny_drafter()
    assert drafter.confidence_head is not None
    assert drafter.markov_head is not None
    h, token = torch.randn(16), torch.tensor(7)
    features = torch.cat((h, drafter.markov_head.markov_w1.weight[7]))
    wanted = drafter.confidence_head.proj.weight[0] @ features + drafter.confidence_head.proj.bias[0]
    torch.testing.assert_close(drafter.confidence_logits(h, token), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_stays_close_to_fp32(kind: str) -> None:
    wide = tiny_drafter(kind, dtype=torch.bfloat16).float()
    narrow = tiny_drafter(kind, dtype=torch.bfloat16)
    features, positions = torch.randn(6, 48), torch.arange(6)
    hidden = []
    for drafter in (wide, narrow):
        drafter.fuse_for_serving()
        dtype = drafter.fc.weight.dtype
        k, v = drafter.context_kv(drafter.project_context(features.to(dtype)), positions)
        attend = window_attend(k[:, None], v[:, None], torch.ones(1, 1, 6, dtype=torch.bool))
        hidden.append(drafter.block_hidden(torch.tensor([5]), torch.tensor([6]), attend))
    assert hidden[1].dtype == torch.bfloat16
    similarity = torch.cosine_similarity(hidden[0].flatten(), hidden[1].float().flatten(), dim=0)
    assert similarity > 0.999


def test_fused_weights_share_memory_with_the_parameters() -> None:
    drafter = tiny_drafter()
    drafter.fuse_for_serving()
    attention, mlp = drafter.layers[0].self_attn, drafter.layers[0].mlp
    assert attention.qkv_weight.data_ptr() == attention.q_proj.weight.data_ptr()
    assert mlp.gate_up_weight.data_ptr() == mlp.gate_proj.weight.data_ptr()
    assert not any(parameter.requires_grad for parameter in drafter.parameters())


@pytest.mark.parametrize("fused", [False, True])
def test_a_limited_draft_proposes_the_listed_columns_of_its_head(fused: bool) -> None:
    whole = tiny_drafter("rnn")
    ids = torch.tensor([30, 2, 17])
    limited = whole.limit_vocabulary(ids)
    assert limited.config.draft_vocab_size == 3
    if fused:
        limited.fuse_for_serving()
    h = torch.randn(2, 4, 16)
    logits, listed = limited.proposal_logits(h)
    assert listed.tolist() == [2, 17, 30]
    torch.testing.assert_close(logits, whole.base_logits(h)[..., listed])
    torch.testing.assert_close(limited.base_logits(h), whole.base_logits(h))
    everything, none = whole.proposal_logits(h)
    assert none is None
    assert torch.equal(everything, whole.base_logits(h))
