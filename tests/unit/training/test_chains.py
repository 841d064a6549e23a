"""The autoregressive baseline: chains in training are what drafting one token after another computes."""

from __future__ import annotations

import torch
from torch import Tensor

from sgl_dspark.model.eagle3 import Eagle3Drafter
from sgl_dspark.training.chains import chain_hidden
from sgl_dspark.training.packing import pack
from tests.support.conversations import GAMMA, make_conversations, make_draft


def step_by_step(draft: Eagle3Drafter, features: Tensor, ids: Tensor, anchor: int) -> Tensor:
    """Run one chain with plain causal attention over everything it has seen; [gamma, d]."""
    projected = draft.project_features(features)
    keys, values = draft.context_kv(projected[:anchor], ids[1 : anchor + 1], torch.arange(anchor))
    # The last context row is the chain's own first step, computed again below.
    seen_k, seen_v = list(keys[:-1]), list(values[:-1])
    stream, found = projected[anchor - 1], []

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen_k.append(k[0])
        seen_v.append(v[0])
        group = q.shape[1] // k.shape[1]
        all_k, all_v = (torch.stack(x).repeat_interleave(group, 1) for x in (seen_k, seen_v))
        scores = torch.einsum("hd,shd->hs", q[0], all_k) * q.shape[-1] ** -0.5
        return torch.einsum("hs,shd->hd", scores.softmax(-1), all_v)[None]

    for step in range(GAMMA):
        position = torch.tensor([anchor - 1 + step])
        stream = draft.step(stream.view(1, -1), ids[anchor + step].view(1), position, attend)
        found.append(draft.norm(stream)[0])
    return torch.stack(found)


def test_chains_see_their_past_and_themselves() -> None:
    draft = make_draft("eagle3")
    assert isinstance(draft, Eagle3Drafter)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.4 + (parameter.dim() == 1))
    data = make_conversations(3)
    batch = pack(data, [1, 2, 3], 5, GAMMA, 4.0, torch.float32)
    found = chain_hidden(draft, batch.features, batch)
    checked = 0
    for index, conversation in enumerate(data):
        for block in range(*batch.block_bounds[index : index + 2]):
            anchor = int(batch.anchors[block])
            # Steps past the end of the conversation repeat its last token and are never valid.
            valid = int(((batch.slots >= block * GAMMA) & (batch.slots < (block + 1) * GAMMA)).sum())
            wanted = step_by_step(draft, conversation.features, _padded(conversation.ids), anchor)
            torch.testing.assert_close(found[block, :valid], wanted[:valid], atol=1e-4, rtol=1e-4)
            checked += valid
    assert checked == len(batch.slots) > 20


def _padded(ids: Tensor) -> Tensor:
    return torch.cat((ids, ids[-1:].expand(GAMMA)))
