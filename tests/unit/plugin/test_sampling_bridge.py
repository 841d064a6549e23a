"""From SGLang's batch of sampling parameters to laws and verdicts, greedy and sampled requests side by side."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sgl_dspark.sampling.block import DraftBlock
from sgl_dspark.sampling.warp import target_probs

pytest.importorskip("sglang")
from dspark_sglang.sampling_bridge import RowSampling, accept
from dspark_sglang.verify import BlockLayout, VerifyWindow
from tests.support.sampling_batches import VOCAB, batch_info

STRIDE = 4


def window_of(lens: list[int]) -> VerifyWindow:
    requests = len(lens)
    return BlockLayout.build(
        seq_lens=torch.full((requests,), 5),
        prefix_lens_cpu=torch.full((requests,), 5),
        req_pool_indices=torch.arange(requests),
        req_to_token=torch.zeros(requests, 20, dtype=torch.int32),
        offsets=torch.arange(STRIDE),
        max_positions=1 << 20,
    ).window(torch.tensor(lens))


def point_block(tokens: Tensor) -> DraftBlock:
    """Draft ``tokens`` with certainty."""
    probs = torch.nn.functional.one_hot(tokens, VOCAB).float()
    return DraftBlock(tokens, torch.zeros(tokens.shape), None, probs, torch.ones(tokens.shape))


@pytest.mark.parametrize(
    ("requested", "greediness", "filtered"),
    [
        ([{"temperature": 0}, {"temperature": 0.0, "top_p": 0.5}], "all", True),
        ([{"temperature": 0.7}, {"temperature": 0}], "some", True),
        ([{"temperature": 0.7, "top_k": 1}, {"temperature": 1.3}], "some", True),
        ([{"temperature": 0.7}, {"temperature": 1.3}], "none", False),
        ([{"temperature": 0.7, "top_p": 0.9}, {"temperature": 1.3}], "none", True),
        ([{"temperature": 0.7, "min_p": 0.1}], "none", True),
        ([{"temperature": 0.7, "top_k": 20}], "none", True),
    ],
)
def test_rows_of_a_batch(requested: list[dict[str, Any]], greediness: str, filtered: bool) -> None:
    rows = RowSampling.of(batch_info(requested))
    greedy = [r["temperature"] == 0 or r.get("top_k") == 1 for r in requested]
    assert rows.greediness == greediness
    assert rows.filtered == filtered
    assert rows.greedy_rows.tolist() == greedy
    assert rows.draft_temperatures.shape == (len(requested),)
    want = [0.0 if g else r["temperature"] for g, r in zip(greedy, requested, strict=True)]
    assert rows.draft_temperatures.tolist() == pytest.approx(want)


@pytest.mark.parametrize("filters", [{}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.2}, {"top_k": 4, "top_p": 0.6}])
def test_target_law_follows_each_request_over_its_rows(filters: dict[str, Any]) -> None:
    requested = [{"temperature": 0.6, **filters}, {"temperature": 0}, {"temperature": 1.4}]
    lens = [3, 1, 4]
    logits = torch.randn(sum(lens), VOCAB, generator=torch.Generator().manual_seed(1)) * 2
    law = RowSampling.of(batch_info(requested)).target_law(logits, window_of(lens))
    row = 0
    for request, length in zip(requested, lens, strict=True):
        for _ in range(length):
            want = target_probs(
                logits[row : row + 1],
                torch.tensor([float(request["temperature"])]),
                torch.tensor([request.get("top_k", -1)]),
                torch.tensor([request.get("top_p", 1.0)]),
                torch.tensor([request.get("min_p", 0.0)]),
            )
            torch.testing.assert_close(law[row : row + 1], want)
            row += 1


@pytest.mark.parametrize("company", ["greedy", "sampled"])
def test_greedy_requests_emit_the_argmax_in_any_company(company: str) -> None:
    """Lengths 4, 1 and 3: accepted whole, nothing drafted, and cut at the second draft."""
    generator = torch.Generator().manual_seed(2)
    lens = [4, 1, 3]
    logits = torch.randn(sum(lens), VOCAB, generator=generator)
    best = logits.argmax(1)
    tokens = torch.zeros(3, 3, dtype=torch.int64)
    tokens[0] = best[:3]
    tokens[2, 0], tokens[2, 1] = best[5], (best[6] + 1) % VOCAB
    other: dict[str, Any] = {"temperature": 0} if company == "greedy" else {"temperature": 1.0}
    rows = RowSampling.of(batch_info([{"temperature": 0}, other, {"temperature": 0, "top_p": 0.3}]))
    verdict = accept(point_block(tokens), window_of(lens), logits, rows)
    assert verdict.accept_lens.tolist() == [4, 1, 2]
    assert verdict.out_tokens[0].tolist() == best[:4].tolist()
    assert verdict.out_tokens[2].tolist() == [*best[5:7].tolist(), 0, 0]
    if company == "greedy":
        assert int(verdict.out_tokens[1, 0]) == int(best[4])


def test_sampled_requests_emit_only_what_their_filters_allow() -> None:
    requests = 400
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(1, VOCAB, generator=generator).expand(requests * 2, -1).contiguous()
    allowed = set(logits[0].topk(2).indices.tolist())
    banned = min(set(range(VOCAB)) - allowed)
    rows = RowSampling.of(batch_info([{"temperature": 1.0, "top_k": 2}] * requests))
    tokens = torch.full((requests, 3), banned)
    verdict = accept(point_block(tokens), window_of([2] * requests), logits, rows)
    assert verdict.accept_lens.tolist() == [1] * requests
    assert set(verdict.out_tokens[:, 0].tolist()) == allowed


def test_tied_logits_choose_the_same_token_alone_and_beside_a_sampled_neighbour() -> None:
    """The lowest of the tied tokens, whether or not a law is built for the batch."""
    tied = torch.full((2, VOCAB), -5.0)
    tied[:, :3] = torch.tensor([1.0, 1.0, 0.0])
    block = point_block(torch.tensor([[1, 1, 1]]))
    alone = accept(block, window_of([2]), tied, RowSampling.of(batch_info([{"temperature": 0}])))
    both = point_block(torch.tensor([[1, 1, 1], [1, 1, 1]]))
    for order in ([{"temperature": 0}, {"temperature": 1.0}], [{"temperature": 1.0}, {"temperature": 0}]):
        found = accept(both, window_of([2, 2]), tied.repeat(2, 1), RowSampling.of(batch_info(order)))
        row = [r["temperature"] for r in order].index(0)
        assert found.out_tokens[row].tolist() == alone.out_tokens[0].tolist() == [0, 0, 0, 0]
