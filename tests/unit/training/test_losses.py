from __future__ import annotations

import math

import pytest
import torch

from sgl_dspark.training.losses import LossWeights, SlotLosses, slot_losses, slot_weights, weighted_sums


def test_weights_decay_by_the_released_constant() -> None:
    found = slot_weights(torch.ones(1, 7, dtype=torch.bool))[0]
    assert found.tolist() == pytest.approx([1, 0.7788, 0.6065, 0.4724, 0.3679, 0.2865, 0.2231], abs=5e-5)
    assert slot_weights(torch.tensor([True, False]), decay=2.0).tolist() == [1, 0]


def test_terms_by_hand() -> None:
    # Draft law (0.5, 0.25, 0.25), target law (0.25, 0.25, 0.5), label 2.
    draft, target = torch.tensor([[2.0, 1.0, 1.0]]).log(), torch.tensor([[1.0, 1.0, 2.0]]).log()
    slots = slot_losses(draft, target, torch.tensor([2]), torch.zeros(1))
    assert slots.ce.item() == pytest.approx(math.log(4))
    assert slots.tv.item() == pytest.approx(0.5)
    assert slots.accept.item() == pytest.approx(0.75)
    assert slots.confidence.item() == pytest.approx(math.log(2))


def test_total_by_hand() -> None:
    def terms(*values: float) -> torch.Tensor:
        return torch.tensor(values)

    slots = SlotLosses(terms(1, 2), terms(0.5, 1), terms(0.75, 0.5), terms(0.2, 0.4), terms(3, 4))
    sums = weighted_sums(slots, terms(1, 0.5))
    assert [float(x) for x in (sums.ce, sums.tv, sums.confidence, sums.weight)] == pytest.approx([2, 1, 0.4, 1.5])
    assert float(sums.total()) == pytest.approx((0.1 * 2 + 0.9 * 1 + 0.4) / 1.5)
    assert float(sums.total(LossWeights(1, 0, 0))) == pytest.approx(2 / 1.5)
    assert float(sums.total(LossWeights(0, 0, 0, 1))) == pytest.approx(5 / 1.5)
    assert float(sums.total(denominator=torch.tensor(3.0))) == pytest.approx((0.2 + 0.9 + 0.4) / 3)


def test_slot_without_weight_counts_for_nothing_even_if_infinite() -> None:
    bad = torch.tensor([1.0, float("inf")])
    sums = weighted_sums(SlotLosses(bad, bad, bad, bad, bad), torch.tensor([1.0, 0.0]))
    assert float(sums.total()) == pytest.approx(2.0)


def test_no_valid_slot_gives_zero() -> None:
    nothing = torch.zeros(3)
    assert float(weighted_sums(SlotLosses(nothing, nothing, nothing, nothing, nothing), nothing).total()) == 0.0


def test_accept_takes_no_gradient() -> None:
    draft = torch.randn(2, 5, requires_grad=True)
    slots = slot_losses(draft, torch.randn(2, 5), torch.tensor([0, 1]), torch.zeros(2, requires_grad=True))
    assert not slots.accept.requires_grad
    assert slots.tv.requires_grad
    (gradient,) = torch.autograd.grad(slots.confidence.sum(), draft, allow_unused=True)
    assert gradient is None


def test_law_is_computed_in_fp32_from_half_precision_logits() -> None:
    logits = torch.randn(4, 9).bfloat16()
    slots = slot_losses(logits, logits, torch.zeros(4, dtype=torch.int64), None)
    assert slots.ce.dtype == torch.float32
    assert slots.tv.tolist() == [0.0] * 4
    assert slots.confidence.tolist() == [0.0] * 4
