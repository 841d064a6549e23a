"""Reading and writing drafts in the released checkpoint format: ``config.json`` and ``model.safetensors``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sgl_dspark.config import DrafterConfig
from sgl_dspark.errors import CheckpointError
from sgl_dspark.model.drafter import Drafter

SHARED_TENSORS = ("embed_tokens.weight", "lm_head.weight")
VOCABULARY_TENSOR = "draft_vocab_ids"
WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"


def tensor_shapes(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor of a complete checkpoint, allocating none of them."""
    with torch.device("meta"):
        return {name: tuple(tensor.shape) for name, tensor in Drafter(config).state_dict().items()}


def load_drafter(
    path: str | Path,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    target_embed: Tensor | None = None,
    target_lm_head: Tensor | None = None,
) -> Drafter:
    """Load a draft in evaluation mode.

    Parameters
    ----------
    path : str or Path
        Folder with ``config.json`` and ``model.safetensors``.
    dtype, device
        Of the loaded weights.
    target_embed, target_lm_head : [V, d], optional
        The target's tensors, of the same dtype. Where given, they are used as they are (no copy) and the file may
        leave its own out.

    Raises
    ------
    ConfigError
        If the configuration is refused.
    CheckpointError
        If the weights file cannot be read, or a tensor is missing, unknown or of the wrong shape.
    TargetMismatchError
        If the target's tensors do not fit the draft.
    """
    config = DrafterConfig.from_dir(path)
    file = Path(path) / WEIGHTS_FILE
    given = {name: t for name, t in zip(SHARED_TENSORS, (target_embed, target_lm_head), strict=True) if t is not None}
    expected = tensor_shapes(config)
    tensors = _read(file, expected, set(given), torch.device(device))
    with torch.device("meta"):
        drafter = Drafter(config)
    state = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    _check_ids(file, state.get(VOCABULARY_TENSOR), config.vocab_size)
    state |= {name: torch.empty(expected[name], device="meta") for name in given}
    drafter.load_state_dict(state, assign=True)
    drafter.share_embeddings(
        given.get(SHARED_TENSORS[0], drafter.embed_tokens.weight), given.get(SHARED_TENSORS[1], drafter.lm_head.weight)
    )
    return drafter.eval()


def check_drafter(path: str | Path, *, beside_target: bool) -> DrafterConfig:
    """Check a draft's configuration and the names and shapes of its tensors; no tensor is read.

    Parameters
    ----------
    path : str or Path
        Folder with ``config.json`` and ``model.safetensors``.
    beside_target : bool
        Whether the target's embedding and head will be there, so that the file may leave them out.

    Raises
    ------
    ConfigError, CheckpointError
        As `load_drafter`.
    """
    config = DrafterConfig.from_dir(path)
    file = Path(path) / WEIGHTS_FILE
    try:
        with safe_open(file, framework="pt") as handle:
            shapes = {name: tuple(handle.get_slice(name).get_shape()) for name in handle.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot read {file}: {error}; give the folder of a draft checkpoint.") from error
    _check(file, shapes, tensor_shapes(config), set(SHARED_TENSORS) if beside_target else set())
    return config


def save_drafter(drafter: Drafter, path: str | Path, *, include_shared: bool) -> None:
    """Write a draft in the released format, replacing what the folder holds.

    Parameters
    ----------
    drafter : Drafter
    path : str or Path
        Folder; made if missing.
    include_shared : bool
        Whether to store ``embed_tokens`` and ``lm_head``. False suits a draft that is served beside its target.

    Raises
    ------
    CheckpointError
        If the files cannot be written.
    """
    folder = Path(path)
    state = {
        name: tensor.detach().cpu().clone()
        for name, tensor in drafter.state_dict().items()
        if include_shared or name not in SHARED_TENSORS
    }
    raw: dict[str, Any] = drafter.config.to_dict() | {"dtype": str(drafter.fc.weight.dtype).removeprefix("torch.")}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_weights(state, folder / WEIGHTS_FILE)
        (folder / CONFIG_FILE).write_text(json.dumps(dict(sorted(raw.items())), indent=2) + "\n", encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write a draft checkpoint to {folder}: {error}.") from error


def save_weights(tensors: dict[str, Tensor], file: Path) -> None:
    """Write a safetensors file that others may read as they may read any new file; safetensors itself forbids it."""
    save_file(tensors, file, metadata={"format": "pt"})
    mask = os.umask(0)
    os.umask(mask)
    file.chmod(0o666 & ~mask)


def _read(file: Path, expected: dict[str, tuple[int, ...]], given: set[str], device: torch.device) -> dict[str, Tensor]:
    try:
        with safe_open(file, framework="pt", device=str(device)) as handle:
            names = handle.keys()
            shapes = {name: tuple(handle.get_slice(name).get_shape()) for name in names}
            _check(file, shapes, expected, given)
            return {name: handle.get_tensor(name) for name in shapes if name not in given}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot read {file}: {error}; give the folder of a draft checkpoint.") from error


def _check(
    file: Path, shapes: dict[str, tuple[int, ...]], expected: dict[str, tuple[int, ...]], given: set[str]
) -> None:
    unknown = sorted(shapes.keys() - expected.keys())
    if unknown:
        raise CheckpointError(f"{file} holds {unknown[0]}, for which its config.json has no place.")
    for name, shape in shapes.items():
        if shape != expected[name]:
            raise CheckpointError(
                f"{name} in {file} has shape {list(shape)}; its config.json asks for {list(expected[name])}."
            )
    missing = sorted(expected.keys() - shapes.keys() - given)
    if missing:
        remedy = "load it beside its target, which has it" if missing[0] in SHARED_TENSORS else "fetch the draft again"
        raise CheckpointError(f"{missing[0]} is missing from {file}; {remedy}.")


def _check_ids(file: Path, ids: Tensor | None, vocab_size: int) -> None:
    if ids is None:
        return
    if ids.dtype != torch.int64 or bool((ids[1:] <= ids[:-1]).any()) or int(ids[0]) < 0 or int(ids[-1]) >= vocab_size:
        raise CheckpointError(
            f"{VOCABULARY_TENSOR} in {file} must be increasing int64 token ids below vocab_size ({vocab_size})."
        )
