"""Reading a golden folder: what it must hold, and one sentence when it does not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from sgl_dspark.errors import GoldenError
from sgl_dspark.model.checkpoint import load_drafter
from sgl_dspark.model.drafter import Drafter

# Sizes: B, S, N, n from the tensors themselves; g gamma, d hidden, V vocabulary, f = m*d from the draft's
# configuration; q = N*gamma and k = S + N*gamma follow.
TENSORS: dict[str, tuple[str, torch.dtype]] = {
    "input_ids": ("B S", torch.int64),
    "loss_mask": ("B S", torch.float32),
    "context_features": ("B S f", torch.float32),
    "target_last_hidden": ("B S d", torch.float32),
    "target_logits": ("B S V", torch.float32),
    "anchors": ("B N", torch.int64),
    "block_keep": ("B N", torch.bool),
    "attention_mask": ("B q k", torch.bool),
    "block_hidden": ("B N g d", torch.float32),
    "draft_logits": ("B N g V", torch.float32),
    "target_ids": ("B N g", torch.int64),
    "slot_valid": ("B N g", torch.bool),
    "confidence_logits": ("B N g", torch.float32),
    "aligned_target_logits": ("B N g V", torch.float32),
    "incremental_anchors": ("n", torch.int64),
    "incremental_hidden": ("n g d", torch.float32),
    "greedy_tokens": ("n g", torch.int64),
    "greedy_logits": ("n g V", torch.float32),
    "greedy_confidence_logits": ("n g", torch.float32),
}
SCALARS = (
    "loss",
    "ce_loss_num",
    "ce_loss_den",
    "l1_loss_num",
    "l1_loss_den",
    "confidence_loss_num",
    "confidence_loss_den",
    "loss_decay",
)


@dataclass(frozen=True)
class GoldenFolder:
    """One folder in the format of ``tests/golden/README.md``.

    Attributes
    ----------
    path : Path
    drafter : Drafter
        fp32, on the CPU.
    io : mapping of str to Tensor
        The tensors of ``io.safetensors``, shapes checked.
    scalars : mapping of str to float
        The loss terms and ``loss_decay``.
    alpha : tuple of three float
        Coefficients of cross-entropy, total variation and confidence.
    """

    path: Path
    drafter: Drafter
    io: Mapping[str, Tensor]
    scalars: Mapping[str, float]
    alpha: tuple[float, float, float]


def read_folder(path: Path) -> GoldenFolder:
    """Load a golden folder.

    Raises
    ------
    GoldenError
        If a file or a tensor is missing, or has another shape or type than documented.
    ConfigError, CheckpointError
        If the draft in it cannot be loaded.
    """
    if not path.is_dir():
        raise GoldenError(
            f"{path} is not a folder; give one that holds draft/, target/, io.safetensors and scalars.json."
        )
    for name in ("draft", "target", "io.safetensors", "scalars.json"):
        if not (path / name).exists():
            raise GoldenError(f"{path} has no {name}; copy the whole golden folder.")
    scalars, alpha = _read_scalars(path / "scalars.json")
    drafter = load_drafter(path / "draft", dtype=torch.float32, device="cpu")
    try:
        io = load_file(path / "io.safetensors")
    except (OSError, SafetensorError) as error:
        raise GoldenError(f"cannot read {path / 'io.safetensors'}: {error}; copy the folder again.") from error
    _check_tensors(path / "io.safetensors", io, drafter)
    return GoldenFolder(path, drafter, io, scalars, alpha)


def _read_scalars(file: Path) -> tuple[dict[str, float], tuple[float, float, float]]:
    try:
        raw: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        first, second, third = (float(value) for value in raw["alpha"])
        return {name: float(raw[name]) for name in SCALARS}, (first, second, third)
    except KeyError as error:
        raise GoldenError(f"{file} has no {error}; copy the folder again.") from error
    except (OSError, ValueError, TypeError) as error:
        raise GoldenError(f"{file} is not a JSON object of loss terms: {error}.") from error


def _check_tensors(file: Path, io: Mapping[str, Tensor], drafter: Drafter) -> None:
    config = drafter.config
    sizes = {"g": config.gamma, "d": config.hidden_size, "V": config.vocab_size, "f": config.num_features}
    for name, (letters, dtype) in TENSORS.items():
        tensor = io.get(name)
        if tensor is None:
            raise GoldenError(f"{file} has no tensor {name}; copy the folder again.")
        if tensor.dtype != dtype:
            raise GoldenError(f"{name} in {file} is {tensor.dtype}; the format asks for {dtype}.")
        if "N" in sizes:
            sizes["q"] = sizes["N"] * sizes["g"]
            sizes["k"] = sizes["S"] + sizes["q"]
        dims = letters.split()
        if tensor.dim() != len(dims) or any(
            sizes.setdefault(d, n) != n for d, n in zip(dims, tensor.shape, strict=True)
        ):
            raise GoldenError(
                f"{name} in {file} has shape {list(tensor.shape)}; the format asks for [{', '.join(dims)}]."
            )
    for name, limit in (("anchors", sizes["S"]), ("incremental_anchors", sizes["S"]), ("input_ids", sizes["V"])):
        if not ((io[name] >= 0) & (io[name] < limit)).all():
            raise GoldenError(f"{name} in {file} has values outside [0, {limit}); copy the folder again.")
    ordered = io["incremental_anchors"]
    if not (ordered[1:] >= ordered[:-1]).all():
        raise GoldenError(f"incremental_anchors in {file} are not in ascending order; copy the folder again.")
