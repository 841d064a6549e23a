"""Tiny drafts on disk, and `dspark convert` on them."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from sgl_dspark.interop import command
from sgl_dspark.interop.convert import convert
from sgl_dspark.model.checkpoint import save_drafter
from tests.support.drafts import tiny_drafter

THERE = ("--to", "speculators", "--verifier", "org/target")
IDS = torch.tensor([3, 5, 6, 17, 30, 39])


def options(source: Path, out: Path, *more: str) -> Namespace:
    parser = ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args([str(source), str(out), *more])


def run(source: Path, out: Path, *more: str) -> Path:
    convert(options(source, out, *more), lambda line: None)
    return out


def saved(folder: Path, kind: str = "vanilla", *, reduced: bool = False, **changes: Any) -> Path:
    drafter = tiny_drafter(kind, dtype=torch.bfloat16, **changes)
    save_drafter(drafter.limit_vocabulary(IDS) if reduced else drafter, folder, include_shared=False)
    return folder


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
