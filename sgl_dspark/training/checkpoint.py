"""The state of a run on disk: whole after a kill at any moment, the same for any number of ranks."""

from __future__ import annotations

import os
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from sgl_dspark.errors import DataError
from sgl_dspark.training.ranks import Ranks

STATE_FILE = "state.pt"


def training_state(draft: nn.Module, wrapped: nn.Module, optimizer: Optimizer, ranks: Ranks) -> dict[str, Any]:
    """Return trained parameters and optimiser state, whole, on the CPU; with FSDP2 every rank must take part."""
    if ranks.world == 1:
        trained = {n: p.detach() for n, p in draft.named_parameters() if p.requires_grad}
        return {"drafter": trained, "optimizer": optimizer.state_dict()}
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    # Without offloading every rank receives the whole state, so that saving and loading are the same on each.
    options = StateDictOptions(full_state_dict=True, ignore_frozen_params=True)
    weights, moments = get_state_dict(wrapped, optimizer, options=options)
    return {"drafter": {_plain(n): t for n, t in weights.items()}, "named_optimizer": moments}


def load_training_state(
    draft: nn.Module, wrapped: nn.Module, optimizer: Optimizer, ranks: Ranks, state: dict[str, Any]
) -> None:
    """Take up what `training_state` returned, in a run of the same number of ranks.

    Raises
    ------
    DataError
        If it was saved by one rank and is loaded by several, or the other way round.
    """
    if ("optimizer" in state) != (ranks.world == 1):
        raise DataError("the run was saved by another number of ranks; continue it with that number.")
    if ranks.world == 1:
        draft.load_state_dict(state["drafter"], strict=False)
        optimizer.load_state_dict(state["optimizer"])
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=False, strict=False)
    names = [name for name, _ in wrapped.named_parameters()]
    prefix = "module.draft." if any(name.startswith("module.") for name in names) else "draft."
    weights = {f"{prefix.removeprefix('module.')}{n}": t for n, t in state["drafter"].items()}
    set_state_dict(
        wrapped,
        optimizer,
        model_state_dict=weights,
        optim_state_dict=state["named_optimizer"],
        options=options,
    )


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write a state in one go, replacing the last one."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / (STATE_FILE + ".partial")
    with partial.open("wb") as sink:
        torch.save(state, sink)
        sink.flush()
        os.fsync(sink.fileno())
    partial.replace(folder / STATE_FILE)


def read_state(folder: Path) -> dict[str, Any] | None:
    """Read a run's state; None when the folder holds none.

    Raises
    ------
    DataError
        If the file is no state.
    """
    path = folder / STATE_FILE
    if not path.is_file():
        return None
    try:
        found: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError, EOFError, KeyError, ValueError, UnpicklingError) as error:
        raise DataError(f"{path} is damaged and cannot be continued; remove it to start anew ({error}).") from error
    return found


def _plain(name: str) -> str:
    return name.removeprefix("module.").removeprefix("draft.")
