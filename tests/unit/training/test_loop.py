"""The training loop learns, resumes exactly, and its sampled vocabulary estimates the whole one."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from sgl_dspark.data.cache import Conversation
from sgl_dspark.errors import DataError
from sgl_dspark.training.loop import Trainer, TrainingOptions, fold_feature_scale, measure_feature_scale
from sgl_dspark.training.losses import LossWeights
from sgl_dspark.training.vocabulary import SampledVocabulary, widen
from tests.support.conversations import FEATURES, HIDDEN, VOCAB, make_conversations, make_draft

KINDS = ("dspark", "dflash", "eagle3")
SOFT = LossWeights(0.0, 0.0, 0.0, 1.0)


def make_trainer(vocabulary: bool = False, kind: str = "dspark", **options: object) -> Trainer:
    drafter = make_draft(kind)
    sampled = None
    if vocabulary:
        sampled = SampledVocabulary(drafter.lm_head.weight.detach(), torch.arange(40), 10)
    settings = {"steps": 12, "warmup_steps": 2, "num_anchors": 4, "bf16": False, **options}
    return Trainer(drafter, TrainingOptions(**settings), torch.ones(FEATURES), sampled)  # type: ignore[arg-type]


def groups(conversations: Sequence[Conversation], size: int = 4) -> list[list[Conversation]]:
    return [list(conversations[i : i + size]) for i in range(0, len(conversations), size)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocabulary", [False, True])
def test_resuming_gives_the_same_losses_as_never_stopping(vocabulary: bool, kind: str) -> None:
    data = groups(make_conversations(32))
    whole = make_trainer(vocabulary, kind)
    losses = [whole.train_step(list(enumerate(group))).loss for group in data]
    first = make_trainer(vocabulary, kind)
    for group in data[:5]:
        first.train_step(list(enumerate(group)))
    state = copy.deepcopy(first.state())
    second = make_trainer(vocabulary, kind)
    second.drafter.reset_parameters()
    second.drafter.embed_tokens.weight.data.copy_(first.drafter.embed_tokens.weight)
    second.drafter.lm_head.weight.data.copy_(first.drafter.lm_head.weight)
    second.load_state(state)
    assert [second.train_step(list(enumerate(group))).loss for group in data[5:]] == losses[5:]
    for name, parameter in whole.drafter.named_parameters():
        assert torch.equal(parameter, second.drafter.get_parameter(name)), name


def test_evaluation_leaves_the_run_unchanged() -> None:
    data = groups(make_conversations(16))
    plain, watched = make_trainer(vocabulary=True), make_trainer(vocabulary=True)
    for group in data:
        watched.evaluate([c for group in data[:2] for c in group])
        assert plain.train_step(list(enumerate(group))).loss == watched.train_step(list(enumerate(group))).loss


@pytest.mark.parametrize("kind", KINDS)
def test_a_learnable_law_is_learnt_and_the_head_stays_frozen(kind: str) -> None:
    weights = {"dspark": LossWeights(), "dflash": LossWeights(1.0, 0.0, 0.0), "eagle3": SOFT}[kind]
    trainer = make_trainer(kind=kind, steps=96, learning_rate=1e-2, weights=weights)
    head = trainer.drafter.lm_head.weight.detach()
    # The target's law is concentrated on the next token, which follows from the previous one.
    data = [
        Conversation(c.ids, c.loss_mask, c.features, 10 * head[c.ids[1:]] / head[c.ids[1:]].norm(dim=-1, keepdim=True))
        for c in make_conversations(32)
    ]
    frozen = head.clone()
    reports = [trainer.train_step(list(enumerate(group))) for _ in range(12) for group in groups(data)]
    assert reports[-1].expected_accept_len > reports[0].expected_accept_len + 0.5
    assert reports[-1].loss < 0.7 * reports[0].loss
    assert torch.equal(trainer.drafter.lm_head.weight, frozen)


def test_a_core_that_is_the_vocabulary_changes_nothing() -> None:
    data = groups(make_conversations(8))
    plain, sampled = make_trainer(), make_trainer()
    sampled._sampled = SampledVocabulary(sampled.drafter.lm_head.weight.detach(), torch.arange(VOCAB), 10)
    for group in data:
        assert sampled.train_step(list(enumerate(group))).loss == pytest.approx(
            plain.train_step(list(enumerate(group))).loss, rel=1e-5
        )


def test_corrections_make_the_sampled_denominator_unbiased() -> None:
    torch.manual_seed(5)
    head = torch.randn(VOCAB, HIDDEN)
    sampled = SampledVocabulary(head, torch.arange(20), 8)
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(HIDDEN) * 0.3
    exact = (head @ hidden).exp().sum()
    labelled = torch.zeros(VOCAB, dtype=torch.bool)
    labelled[[50, 3]] = True
    estimates = []
    for _ in range(4000):
        ids, correction = sampled.draw(labelled, random)
        assert set(range(20)) | {50} <= set(ids.tolist())
        assert len(ids) == 21 + 8
        estimates.append((head[ids] @ hidden + correction).exp().sum())
    spread = torch.stack(estimates).std() / len(estimates) ** 0.5
    assert abs(torch.stack(estimates).mean() - exact) < 4 * spread


def test_folding_the_feature_scale_keeps_the_draft() -> None:
    scale = measure_feature_scale(make_conversations(3))
    drafter = make_draft()
    features = torch.randn(5, FEATURES)
    before = drafter.project_context(features / scale)
    fold_feature_scale(drafter, scale)
    torch.testing.assert_close(drafter.project_context(features), before, atol=1e-5, rtol=1e-5)


def test_schedule_warms_up_and_ends_at_zero() -> None:
    options = TrainingOptions(steps=100, warmup_steps=10, learning_rate=1.0)
    assert options.rate_at(0) == pytest.approx(0.1)
    assert options.rate_at(10) == pytest.approx(1.0)
    assert options.rate_at(55) == pytest.approx(0.5)
    assert options.rate_at(100) == pytest.approx(0.0, abs=1e-9)


def test_cross_entropy_counts_fully_only_at_first() -> None:
    options = TrainingOptions(steps=100, ce_first=0.2)
    assert options.weights_at(19).ce == 1.0
    assert options.weights_at(20) == options.weights
    assert TrainingOptions(steps=100).weights_at(0).ce == 0.1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocabulary", [False, True])
def test_micro_batches_add_up_to_the_whole_batch(kind: str, vocabulary: bool) -> None:
    data = groups(make_conversations(24), 8)
    whole, parts = make_trainer(vocabulary, kind), make_trainer(vocabulary, kind, micro_batch_size=3)
    for group in data:
        one, many = whole.train_step(list(enumerate(group))), parts.train_step(list(enumerate(group)))
        assert many.loss == pytest.approx(one.loss, rel=1e-5)
        assert many.expected_accept_len == pytest.approx(one.expected_accept_len, rel=1e-5)
    for name, parameter in whole.drafter.named_parameters():
        torch.testing.assert_close(parts.drafter.get_parameter(name), parameter, atol=2e-4, rtol=2e-3)


def test_what_holds_no_anchor_changes_nothing() -> None:
    trainer = make_trainer()
    mute = [Conversation(c.ids, torch.zeros_like(c.loss_mask), c.features, c.hidden) for c in make_conversations(4)]
    before = {name: p.detach().clone() for name, p in trainer.drafter.named_parameters()}
    assert trainer.train_step(list(enumerate(mute))).loss == 0.0
    assert all(torch.equal(p, before[name]) for name, p in trainer.drafter.named_parameters())


def test_a_step_that_is_not_finite_stops_the_run_and_changes_nothing() -> None:
    trainer = make_trainer()
    good, (bad, *_) = make_conversations(4), make_conversations(1, seed=3)
    trainer.train_step(list(enumerate(good)))
    before = {name: p.detach().clone() for name, p in trainer.drafter.named_parameters()}
    hidden = bad.hidden.clone()
    hidden[:] = float("inf")
    with pytest.raises(DataError, match="step 1 is not finite"):
        trainer.train_step([(0, replace(bad, hidden=hidden))])
    assert all(torch.equal(p, before[name]) for name, p in trainer.drafter.named_parameters())


def test_held_out_figures_do_not_depend_on_batch_sizes() -> None:
    data = make_conversations(9)
    one, other = (make_trainer(micro_batch_size=size).evaluate(data) for size in (9, 4))
    assert other.loss == pytest.approx(one.loss, rel=1e-5)
    assert other.expected_accept_len == pytest.approx(one.expected_accept_len, rel=1e-5)


def test_the_correction_survives_bf16() -> None:
    torch.manual_seed(5)
    sampled = SampledVocabulary(torch.randn(VOCAB, HIDDEN).bfloat16(), torch.arange(20), 7)
    ids, correction = sampled.draw(torch.zeros(VOCAB, dtype=torch.bool), torch.Generator())
    view = sampled.restrict(make_draft(), ids, correction)
    logits = F.linear(widen(torch.zeros(1, HIDDEN).bfloat16()).float(), view.lm_head.weight.float())[0]
    # 8 bits of each of two parts.
    torch.testing.assert_close(logits, correction, atol=1e-5, rtol=1e-4)
