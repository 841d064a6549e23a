from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sgl_dspark.errors import CheckpointError, DsparkError, GoldenError
from sgl_dspark.golden import command
from sgl_dspark.golden.folder import SCALARS, TENSORS
from sgl_dspark.golden.replay import Comparison, replay

HERE = Path(__file__).parent
FOLDERS = sorted(path.parent for path in HERE.glob("*/io.safetensors"))


def run(*folders: Path) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(folder) for folder in folders]))


def copy_of(folder: Path, into: Path) -> Path:
    return Path(shutil.copytree(folder, into / folder.name))


def edit_io(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    io = load_file(folder / "io.safetensors")
    io.pop(name)
    save_file(io if tensor is None else io | {name: tensor}, folder / "io.safetensors")


def test_there_is_a_folder_per_head_type() -> None:
    assert [folder.name for folder in FOLDERS] == ["qwen3_gated", "qwen3_rnn", "qwen3_vanilla"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_folder_is_reproduced(folder: Path) -> None:
    comparisons = replay(folder)
    assert [item for item in comparisons if not item.passed] == []
    replayed = {item.quantity.split(" (")[0] for item in comparisons}
    given = {"input_ids", "loss_mask", "block_keep", "incremental_anchors"}
    assert replayed == (TENSORS.keys() - given) | (set(SCALARS) - {"loss_decay"})


def test_command_prints_a_table_and_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*FOLDERS[:2]) == 0
    out = capsys.readouterr().out
    assert out.count("block_hidden (fused)") == 2
    assert out.endswith("2 folder(s): all within tolerance\n")
    table = [line for line in out.splitlines() if line.endswith(" ok")]
    assert len({line.index(" ok") for line in table}) == 1


@pytest.mark.parametrize(
    "name",
    ["block_hidden", "incremental_hidden", "greedy_logits", "target_logits", "confidence_logits", "draft_logits"],
)
def test_perturbed_tensor_is_over_tolerance(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copy_of(FOLDERS[0], tmp_path)
    tensor = load_file(folder / "io.safetensors")[name]
    tensor.view(-1)[-1] += 2e-4
    edit_io(folder, name, tensor)
    assert run(folder) == 1
    marked = [line for line in capsys.readouterr().out.splitlines() if "OVER TOLERANCE" in line]
    assert marked
    assert all(line.split()[0] == name for line in marked)


def test_perturbed_weight_is_over_tolerance(tmp_path: Path) -> None:
    folder = copy_of(FOLDERS[1], tmp_path)
    file = folder / "draft" / "model.safetensors"
    state = load_file(file)
    state["layers.1.self_attn.k_norm.weight"] *= 1.01
    save_file(state, file)
    failed = {item.quantity for item in replay(folder) if not item.passed}
    assert {"block_hidden", "incremental_hidden", "draft_logits", "ce_loss_num"} <= failed
    assert not {"target_logits", "attention_mask", "ce_loss_den"} & failed


def test_perturbed_token_and_loss_are_over_tolerance(tmp_path: Path) -> None:
    folder = copy_of(FOLDERS[2], tmp_path)
    tokens = load_file(folder / "io.safetensors")["greedy_tokens"]
    tokens[0, 0] = (tokens[0, 0] + 1) % 128
    edit_io(folder, "greedy_tokens", tokens)
    scalars = json.loads((folder / "scalars.json").read_text())
    (folder / "scalars.json").write_text(json.dumps(scalars | {"l1_loss_num": scalars["l1_loss_num"] * (1 + 2e-5)}))
    failed = {item.quantity.split(" (")[0] for item in replay(folder) if not item.passed}
    assert failed == {"greedy_tokens", "l1_loss_num"}


def test_not_a_number_is_over_tolerance(tmp_path: Path) -> None:
    folder = copy_of(FOLDERS[2], tmp_path)
    hidden = load_file(folder / "io.safetensors")["block_hidden"]
    hidden[0, 0, 0, 0] = float("nan")
    edit_io(folder, "block_hidden", hidden)
    failed = [item for item in replay(folder) if not item.passed]
    assert failed[0] == Comparison("block_hidden", "absolute", float("inf"), 1e-4)


@pytest.mark.parametrize("name", ["draft", "target", "io.safetensors", "scalars.json"])
def test_missing_part_is_named(name: str, tmp_path: Path) -> None:
    folder = copy_of(FOLDERS[0], tmp_path)
    (folder / name).rename(folder / "elsewhere")
    with pytest.raises(GoldenError, match=f"has no {name}"):
        run(folder)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("slot_valid", None, "has no tensor slot_valid"),
        ("anchors", torch.zeros(2, 8), "anchors .* is torch.float32"),
        ("anchors", torch.full((2, 8), 40), r"anchors .* outside \[0, 40\)"),
        ("block_hidden", torch.zeros(2, 8, 7, 31), r"block_hidden .* has shape \[2, 8, 7, 31\]"),
        ("attention_mask", torch.zeros(2, 56, 95, dtype=torch.bool), "attention_mask .* has shape"),
        ("incremental_anchors", torch.arange(8).flip(0), "not in ascending order"),
    ],
)
def test_bad_tensor_is_named(name: str, tensor: torch.Tensor | None, message: str, tmp_path: Path) -> None:
    folder = copy_of(FOLDERS[0], tmp_path)
    edit_io(folder, name, tensor)
    with pytest.raises(GoldenError, match=message):
        run(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not a JSON object"), ("{}", "has no 'alpha'"), ('{"alpha": [1, 2]}', "not a JSON object of loss terms")],
)
def test_bad_scalars_are_named(content: str, message: str, tmp_path: Path) -> None:
    folder = copy_of(FOLDERS[0], tmp_path)
    (folder / "scalars.json").write_text(content)
    with pytest.raises(GoldenError, match=message):
        run(folder)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


@pytest.mark.parametrize(
    ("file", "error"),
    [
        ("io.safetensors", GoldenError),
        ("draft/model.safetensors", CheckpointError),
        ("draft/config.json", DsparkError),
        ("target/model.safetensors", GoldenError),
        ("target/config.json", GoldenError),
    ],
)
def test_truncated_file_is_one_sentence(file: str, error: Any, tmp_path: Path) -> None:
    folder = copy_of(FOLDERS[0], tmp_path)
    truncate(folder / file)
    with pytest.raises(error, match=file.split("/")[0]):
        run(folder)


def test_not_a_folder(tmp_path: Path) -> None:
    with pytest.raises(GoldenError, match="is not a folder"):
        run(tmp_path / "nothing")
