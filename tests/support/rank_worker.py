"""Trains a few steps as one rank of several and writes down what it saw; started as a process of its own."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from sgl_dspark.training.checkpoint import read_state, save_state
from sgl_dspark.training.loop import Trainer, TrainingOptions
from sgl_dspark.training.ranks import Ranks
from sgl_dspark.training.vocabulary import SampledVocabulary
from tests.support.conversations import FEATURES, make_conversations, make_draft

STEPS, BATCH, STOP = 6, 4, 3


def train(kind: str, strategy: str, folder: Path) -> None:
    """Run STEPS steps, with a new trainer that takes up the state in the middle; rank 0 writes ``result.json``."""
    ranks = Ranks.join(torch.device("cpu"))
    conversations = make_conversations(STEPS * BATCH)
    # In one step the second rank's share has no anchor at all.
    for place in range(4 * BATCH + 1, 5 * BATCH, 2):
        mute = conversations[place]
        conversations[place] = replace(mute, loss_mask=torch.zeros_like(mute.loss_mask))
    losses = []
    trainer = _trainer(kind, strategy, ranks)
    for step in range(STEPS):
        if step == STOP:
            # Through the disk, as a run does, and with an evaluation before training goes on.
            state = trainer.state()
            if ranks.first:
                save_state(folder, state)
            ranks.total(torch.zeros(1))
            trainer = _trainer(kind, strategy, ranks, seed=9)
            found = read_state(folder)
            assert found is not None
            trainer.load_state(found)
            trainer.evaluate(conversations[:BATCH])
        report = trainer.train_step(ranks.share(conversations[step * BATCH : (step + 1) * BATCH]))
        losses.append(report.loss)
    evaluated = trainer.evaluate(conversations[:BATCH])
    weights = trainer.state()["drafter"]
    if ranks.first:
        norms = {name: float(tensor.double().norm()) for name, tensor in weights.items()}
        found = {"losses": losses, "norms": norms, "held_out": evaluated.loss}
        (folder / "result.json").write_text(json.dumps(found), encoding="utf-8")
    ranks.leave()


def _trainer(kind: str, strategy: str, ranks: Ranks, seed: int = 0) -> Trainer:
    draft = make_draft(kind)
    if seed:
        # Other weights than those that the state will bring, but the same embedding and head.
        other = make_draft(kind, seed)
        trained = {n for n, p in draft.named_parameters() if p.requires_grad}
        draft.load_state_dict({n: t for n, t in other.state_dict().items() if n in trained}, strict=False)
    sampled = SampledVocabulary(draft.lm_head.weight.detach(), torch.arange(40), 10)
    options = TrainingOptions(steps=STEPS, warmup_steps=2, num_anchors=4, micro_batch_size=1, bf16=False)
    return Trainer(draft, options, torch.ones(FEATURES), sampled, ranks, strategy)  # type: ignore[arg-type]


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
