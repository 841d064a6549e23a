from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sgl_dspark.sampling.warp import Filters, greediness, greedy_mask, target_probs


def params(rows: int, *, t: float = 1.0, k: int = -1, p: float = 1.0, m: float = 0.0) -> tuple[Tensor, ...]:
    return torch.full((rows,), t), torch.full((rows,), k), torch.full((rows,), p), torch.full((rows,), m)


LAW = torch.tensor([[0.4, 0.3, 0.2, 0.06, 0.04]])


def warp_one(**kwargs: float) -> Tensor:
    return target_probs(LAW.log(), *params(1, **kwargs))[0]


def test_no_filter_is_the_softmax_at_the_temperature() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    got = target_probs(logits, *params(3, t=0.7))
    assert torch.equal(got, (logits / 0.7).softmax(-1))


def test_top_k_keeps_the_k_most_likely() -> None:
    torch.testing.assert_close(warp_one(k=2), torch.tensor([4 / 7, 3 / 7, 0, 0, 0]))


def test_top_p_keeps_the_token_that_crosses() -> None:
    # More likely tokens hold 0, 0.4, 0.7, 0.9, 0.96: with 0.75 the third stays and the fourth goes.
    torch.testing.assert_close(warp_one(p=0.75), torch.tensor([4 / 9, 3 / 9, 2 / 9, 0, 0]))


def test_top_p_is_measured_before_top_k_renormalises() -> None:
    # Sequential filters would see 4/7 > 0.5 after top-k 2 and keep one token; 0.4 < 0.5 keeps both.
    torch.testing.assert_close(warp_one(k=2, p=0.5), torch.tensor([4 / 7, 3 / 7, 0, 0, 0]))


def test_min_p_is_relative_to_the_most_likely() -> None:
    torch.testing.assert_close(warp_one(m=0.4), torch.tensor([4 / 9, 3 / 9, 2 / 9, 0, 0]))


@pytest.mark.parametrize("off", [0, -1, 5, 6, 1 << 30])
def test_top_k_off(off: int) -> None:
    torch.testing.assert_close(warp_one(k=off), LAW[0])


def test_greedy_rows_are_one_hot_in_any_batch() -> None:
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(1))
    temperatures, top_ks = torch.tensor([0.0, 1.0, 0.5, 0.0]), torch.tensor([-1, 1, -1, 3])
    top_ps, min_ps = torch.tensor([0.3, 1.0, 1.0, 1.0]), torch.zeros(4)
    got = target_probs(logits, temperatures, top_ks, top_ps, min_ps)
    one_hot = torch.nn.functional.one_hot(logits.argmax(-1), 9).float()
    assert torch.equal(got[[0, 1, 3]], one_hot[[0, 1, 3]])
    torch.testing.assert_close(got[2], (logits[2] / 0.5).softmax(-1))
    all_greedy = target_probs(logits, torch.zeros(4), top_ks, top_ps, min_ps)
    assert torch.equal(all_greedy, one_hot)


def test_only_a_greedy_row_has_a_filter() -> None:
    temperatures, top_ks, top_ps, min_ps = params(2)
    temperatures[0], top_ps[0] = 0.0, 0.5
    got = target_probs(LAW.log().expand(2, 5), temperatures, top_ks, top_ps, min_ps)
    torch.testing.assert_close(got, torch.stack([torch.tensor([1.0, 0, 0, 0, 0]), LAW[0]]))


def test_rows_do_not_see_each_other() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(6, 5000, generator=generator)
    logits[2] *= 4
    temperatures = torch.tensor([1.0, 0.3, 1.0, 2.0, 1.0, 0.0])
    top_ks = torch.tensor([-1, 20, -1, 4500, 7, -1])
    top_ps, min_ps = torch.tensor([1.0, 1.0, 0.9, 0.999, 0.5, 1.0]), torch.tensor([0, 0.1, 0, 0, 0, 0])
    together = target_probs(logits, temperatures, top_ks, top_ps, min_ps)
    for r in range(6):
        row = slice(r, r + 1)
        alone = target_probs(logits[row], temperatures[row], top_ks[row], top_ps[row], min_ps[row])
        assert torch.equal(together[row] > 0, alone > 0)
        torch.testing.assert_close(together[row], alone)


def test_prefixes_and_full_sort_agree() -> None:
    # A flat law at top-p 0.99 needs more than 4096 of 6000 tokens, a steep one fewer than 256.
    logits = torch.randn(2, 6000, generator=torch.Generator().manual_seed(3)) * torch.tensor([[0.1], [5.0]])
    got = target_probs(logits, *params(2, p=0.99))
    ordered, ids = logits.softmax(-1).sort(-1, descending=True)
    ordered[ordered.cumsum(-1) - ordered > 0.99] = 0
    want = torch.zeros_like(ordered).scatter_(1, ids, ordered / ordered.sum(-1, keepdim=True))
    assert torch.equal(got > 0, want > 0)
    assert (got > 0).sum(-1).tolist()[0] > 4096
    assert (got > 0).sum(-1).tolist()[1] < 256
    torch.testing.assert_close(got, want)


def test_half_precision_logits_are_promoted_and_not_changed() -> None:
    logits = torch.randn(2, 30, generator=torch.Generator().manual_seed(4)).bfloat16()
    before = logits.clone()
    got = target_probs(logits, *params(2, t=0.9, m=0.05))
    assert got.dtype == torch.float32
    assert torch.equal(logits, before)
    torch.testing.assert_close(got.sum(-1), torch.ones(2))


def test_filters_summary() -> None:
    f = Filters.of(torch.tensor([1.0, 0.0]), torch.tensor([5, -1]), torch.tensor([0.9, 0.5]), torch.zeros(2), 100)
    assert f == Filters(top_k_bound=5, top_p=True, min_p=False, every_top_p_has_top_k=True, greediness="some")
    assert greediness(greedy_mask(torch.zeros(0), torch.zeros(0))) == "all"
    assert greediness(torch.tensor([False])) == "none"


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="four parameter vectors"):
        target_probs(torch.zeros(3, 4), *params(2))
