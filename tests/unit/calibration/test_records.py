"""Records: what is observed, what is refused, and the formats on disk and on the wire."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest

from sgl_dspark.calibration.records import GREEDY, SAMPLED, RecordSet, from_wire, to_wire
from sgl_dspark.errors import DataError
from tests.support.rounds import Traffic

_buffer = io.BytesIO()
np.save(_buffer, np.zeros(3))
NPY = _buffer.getvalue()


@pytest.fixture
def few() -> RecordSet:
    return RecordSet.of([[1, 2, 3], [4, 5, 6], [7, 8, 9]], [3, 2, 0], [1, 2, 0], [False, True, True])


def test_unverified_slots_are_censored_not_rejected(few: RecordSet) -> None:
    assert few.observed.tolist() == [[True, True, True], [True, True, False], [False, False, False]]
    assert few.labels[few.observed].tolist() == [True, False, False, True, True]


def test_kinds_are_told_apart(few: RecordSet) -> None:
    assert few.kind(GREEDY).logits.tolist() == [[1, 2, 3]]
    assert few.kind(SAMPLED).accepted.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("verified", "accepted"),
    [([4], [1]), ([2], [3]), ([2], [-1]), ([-1], [-1])],
    ids=["above", "more", "less", "minus"],
)
def test_counts_that_cannot_be_are_refused(verified: list[int], accepted: list[int]) -> None:
    with pytest.raises(DataError, match="accepted <= verified"):
        RecordSet.of([[0, 0, 0]], verified, accepted, [False])


def test_logits_that_are_not_finite_are_refused() -> None:
    with pytest.raises(DataError, match="not finite"):
        RecordSet.of([[0, np.nan]], [2], [1], [False])


def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(DataError, match="number of rounds"):
        RecordSet.of([[0, 0]], [2, 2], [1, 1], [False])


def test_sets_of_another_gamma_do_not_join(few: RecordSet) -> None:
    with pytest.raises(DataError, match="block lengths"):
        RecordSet.concat([few, RecordSet.empty(4)])
    assert len(RecordSet.concat([few, few])) == 6


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_a_split_takes_whole_chunks_and_loses_nothing(share: float) -> None:
    records = Traffic().draw(12_800, np.random.default_rng(0))
    fit, held_out = records.split(share)
    assert len(fit) + len(held_out) == len(records)
    assert len(held_out) / len(records) == pytest.approx(share, abs=0.011)
    both = np.concatenate([fit.logits, held_out.logits])
    assert np.array_equal(np.sort(both, axis=0), np.sort(records.logits, axis=0))
    # Neighbours stay together: only every 128th round or so is followed by one of the other side.
    held = {row.tobytes() for row in held_out.logits}
    sides = np.array([row.tobytes() in held for row in records.logits])
    assert (sides[1:] != sides[:-1]).sum() <= 2 * 100


def test_a_split_of_nothing_holds_nothing_out(few: RecordSet) -> None:
    assert [len(part) for part in few.split(0.0)] == [3, 0]
    with pytest.raises(ValueError, match="share"):
        few.split(1.0)


def test_they_survive_the_disk(few: RecordSet, tmp_path: Path) -> None:
    few.save(tmp_path / "records.npz")
    read = RecordSet.load(tmp_path / "records.npz")
    for name in ("logits", "verified", "accepted", "sampled"):
        assert np.array_equal(getattr(read, name), getattr(few, name))
        assert getattr(read, name).dtype == getattr(few, name).dtype


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04 damaged", b"no archive", NPY], ids=["empty", "zip", "text", "npy"]
)
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "records.npz").write_bytes(content)
    with pytest.raises(DataError, match="calibration records"):
        RecordSet.load(tmp_path / "records.npz")


def test_they_survive_the_wire(few: RecordSet) -> None:
    message = to_wire(few, 42)
    assert message["gamma"] == 3
    assert message["count"] == 3
    # The layout is fixed: little-endian fp32 and single bytes.
    assert base64.b64decode(message["logits"])[:8] == np.array([1, 2], "<f4").tobytes()
    assert base64.b64decode(message["verified"]) == bytes([3, 2, 0])
    read, following = from_wire(message)
    assert following == 42
    assert np.array_equal(read.logits, few.logits)
    assert np.array_equal(read.sampled, few.sampled)


def test_the_wire_carries_nothing_too() -> None:
    read, following = from_wire(to_wire(RecordSet.empty(5), 7))
    assert (len(read), read.gamma, following) == (0, 5, 7)


@pytest.mark.parametrize(
    "change", [{"count": 2}, {"gamma": 4}, {"logits": "???"}, {"accepted": None}, {"verified": ""}, {"next": "x"}]
)
def test_a_damaged_message_is_refused(few: RecordSet, change: dict[str, object]) -> None:
    with pytest.raises(DataError):
        from_wire({**to_wire(few, 1), **change})
    with pytest.raises(DataError, match="gamma"):
        from_wire({})
