"""``dspark train`` from a recipe and a cache to a draft that loads, with and without an interruption."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sgl_dspark.data.build import build_cache, trainable
from sgl_dspark.data.cache import CacheWriter, TargetCache, weights_sha256
from sgl_dspark.data.responses import Exchange, ResponseFile
from sgl_dspark.data.template import Encoded
from sgl_dspark.errors import ConfigError, DataError
from sgl_dspark.evaluation.sides import BlockSide, ChainSide, load_side
from sgl_dspark.model.provenance import other_target, read_provenance, write_provenance
from sgl_dspark.model.target import TargetModel
from sgl_dspark.training import loop
from sgl_dspark.training.fit import fit
from sgl_dspark.training.journal import read_metrics
from sgl_dspark.training.ranks import Ranks
from sgl_dspark.training.recipe import Recipe
from sgl_dspark.training.source import CacheSource, ResponseSource
from tests.support.tiny_target import write_tiny_target
from tests.unit.training.conftest import LAYERS


def recipe(made: tuple[Path, Path], out: Path, **changes: Any) -> Recipe:
    raw: dict[str, Any] = {
        "target": made[0],
        "device": "cpu",
        "data": {"caches": [made[1]], "held_out": [made[1]], "held_out_limit": 8},
        "draft": {"layers": 1, "markov_rank": 4, "gamma": 3, "mask_token_id": 3},
        "optim": {"steps": 8, "batch_size": 4, "anchors": 4, "warmup_steps": 2, "bf16": False},
        "output": {"folder": out, "save_every_s": 0, "log_every": 2, "evaluate_every": 4, "tensorboard": False},
    }
    for section, values in changes.items():
        raw[section] = {**raw[section], **values} if isinstance(values, dict) else values
    return Recipe.model_validate(raw)


def quiet(line: str) -> None:
    """Take a log line and drop it."""


@pytest.mark.parametrize("kind", ["dspark", "eagle3"])
def test_an_interrupted_run_ends_with_the_same_draft(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    draft = {"kind": "eagle3", "gamma": 3, "layers": 1, "markov_rank": 0, "confidence": False}
    changes = {"draft": draft} if kind == "eagle3" else {}
    whole_folder = fit(recipe(made, tmp_path / "whole", **changes), quiet)
    step = loop.Trainer.train_step

    def interrupted(trainer: loop.Trainer, share: Any) -> Any:
        if trainer.step == 5:
            raise KeyboardInterrupt
        return step(trainer, share)

    monkeypatch.setattr(loop.Trainer, "train_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(recipe(made, tmp_path / "parts", **changes), quiet)
    # What a kill leaves of the line that was being written.
    with (tmp_path / "parts" / "metrics.jsonl").open("a") as sink:
        sink.write('{"name": "train", "st')
    monkeypatch.setattr(loop.Trainer, "train_step", step)
    parts_folder = fit(recipe(made, tmp_path / "parts", **changes), quiet)
    whole, parts = (load_file(folder / "model.safetensors") for folder in (whole_folder, parts_folder))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    curves = [
        [(r["name"], r["step"], r["loss"]) for r in read_metrics(tmp_path / name / "metrics.jsonl")]
        for name in ("whole", "parts")
    ]
    assert curves[0] == curves[1]
    assert [step for name, step, _ in curves[0] if name == "held_out"] == [4, 8]
    # Curves are drawn over all tokens that the run has seen, not those of one step.
    for name in ("whole", "parts"):
        seen = [r["tokens"] for r in read_metrics(tmp_path / name / "metrics.jsonl")]
        assert seen == sorted(seen)
        assert seen[-1] == json.loads((tmp_path / name / "draft" / "training.json").read_text())["supervised_tokens"]


def test_the_draft_loads_beside_its_target(made: tuple[Path, Path], tmp_path: Path) -> None:
    raw = recipe(made, tmp_path, draft={"feature_layers": [0, 2]}).model_dump()
    folder = fit(Recipe.model_validate({**raw, "vocabulary": {"sample": 8}}), quiet)
    target_sha256 = weights_sha256(made[0])
    assert other_target(folder, target_sha256) is None
    assert other_target(folder, "0" * 64) == made[0].name
    described = json.loads((folder / "training.json").read_text())
    assert described["steps"] == 8
    assert described["draft"]["feature_layers"] == [0, 2]
    assert str(tmp_path) not in json.dumps(described)
    side = load_side(folder, TargetModel.from_dir(made[0], torch.bfloat16))
    assert isinstance(side, BlockSide)
    assert side.feature_layers == (0, 2)
    assert side.gamma == 3


def test_the_baseline_loads_as_what_it_is(made: tuple[Path, Path], tmp_path: Path) -> None:
    draft = {"kind": "eagle3", "gamma": 3, "layers": 1, "markov_rank": 0, "confidence": False, "mask_token_id": None}
    side = load_side(fit(recipe(made, tmp_path, draft=draft), quiet), TargetModel.from_dir(made[0], torch.bfloat16))
    assert isinstance(side, ChainSide)


def test_a_run_of_another_recipe_is_not_continued(made: tuple[Path, Path], tmp_path: Path) -> None:
    fit(recipe(made, tmp_path), quiet)
    with pytest.raises(ConfigError, match=r"optim\.learning_rate"):
        fit(recipe(made, tmp_path, optim={"learning_rate": 0.5}), quiet)


def test_a_run_on_other_data_is_not_continued(made: tuple[Path, Path], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    for file in made[1].iterdir():
        (cache / file.name).write_bytes(file.read_bytes())
    fit(recipe((made[0], cache), tmp_path / "out"), quiet)
    # The same data elsewhere is the same data; one shard more is not.
    fit(recipe(made, tmp_path / "out"), quiet)
    writer = CacheWriter(cache, TargetCache.open(cache).source)
    writer.write("shard-00099.safetensors", list(CacheSource([made[1]], made[0]).all())[:2])
    with pytest.raises(ConfigError, match=r"data\.content"):
        fit(recipe((made[0], cache), tmp_path / "out"), quiet)


def test_a_finished_run_is_left_as_it_is_and_no_data_is_read(made: tuple[Path, Path], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(made[1], cache)
    folder = fit(recipe((made[0], cache), tmp_path / "out"), quiet)
    # Only the manifest is left, which says what the data was.
    for shard in cache.glob("*.safetensors"):
        shard.unlink()
    before = {path: path.stat().st_mtime_ns for path in sorted(folder.parent.rglob("*"))}
    lines: list[str] = []
    assert fit(recipe((made[0], cache), tmp_path / "out"), lines.append) == folder
    assert {path: path.stat().st_mtime_ns for path in sorted(folder.parent.rglob("*"))} == before
    assert "finished" in lines[-1]
    with pytest.raises(ConfigError, match=r"optim\.seed"):
        fit(recipe((made[0], cache), tmp_path / "out", optim={"seed": 5}), quiet)
    # A kill before the description was written: the draft is written again.
    (folder / "training.json").unlink()
    assert fit(recipe(made, tmp_path / "out"), quiet) == folder
    assert (folder / "training.json").is_file()


def test_curves_of_other_held_out_data_are_not_continued(made: tuple[Path, Path], tmp_path: Path) -> None:
    held = tmp_path / "held"
    writer = CacheWriter(held, TargetCache.open(made[1]).source)
    writer.write("shard-00000.safetensors", list(CacheSource([made[1]], made[0]).all())[:4])
    folder = fit(recipe(made, tmp_path / "out"), quiet)
    with pytest.raises(ConfigError, match=r"data\.held_out"):
        fit(recipe(made, tmp_path / "out", data={"held_out": [held]}), quiet)
    # Earlier releases did not record it.
    made_by = read_provenance(folder)
    del made_by["data"]["held_out"]
    write_provenance(folder, made_by)
    assert fit(recipe(made, tmp_path / "out", data={"held_out": [held]}), quiet) == folder


def test_a_run_on_responses_is_of_its_targets_weights(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    target, out = tmp_path / "target", tmp_path / "out"
    shutil.copytree(Path(__file__).parents[2] / "fixtures" / "pair" / "target", target)
    with ResponseFile(tmp_path / "answers.jsonl") as sink:
        for i in range(8):
            messages = [{"role": "user", "content": f"Add {i}."}, {"role": "assistant", "content": f"It is {i} or so."}]
            sink.add(Exchange(f"{i}", "", messages, ["stop"]))
    data = {"mode": "memory", "responses": [tmp_path / "answers.jsonl"], "caches": [], "held_out": []}
    changes = {"data": data, "draft": {"feature_layers": [1, 3]}, "optim": {"steps": 1}}
    fit(recipe((target, tmp_path), out, **changes), quiet)
    weights = load_file(target / "model.safetensors")
    name = next(name for name in weights if "mlp.down_proj" in name)
    # Embedding and configuration stay: a fine-tune, say.
    save_file({**weights, name: weights[name] * 1.5}, target / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"data\.content"):
        fit(recipe((target, tmp_path), out, **changes), quiet)


def test_ranks_share_the_batches_of_one(made: tuple[Path, Path]) -> None:
    source = CacheSource([made[1]], made[0])
    whole = [next(source.shares(0, 4, Ranks(), skip)) for skip in range(5)]
    parts = [[next(source.shares(0, 4, Ranks(rank, 2), skip)) for skip in range(5)] for rank in (0, 1)]
    for step, batch in enumerate(whole):
        found = sorted([*parts[0][step], *parts[1][step]], key=lambda pair: pair[0])
        assert [i for i, _ in found] == [i for i, _ in batch] == [0, 1, 2, 3]
        assert all(torch.equal(a.ids, b.ids) for (_, a), (_, b) in zip(found, batch, strict=True))


def test_held_out_data_of_other_layers_is_refused_at_the_start(made: tuple[Path, Path], tmp_path: Path) -> None:
    source = {**TargetCache.open(made[1]).source, "feature_layers": [0, 1, 3]}
    CacheWriter(tmp_path / "held", source).write("shard-00000.safetensors", list(CacheSource([made[1]], made[0]).all()))
    with pytest.raises(DataError, match=r"not \[2\]"):
        fit(recipe(made, tmp_path / "out", data={"held_out": [tmp_path / "held"]}), quiet)


def test_a_layer_that_is_not_cached_is_refused(made: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="make the data again"):
        fit(recipe(made, tmp_path, draft={"feature_layers": [-1, 0]}), quiet)


def test_a_damaged_shard_is_named_and_not_trained_on(made: tuple[Path, Path], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    for file in made[1].iterdir():
        (cache / file.name).write_bytes(file.read_bytes())
    victim = cache / TargetCache.open(cache).shards[1].file
    content = bytearray(victim.read_bytes())
    content[-3] ^= 1
    victim.write_bytes(content)
    with pytest.raises(DataError, match=f"{victim.name} is damaged"):
        fit(recipe((made[0], cache), tmp_path / "out"), quiet)


def test_a_cache_of_another_target_is_refused(made: tuple[Path, Path], tmp_path: Path) -> None:
    write_tiny_target(tmp_path, seed=5)
    with pytest.raises(DataError, match="another target"):
        CacheSource([made[1]], tmp_path)


def test_batches_are_a_function_of_the_seed_and_cover_the_data(made: tuple[Path, Path]) -> None:
    source = CacheSource([made[1]], made[0])
    everything = sorted(tuple(c.ids.tolist()) for c in source.all())

    def first(seed: int, count: int, skip: int = 0) -> list[list[tuple[int, ...]]]:
        stream = source.shares(seed, 4, Ranks(), skip)
        return [[tuple(c.ids.tolist()) for _, c in next(stream)] for _ in range(count)]

    whole = len(everything) // 4
    assert first(0, 3 * whole) == first(0, 3 * whole)
    assert first(0, 3 * whole)[5:] == first(0, 3 * whole - 5, skip=5)
    assert first(0, whole) != first(1, whole)
    # An epoch leaves fewer than a batch over, and the next one begins with it.
    seen = [ids for batch in first(0, whole) for ids in batch]
    assert all(seen.count(ids) <= everything.count(ids) for ids in seen)
    twice = [ids for batch in first(0, 2 * whole + 1) for ids in batch]
    assert all(ids in twice for ids in everything)


@pytest.mark.parametrize("keep", [True, False])
def test_states_from_memory_and_online_are_those_of_the_cache(
    made: tuple[Path, Path], tmp_path: Path, keep: bool
) -> None:
    model = TargetModel.from_dir(made[0], torch.float32)
    cached = list(CacheSource([made[1]], made[0]).all())
    encoded = [Encoded(tuple(c.ids.tolist()), tuple(c.loss_mask.tolist())) for c in cached]
    source = ResponseSource(encoded, model, LAYERS, target_sha256=weights_sha256(made[0]), keep=keep)
    writer = CacheWriter(tmp_path, {"feature_layers": LAYERS, "target_sha256": weights_sha256(made[0])})
    build_cache(model, encoded, LAYERS, writer, quiet, shard_tokens=100)
    built = list(CacheSource([tmp_path], made[0]).all())
    for one, two, three in zip(cached, source.all(), built, strict=True):
        for other in (two, three):
            assert torch.equal(one.ids, other.ids)
            assert torch.equal(one.loss_mask, other.loss_mask)
            torch.testing.assert_close(one.features, other.features, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(one.hidden, other.hidden, atol=1e-4, rtol=1e-4)
    counts = source.label_counts(64)
    assert torch.equal(counts, CacheSource([made[1]], made[0]).label_counts(64))
    stream = source.shares(0, 4, Ranks())
    skipped = [next(stream) for _ in range(3)][2]
    resumed = next(source.shares(0, 4, Ranks(), skip=2))
    assert [c.ids.tolist() for _, c in resumed] == [c.ids.tolist() for _, c in skipped]


def test_metrics_are_json_lines(made: tuple[Path, Path], tmp_path: Path) -> None:
    fit(recipe(made, tmp_path, output={"tensorboard": True}), quiet)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert {json.loads(line)["name"] for line in lines} == {"train", "held_out"}
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_conversations_without_an_anchor_are_left_out() -> None:
    pair, single = Encoded((1, 2, 3), (False, True, True)), Encoded((1, 2, 3), (False, False, True))
    assert trainable([pair, single], 10) == [pair]
    assert trainable([pair], 2) == []
