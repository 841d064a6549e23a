"""What makes two runs the same run: a folder is continued, or is finished, only for what its run was started with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sgl_dspark.errors import ConfigError
from sgl_dspark.model.checkpoint import CONFIG_FILE, WEIGHTS_FILE
from sgl_dspark.model.provenance import read_provenance
from sgl_dspark.training.recipe import Recipe
from sgl_dspark.training.source import Source

Sections = dict[str, dict[str, Any]]
# Held-out data decides a run's curves, not its draft; runs of earlier releases do not say which it was.
_UNRECORDED = ("data", "held_out")


def decides(recipe: Recipe, source: Source, held_out: Source | None) -> Sections:
    """Return what decides what a run computes: sections of the recipe, and the data's content wherever it lies."""
    whole = recipe.model_dump(mode="json")
    sections: Sections = {name: whole[name] for name in ("draft", "loss", "vocabulary", "optim")}
    data = {"content": source.fingerprint, "held_out": None if held_out is None else held_out.fingerprint}
    return {**sections, "data": data}


def differences(found: Mapping[str, Any], wanted: Sections) -> list[str]:
    """Name the fields in which a run on disk differs from the one that is asked for."""
    names = []
    for section, fields in wanted.items():
        stored = found.get(section)
        if not isinstance(stored, Mapping):
            names.append(section)
            continue
        names += [
            f"{section}.{name}"
            for name in sorted({*fields, *stored})
            if (name in stored or (section, name) != _UNRECORDED) and stored.get(name) != fields.get(name)
        ]
    return names


def check_same(folder: Path, found: Mapping[str, Any], wanted: Sections) -> None:
    """Raise `ConfigError`, naming the fields, if the run in ``folder`` was started with something else."""
    fields = ", ".join(differences(found, wanted))
    if fields:
        raise ConfigError(
            f"{folder} holds another run (it differs in {fields}); "
            "continue with what it was started with, or choose another output.folder."
        )


def is_finished(draft: Path, wanted: Sections) -> bool:
    """Whether ``draft`` is what a run of ``wanted`` ends with; its description is written behind everything else."""
    made = read_provenance(draft)
    whole = all((draft / name).is_file() for name in (CONFIG_FILE, WEIGHTS_FILE))
    return whole and made.get("steps") == wanted["optim"]["steps"] and not differences(made, wanted)
