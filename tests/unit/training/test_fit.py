"""``dspark train fit`` from a cache to a draft that loads, with and without an interruption."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sgl_dspark.model.checkpoint import load_drafter
from sgl_dspark.training import command, loop
from sgl_dspark.training.data import CacheWriter
from sgl_dspark.training.generate import BatchGenerator, Prompt
from sgl_dspark.training.target import TargetModel
from tests.support.tiny_target import write_tiny_target


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a target folder and a cache of its responses."""
    target, data = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("data")
    write_tiny_target(target)
    model = TargetModel.from_dir(target, torch.float32)
    prompts = [Prompt((1, 9, 4, 20 + i), temperature=1.0) for i in range(24)]
    writer = CacheWriter(data, {"feature_layers": [0, 1, 2]}, shard_tokens=100)
    for response in BatchGenerator(model, [0, 1, 2], rows=8, max_positions=40, max_new_tokens=20).run(prompts):
        writer.add(response)
    writer.flush()
    return target, data


def run_fit(made: tuple[Path, Path], out: Path, *extra: str) -> int:
    parser = ArgumentParser()
    command.add_arguments(parser)
    options = (
        f"fit --target {made[0]} --data {made[1]} --held-out {made[1]} --out {out} --layers 1 "
        "--markov-rank 4 --gamma 3 --mask-token-id 3 --steps 8 --batch-size 4 --anchors 4 --warmup-steps 2 "
        "--fp32 --save-every-s 0"
    )
    return command.run(parser.parse_args([*options.split(), *extra]))


def test_an_interrupted_run_ends_with_the_same_draft(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_fit(made, tmp_path / "whole") == 0
    step = loop.Trainer.train_step

    def interrupted(trainer: loop.Trainer, conversations: object) -> object:
        if trainer.step == 5:
            raise KeyboardInterrupt
        return step(trainer, conversations)  # type: ignore[arg-type]

    monkeypatch.setattr(loop.Trainer, "train_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_fit(made, tmp_path / "parts")
    monkeypatch.setattr(loop.Trainer, "train_step", step)
    assert run_fit(made, tmp_path / "parts") == 0
    whole, parts = (load_file(tmp_path / name / "draft" / "model.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_the_draft_loads_beside_its_target(made: tuple[Path, Path], tmp_path: Path) -> None:
    assert run_fit(made, tmp_path, "--feature-layers", "0", "2", "--sampled-vocabulary", "8") == 0
    target = TargetModel.from_dir(made[0], torch.bfloat16)
    drafter = load_drafter(
        tmp_path / "draft",
        dtype=torch.bfloat16,
        device="cpu",
        target_embed=target.embed,
        target_lm_head=target.lm_head,
    )
    assert drafter.config.target_layer_ids == (0, 2)
    assert drafter.config.gamma == 3


def test_a_layer_that_is_not_cached_is_refused(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_fit(made, tmp_path, "--feature-layers", "0", "-1") == 1
    assert "make the data again" in capsys.readouterr().err
