"""The training loop learns, resumes exactly, and its sampled vocabulary estimates the whole one."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch

from sgl_dspark.config import DrafterConfig
from sgl_dspark.model.drafter import Drafter
from sgl_dspark.training.data import Conversation
from sgl_dspark.training.loop import Trainer, TrainingOptions, fold_feature_scale, measure_feature_scale
from sgl_dspark.training.vocabulary import SampledVocabulary

VOCAB, HIDDEN, FEATURES, GAMMA = 61, 32, 64, 3


def make_drafter(seed: int = 0) -> Drafter:
    torch.manual_seed(seed)
    config = DrafterConfig(
        hidden_size=HIDDEN, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, vocab_size=VOCAB, rms_norm_eps=1e-6, rope_theta=1e4, max_position_embeddings=128, gamma=GAMMA,
        mask_token_id=0, target_layer_ids=(0, 2), num_target_layers=4, markov_rank=8, markov_head_type="vanilla",
        enable_confidence_head=True, confidence_head_with_markov=True,
    )  # fmt: skip
    drafter = Drafter(config)
    drafter.share_embeddings(torch.randn(VOCAB, HIDDEN), torch.randn(VOCAB, HIDDEN))
    return drafter


def make_conversations(count: int, seed: int = 0) -> list[Conversation]:
    """Sequences that count upwards, with states that tell the position apart."""
    random = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        length = int(torch.randint(12, 20, (1,), generator=random))
        ids = (torch.arange(length) + int(torch.randint(0, 40, (1,), generator=random))) % VOCAB
        found.append(
            Conversation(
                ids=ids,
                loss_mask=torch.arange(length) >= 4,
                features=torch.randn(length - 1, FEATURES, generator=random),
                hidden=torch.randn(length - 1, HIDDEN, generator=random),
            )
        )
    return found


def make_trainer(vocabulary: bool = False, **options: object) -> Trainer:
    drafter = make_drafter()
    sampled = None
    if vocabulary:
        sampled = SampledVocabulary(drafter.lm_head.weight.detach(), torch.arange(40), 10)
    settings = {"steps": 12, "warmup_steps": 2, "batch_size": 4, "num_anchors": 4, "bf16": False, **options}
    return Trainer(drafter, TrainingOptions(**settings), torch.ones(FEATURES), sampled)  # type: ignore[arg-type]


def groups(conversations: Sequence[Conversation], size: int = 4) -> list[list[Conversation]]:
    return [list(conversations[i : i + size]) for i in range(0, len(conversations), size)]


@pytest.mark.parametrize("vocabulary", [False, True])
def test_resuming_gives_the_same_losses_as_never_stopping(vocabulary: bool) -> None:
    data = groups(make_conversations(32))
    whole = make_trainer(vocabulary)
    losses = [whole.train_step(group).loss for group in data]
    first = make_trainer(vocabulary)
    for group in data[:5]:
        first.train_step(group)
    state = copy.deepcopy(first.state())
    second = make_trainer(vocabulary)
    second.drafter.reset_parameters()
    second.drafter.embed_tokens.weight.data.copy_(first.drafter.embed_tokens.weight)
    second.drafter.lm_head.weight.data.copy_(first.drafter.lm_head.weight)
    second.load_state(state)
    assert [second.train_step(group).loss for group in data[5:]] == losses[5:]
    for name, parameter in whole.drafter.named_parameters():
        assert torch.equal(parameter, second.drafter.get_parameter(name)), name


def test_evaluation_leaves_the_run_unchanged() -> None:
    data = groups(make_conversations(16))
    plain, watched = make_trainer(vocabulary=True), make_trainer(vocabulary=True)
    for group in data:
        watched.evaluate(data[:2])
        assert plain.train_step(group).loss == watched.train_step(group).loss


def test_a_learnable_law_is_learnt_and_the_head_stays_frozen() -> None:
    trainer = make_trainer(steps=60, learning_rate=1e-2)
    head = trainer.drafter.lm_head.weight.detach()
    # The target's law is concentrated on the next token, which follows from the previous one.
    data = [
        Conversation(c.ids, c.loss_mask, c.features, 10 * head[c.ids[1:]] / head[c.ids[1:]].norm(dim=-1, keepdim=True))
        for c in make_conversations(32)
    ]
    frozen = head.clone()
    reports = [trainer.train_step(group) for _ in range(8) for group in groups(data)][:60]
    assert reports[-1].expected_accept_len > reports[0].expected_accept_len + 0.5
    assert reports[-1].loss < 0.7 * reports[0].loss
    assert torch.equal(trainer.drafter.lm_head.weight, frozen)


def test_a_core_that_is_the_vocabulary_changes_nothing() -> None:
    data = groups(make_conversations(8))
    plain, sampled = make_trainer(), make_trainer()
    sampled.vocabulary = SampledVocabulary(sampled.drafter.lm_head.weight.detach(), torch.arange(VOCAB), 10)
    for group in data:
        assert sampled.train_step(group).loss == pytest.approx(plain.train_step(group).loss, rel=1e-5)


def test_corrections_make_the_sampled_denominator_unbiased() -> None:
    torch.manual_seed(5)
    head = torch.randn(VOCAB, HIDDEN)
    sampled = SampledVocabulary(head, torch.arange(20), 8)
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(HIDDEN) * 0.3
    exact = (head @ hidden).exp().sum()
    labels = torch.tensor([50, 3])
    estimates = []
    for _ in range(4000):
        ids, correction = sampled.draw(labels, random)
        assert set(range(20)) | {50} <= set(ids.tolist())
        assert len(ids) == 21 + 8
        estimates.append((head[ids] @ hidden + correction).exp().sum())
    spread = torch.stack(estimates).std() / len(estimates) ** 0.5
    assert abs(torch.stack(estimates).mean() - exact) < 4 * spread


def test_folding_the_feature_scale_keeps_the_draft() -> None:
    scale = measure_feature_scale(make_conversations(3))
    drafter = make_drafter()
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
