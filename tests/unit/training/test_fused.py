from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sgl_dspark.model.drafter import Drafter
from sgl_dspark.training.forward import draft_logits
from sgl_dspark.training.fused import chunked_loss
from sgl_dspark.training.losses import LossWeights, slot_losses, weighted_sums
from tests.support.drafts import KINDS, tiny_drafter

SLOTS, POSITIONS = 23, 9


def inputs(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "h": torch.randn(SLOTS, 16, generator=generator),
        "latents": torch.randn(SLOTS, 5, generator=generator),
        "prev_tokens": torch.randint(40, (SLOTS,), generator=generator),
        "labels": torch.randint(40, (SLOTS,), generator=generator),
        "weights": torch.rand(SLOTS, generator=generator) * (torch.arange(SLOTS) % 5 > 0),
        "target_hidden": torch.randn(POSITIONS, 16, generator=generator),
        "target_rows": torch.randint(POSITIONS, (SLOTS,), generator=generator),
    }


def plain(drafter: Drafter, data: dict[str, Tensor], coefficients: LossWeights, denominator: Tensor | None) -> Tensor:
    logits = draft_logits(drafter, data["h"], data["latents"])
    target = drafter.base_logits(data["target_hidden"])[data["target_rows"]]
    confidence = None
    if drafter.confidence_head is not None:
        confidence = drafter.confidence_logits(data["h"], data["prev_tokens"])
    slots = slot_losses(logits, target, data["labels"], confidence)
    return weighted_sums(slots, data["weights"]).total(coefficients, denominator)


def gradients(loss: Tensor, drafter: Drafter, data: dict[str, Tensor]) -> dict[str, Tensor | None]:
    named = {name: p for name, p in drafter.named_parameters() if p.requires_grad}
    named |= {name: data[name] for name in ("h", "latents")}
    found = torch.autograd.grad(loss * 3.0, list(named.values()), allow_unused=True)
    return dict(zip(named, found, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 7, 100])
@pytest.mark.parametrize("denominator", [None, 40.0])
def test_equals_autograd_of_the_plain_losses(kind: str, chunk: int, denominator: float | None) -> None:
    drafter = tiny_drafter(kind, enable_confidence_head=kind != "gated", confidence_head_with_markov=kind == "rnn")
    coefficients, total = LossWeights(0.3, 0.5, 0.7), None if denominator is None else torch.tensor(denominator)
    data = inputs(seed=chunk)
    for name in ("h", "latents"):
        data[name].requires_grad_()
    wanted = plain(drafter, data, coefficients, total)
    latents = None if kind == "none" else data["latents"]
    found, slots, sums = chunked_loss(
        drafter, **{**data, "latents": latents}, coefficients=coefficients, denominator=total, chunk=chunk
    )
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(sums.total(coefficients, total), wanted.detach())
    assert not slots.ce.requires_grad
    wanted_gradients, found_gradients = (gradients(loss, drafter, data) for loss in (wanted, found))
    for name, gradient in wanted_gradients.items():
        if gradient is None:
            assert found_gradients[name] is None, name
        else:
            torch.testing.assert_close(found_gradients[name], gradient, atol=1e-6, rtol=1e-4, msg=name)


def test_frozen_head_gets_no_gradient() -> None:
    drafter, data = tiny_drafter(), inputs(seed=0)
    drafter.embed_tokens.weight.requires_grad_(False)
    drafter.lm_head.weight.requires_grad_(False)
    data["h"].requires_grad_()
    chunked_loss(drafter, **data)[0].backward()
    assert drafter.lm_head.weight.grad is None
    assert data["h"].grad is not None


def test_half_precision_keeps_the_callers_dtypes() -> None:
    drafter, data = tiny_drafter(dtype=torch.bfloat16), inputs(seed=0)
    for name in ("h", "latents", "target_hidden"):
        data[name] = data[name].bfloat16().requires_grad_()
    loss, slots, _ = chunked_loss(drafter, **data)
    loss.backward()
    assert loss.dtype == slots.tv.dtype == torch.float32
    assert data["h"].grad is not None
    assert data["h"].grad.dtype == torch.bfloat16
    assert drafter.markov_head is not None
    assert drafter.markov_head.markov_w2.weight.grad is not None
    assert drafter.markov_head.markov_w2.weight.grad.dtype == torch.bfloat16
