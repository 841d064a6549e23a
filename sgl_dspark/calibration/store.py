"""``calibration.json`` beside a draft: what was fitted, for which draft, from which data, and how good it is."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sgl_dspark.calibration.maps import CalibrationMap
from sgl_dspark.calibration.metrics import SlotMetrics
from sgl_dspark.calibration.records import KINDS
from sgl_dspark.errors import CalibrationError

FILE_NAME = "calibration.json"
SCHEMA = 1
_WEIGHTS = "*.safetensors"


@dataclass(frozen=True)
class KindCalibration:
    """Calibration of greedy or of sampled requests.

    Attributes
    ----------
    map : CalibrationMap
    method : str
        ``identity`` (no data), ``sts`` or ``affine``.
    before, after : tuple of SlotMetrics, [G] or empty
        On held-out rounds, with raw confidences and with ``map``.
    """

    map: CalibrationMap
    method: str = "identity"
    before: tuple[SlotMetrics, ...] = ()
    after: tuple[SlotMetrics, ...] = ()


@dataclass(frozen=True)
class Calibration:
    """Everything that the file holds.

    Attributes
    ----------
    gamma : int
    draft_sha256 : str
        Of the draft's weights, see `draft_sha256`.
    greedy, sampled : KindCalibration
    data : dict
        Which prompts, temperatures and counts of rounds it was fitted on, and when.
    """

    gamma: int
    draft_sha256: str
    greedy: KindCalibration
    sampled: KindCalibration
    data: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in KINDS:
            if self.kind(name).map.gamma != self.gamma:
                raise CalibrationError(f"{FILE_NAME}: {name} does not have gamma = {self.gamma} slots; calibrate again")

    def kind(self, name: str) -> KindCalibration:
        """Return ``greedy`` or ``sampled``."""
        return self.greedy if name == "greedy" else self.sampled

    def save(self, path: Path) -> None:
        """Write the file at once, so that a reader never sees half of it."""
        kinds = {name: _kind_to_json(self.kind(name)) for name in KINDS}
        content = {
            "schema": SCHEMA,
            "gamma": self.gamma,
            "draft_sha256": self.draft_sha256,
            **kinds,
            "data": self.data,
        }
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        beside.replace(path)


def load(path: Path, *, gamma: int, draft_sha256: str | None) -> Calibration:
    """Read a calibration for a draft.

    Parameters
    ----------
    path : Path
    gamma : int
        Of the draft that is served.
    draft_sha256 : str or None
        Of its weights; None does not compare them.

    Raises
    ------
    CalibrationError
        If the file is missing, damaged, of another schema, or was made for another gamma or other weights.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        schema = content["schema"]
    except FileNotFoundError as error:
        raise CalibrationError(f"there is no {path}; make it with: dspark calibrate") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CalibrationError(f"{path} cannot be read ({error}); calibrate again with: dspark calibrate") from error
    if schema != SCHEMA:
        raise CalibrationError(f"{path} has schema {schema}, this version reads {SCHEMA}; calibrate again")
    try:
        kinds = {name: _kind_from_json(content[name]) for name in KINDS}
        stored = Calibration(int(content["gamma"]), str(content["draft_sha256"]), **kinds, data=dict(content["data"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CalibrationError(f"{path} is incomplete ({error}); calibrate again with: dspark calibrate") from error
    if stored.gamma != gamma:
        raise CalibrationError(f"{path} was made for gamma {stored.gamma}, the draft has {gamma}; calibrate again")
    if draft_sha256 is not None and stored.draft_sha256 != draft_sha256:
        raise CalibrationError(
            f"{path} was made for other draft weights (sha256 {stored.draft_sha256[:12]}, this draft has "
            f"{draft_sha256[:12]}); calibrate again"
        )
    return stored


def draft_sha256(draft: Path) -> str:
    """Hash a draft's weights: its one safetensors file as ``sha256sum`` does, several through their hashes.

    Raises
    ------
    CalibrationError
        If the folder holds no weights.
    """
    files = [draft] if draft.is_file() else sorted(draft.glob(_WEIGHTS))
    if not files:
        raise CalibrationError(f"{draft} holds no {_WEIGHTS}; name the folder of a draft")
    digests = []
    for file in files:
        with file.open("rb") as stream:
            digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def _kind_to_json(kind: KindCalibration) -> dict[str, Any]:
    return {
        "method": kind.method,
        "temperatures": kind.map.temperatures.tolist(),
        "biases": kind.map.biases.tolist(),
        "before": [m.to_json() for m in kind.before],
        "after": [m.to_json() for m in kind.after],
    }


def _kind_from_json(values: Mapping[str, Any]) -> KindCalibration:
    return KindCalibration(
        CalibrationMap.of_temperatures(values["temperatures"], values["biases"]),
        str(values["method"]),
        tuple(SlotMetrics.from_json(m) for m in values["before"]),
        tuple(SlotMetrics.from_json(m) for m in values["after"]),
    )
