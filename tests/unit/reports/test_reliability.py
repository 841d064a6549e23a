"""The table and the diagram of a calibration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sgl_dspark.calibration.choose import fit_kind
from sgl_dspark.calibration.maps import CalibrationMap
from sgl_dspark.calibration.records import RecordSet
from sgl_dspark.errors import DsparkError
from sgl_dspark.reports.reliability import calibration_table, save_reliability_diagram
from tests.support.rounds import GAMMA, Traffic


def test_the_table_shows_every_slot_raw_and_calibrated() -> None:
    fit, held_out = Traffic(2.0, -0.5).draw(6000, np.random.default_rng(0)).split(0.3)
    kind = fit_kind(fit, held_out, "affine")
    lines = calibration_table("greedy", kind).splitlines()
    assert lines[0].startswith("greedy, affine")
    assert len(lines) == GAMMA + 3
    for slot, line in enumerate(lines[2:-1]):
        assert line.split()[:2] == [str(slot), str(kind.after[slot].count)]
        assert f"{100 * kind.before[slot].ece:.2f} -> {100 * kind.after[slot].ece:.2f}" in " ".join(line.split())
    assert lines[-1].startswith("mean ECE over slots: ")


def test_the_diagram_is_a_png_of_each_kind(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    records = Traffic(2.0).draw(500, np.random.default_rng(1), gamma=3)
    panels = {
        "greedy": (CalibrationMap.of_temperatures([2.0] * 3), records),
        "sampled": (CalibrationMap.identity(3), RecordSet.empty(3)),
    }
    save_reliability_diagram(tmp_path / "one.png", panels)
    content = (tmp_path / "one.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    save_reliability_diagram(tmp_path / "two.png", {**panels, "sampled": (CalibrationMap.identity(3), records)})
    heights = [int.from_bytes((tmp_path / name).read_bytes()[20:24]) for name in ("one.png", "two.png")]
    # A kind without rounds takes no room.
    assert heights[1] > 1.5 * heights[0]


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(DsparkError, match="held-out"):
        save_reliability_diagram(tmp_path / "no.png", {"greedy": (CalibrationMap.identity(3), RecordSet.empty(3))})
