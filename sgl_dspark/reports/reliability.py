"""What a calibration achieved: a table per slot, and the reliability diagram (Fig. 6)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sgl_dspark.calibration.maps import CalibrationMap
from sgl_dspark.calibration.metrics import BINS, mean_ece, observed_slot, reliability
from sgl_dspark.calibration.records import RecordSet
from sgl_dspark.calibration.store import KindCalibration
from sgl_dspark.errors import DsparkError
from sgl_dspark.reports.figure import new_figure

# Rounds from which a bin is joined to its neighbours; the mean of fewer is mostly chance.
_FIRM = 20
_RAW, _AFTER = "#b0b0b0", "#2a6fbb"


def calibration_table(name: str, kind: KindCalibration) -> str:
    """Lay out held-out ECE, AUROC and Brier score of every slot, raw and calibrated.

    Parameters
    ----------
    name : str
        ``greedy`` or ``sampled``.
    kind : KindCalibration
        ``before`` and ``after`` may be empty.
    """
    lines = [
        f"{name}, {kind.method}: survival on held-out rounds, raw -> calibrated",
        "slot  rounds       T   bias    ECE %          by chance  AUROC            Brier            mean  observed",
    ]
    for slot, (raw, new) in enumerate(zip(kind.before, kind.after, strict=True)):
        lines.append(
            f"{slot:>4}  {new.count:>6}  {kind.map.temperatures[slot]:>6.3f} {kind.map.biases[slot]:>6.2f}  "
            f"{100 * raw.ece:>5.2f} -> {100 * new.ece:<5.2f}    {100 * new.floor:>6.2f}  "
            f"{raw.auroc:.3f} -> {new.auroc:.3f}   {raw.brier:.4f} -> {new.brier:.4f} "
            f"{new.mean_predicted:>6.3f}  {new.mean_observed:>7.3f}"
        )
    before, after = mean_ece(list(kind.before)), mean_ece(list(kind.after))
    lines.append(f"mean ECE over slots: {100 * before:.2f} % -> {100 * after:.2f} %")
    return "\n".join(lines)


def save_reliability_diagram(path: Path, panels: Mapping[str, tuple[CalibrationMap, RecordSet]]) -> None:
    """Draw observed against predicted survival, one row per panel and one column per slot, raw and calibrated.

    Parameters
    ----------
    path : Path
        ``.png`` (or another format that matplotlib writes).
    panels : mapping
        Title to (map, held-out rounds of its kind); those without rounds are left out.

    Raises
    ------
    DsparkError
        If matplotlib is not installed or there is nothing to draw.
    """
    shown = {title: panel for title, panel in panels.items() if len(panel[1])}
    if not shown:
        raise DsparkError("no held-out rounds to draw; collect more or hold out a larger share")
    gamma = max(records.gamma for _, records in shown.values())
    figure = new_figure(2.4 * gamma + 0.6, 2.6 * len(shown) + 0.4)
    axes = figure.subplots(len(shown), gamma, squeeze=False, sharex=True, sharey=True)
    for row, (title, (chosen, records)) in zip(axes, shown.items(), strict=True):
        raw = CalibrationMap.identity(records.gamma)
        for slot, axis in enumerate(row[: records.gamma]):
            _draw_slot(axis, records, slot, {"raw": (raw, _RAW), "calibrated": (chosen, _AFTER)})
        row[0].set_ylabel(f"{title}\nobserved survival")
    for slot, axis in enumerate(axes[-1]):
        axis.set_xlabel("predicted survival")
        axes[0][slot].set_title(f"slot {slot}", fontsize=9)
    axes[0][0].legend(fontsize=7, loc="upper left", frameon=False)
    figure.savefig(path, dpi=120)


def _draw_slot(axis: Any, records: RecordSet, slot: int, curves: Mapping[str, tuple[CalibrationMap, str]]) -> None:
    axis.plot([0, 1], [0, 1], color="black", linewidth=0.6)
    for name, (chosen, colour) in curves.items():
        found = reliability(*observed_slot(chosen.survival(records.logits), records, slot), BINS)
        seen = found.count > 0
        # Area in proportion to rounds, so that a bin of three does not look like a bin of three thousand.
        size = 120 * found.count[seen] / max(1.0, found.count.sum()) + 2
        x, y = found.mean_predicted[seen], found.mean_observed[seen]
        firm = found.count[seen] >= _FIRM
        axis.plot(x[firm], y[firm], color=colour, linewidth=0.9, label=name)
        axis.scatter(x, y, s=np.asarray(size), color=colour)
    axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axis.tick_params(labelsize=7)
