"""What was predicted and what became of it, with a censoring mask: a slot that was not verified says nothing.

Shape letters: N rounds (one request in one step), G = gamma slots.
"""

from __future__ import annotations

import base64
import binascii
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgl_dspark.errors import DataError

GREEDY, SAMPLED = 0, 1
KINDS = ("greedy", "sampled")
_FIELDS = ("logits", "verified", "accepted", "sampled")
_WIRE_TYPES = {"logits": "<f4", "verified": "i1", "accepted": "i1", "sampled": "u1"}
# Neighbouring rounds share a request or a batch; whole chunks go to one side of a split.
_CHUNK = 128
# What numpy raises for files that are damaged, or no archives, or of other arrays.
_UNREADABLE = (OSError, KeyError, ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class RecordSet:
    """Rounds in the order in which they ended.

    Attributes
    ----------
    logits : float32 [N, G]
        Of the confidence head, before calibration; finite.
    verified : int16 [N]
        Drafts that the target checked, 0..G, cut where the request ended inside the block.
    accepted : int16 [N]
        Correct drafts among them, 0..verified, the bonus token excluded.
    sampled : bool [N]
        False for greedy requests. Their acceptance differs, so they are calibrated apart.
    """

    logits: NDArray[np.float32]
    verified: NDArray[np.int16]
    accepted: NDArray[np.int16]
    sampled: NDArray[np.bool_]

    def __post_init__(self) -> None:
        shape = self.logits.shape
        lengths = {len(self.verified), len(self.accepted), len(self.sampled)}
        if len(shape) != 2 or shape[1] < 1 or lengths != {shape[0]}:
            raise DataError("Calibration records disagree in their number of rounds; collect them again.")
        if not np.isfinite(self.logits).all():
            raise DataError("Calibration records hold logits that are not finite; collect them again.")
        if ((self.accepted < 0) | (self.accepted > self.verified) | (self.verified > shape[1])).any():
            raise DataError("Calibration records must have 0 <= accepted <= verified <= gamma; collect them again.")

    @classmethod
    def of(cls, logits: ArrayLike, verified: ArrayLike, accepted: ArrayLike, sampled: ArrayLike) -> RecordSet:
        """Build records from anything array-like; raises `DataError` if the arrays do not fit together."""
        return cls(
            np.ascontiguousarray(logits, dtype=np.float32),
            np.asarray(verified, dtype=np.int16),
            np.asarray(accepted, dtype=np.int16),
            np.asarray(sampled, dtype=np.bool_),
        )

    @classmethod
    def empty(cls, gamma: int) -> RecordSet:
        """Return no rounds of ``gamma`` slots."""
        return cls.of(np.zeros((0, gamma)), np.zeros(0), np.zeros(0), np.zeros(0))

    @classmethod
    def concat(cls, parts: Sequence[RecordSet]) -> RecordSet:
        """Join one or more sets of one gamma; raises `DataError` otherwise."""
        if len({part.gamma for part in parts}) != 1:
            raise DataError("Records of different block lengths, or none at all, cannot be joined.")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in _FIELDS))

    def __len__(self) -> int:
        return len(self.logits)

    @property
    def gamma(self) -> int:
        """Slots per round."""
        return int(self.logits.shape[1])

    @property
    def observed(self) -> NDArray[np.bool_]:
        """Bool [N, G]: the target verified this slot. Slots after it are censored, even after a rejection.

        The slots after a rejection are known not to survive, but using them while the unverified slots of accepted
        rounds stay unknown would bias the labels towards zero.
        """
        mask: NDArray[np.bool_] = np.arange(self.gamma) < self.verified[:, None]
        return mask

    @property
    def labels(self) -> NDArray[np.bool_]:
        """Bool [N, G]: drafts 0..j were all accepted; only meaningful where `observed`."""
        labels: NDArray[np.bool_] = np.arange(self.gamma) < self.accepted[:, None]
        return labels

    def select(self, rows: NDArray[Any]) -> RecordSet:
        """Return the rounds of a mask, bool [N], or of indices, int [M]."""
        return RecordSet(self.logits[rows], self.verified[rows], self.accepted[rows], self.sampled[rows])

    def kind(self, kind: int) -> RecordSet:
        """Return the rounds of greedy (0) or of sampled (1) requests."""
        return self.select(self.sampled == bool(kind))

    def split(self, held_out: float) -> tuple[RecordSet, RecordSet]:
        """Split into (fit, held out) by chunks of neighbouring rounds, spread evenly.

        Parameters
        ----------
        held_out : float
            Share of rounds in [0, 1) for the second set.
        """
        if not 0 <= held_out < 1:
            raise ValueError(f"The share that is held out must be in [0, 1), not {held_out}.")
        chunk = np.arange(len(self)) // max(1, min(_CHUNK, len(self) // 8))
        out = np.floor((chunk + 1) * held_out) > np.floor(chunk * held_out)
        return self.select(~out), self.select(out)

    def save(self, path: Path) -> None:
        """Write a compressed ``.npz``."""
        with path.open("wb") as file:
            np.savez_compressed(file, **{name: getattr(self, name) for name in _FIELDS})

    @classmethod
    def load(cls, path: Path) -> RecordSet:
        """Read what `save` wrote; raises `DataError` for any other file."""
        try:
            with np.load(path, allow_pickle=False) as stored:
                return cls.of(*(stored[name] for name in _FIELDS))
        except _UNREADABLE as error:
            raise DataError(f"{path} does not hold calibration records ({error}); collect them again.") from error


def to_wire(records: RecordSet, next_round: int) -> dict[str, Any]:
    """Compose the answer of ``GET /dspark/records``: base64 of little-endian arrays.

    Parameters
    ----------
    records : RecordSet
    next_round : int
        What to ask for next (``after``): rounds recorded since the server started.
    """
    arrays = {
        name: base64.b64encode(np.ascontiguousarray(getattr(records, name), dtype=kind).tobytes()).decode("ascii")
        for name, kind in _WIRE_TYPES.items()
    }
    return {"gamma": records.gamma, "next": next_round, "count": len(records), **arrays}


def from_wire(message: Mapping[str, Any]) -> tuple[RecordSet, int]:
    """Read an answer of ``GET /dspark/records``.

    Returns
    -------
    records : RecordSet
    next_round : int
        The ``after`` of the next question.

    Raises
    ------
    DataError
        If fields are missing or their lengths differ from ``count`` and ``gamma``.
    """
    try:
        gamma, count, next_round = int(message["gamma"]), int(message["count"]), int(message["next"])
        arrays = {
            name: np.frombuffer(base64.b64decode(message[name], validate=True), dtype=kind)
            for name, kind in _WIRE_TYPES.items()
        }
        logits = arrays["logits"].reshape(count, gamma)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise DataError(f"the server's calibration records cannot be read ({error}); are versions equal?") from error
    return RecordSet.of(logits, arrays["verified"], arrays["accepted"], arrays["sampled"]), next_round
