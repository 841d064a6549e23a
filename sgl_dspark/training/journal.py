"""What a run writes down while it trains: JSON lines for curves, TensorBoard for watching."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from sgl_dspark.data.lines import numbered
from sgl_dspark.training.report import StepReport

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"


def describe(label: str, report: StepReport) -> str:
    """One log line."""
    slots = " ".join(f"{rate:.2f}" for rate in report.accept_rate)
    return (
        f"{label}: loss {report.loss:.4f} ce {report.ce:.3f} tv {report.tv:.3f} conf {report.confidence:.3f} "
        f"accept [{slots}] expected accept length {report.expected_accept_len:.3f}"
    )


class Journal:
    """Appends one record per report; a resumed run drops what it will write again.

    Parameters
    ----------
    folder : Path
        Of the run.
    step : int
        Where the run starts.
    enabled : bool
        False on ranks that write nothing.
    tensorboard : bool
    """

    def __init__(self, folder: Path, step: int, *, enabled: bool, tensorboard: bool) -> None:
        self._path = folder / METRICS_FILE
        self._started, self._first_step, self._step = time.perf_counter(), step, step
        self._spent = 0.0
        self._sink: Any = None
        self._board: Any = None
        if not enabled:
            return
        folder.mkdir(parents=True, exist_ok=True)
        kept = [r for r in read_metrics(self._path) if r["step"] <= step] if step else []
        self._spent = max((r["seconds"] for r in kept), default=0.0)
        partial = self._path.with_name(self._path.name + ".partial")
        partial.write_text("".join(json.dumps(r) + "\n" for r in kept), encoding="utf-8")
        partial.replace(self._path)
        self._sink = self._path.open("a", encoding="utf-8", buffering=1)
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / TENSORBOARD_FOLDER), purge_step=step + 1 if step else None)

    @property
    def pace(self) -> str:
        """Seconds a step in this process."""
        steps = max(1, self._step - self._first_step)
        return f"{(time.perf_counter() - self._started) / steps:.2f} s/step"

    def add(self, name: str, step: int, tokens: int, report: StepReport) -> None:
        """Write down a report of ``train`` or ``held_out``.

        Parameters
        ----------
        name : str
        step, tokens : int
            Optimiser steps, and supervised tokens seen, so far.
        report : StepReport
        """
        self._step = step
        if self._sink is None:
            return
        seconds = self._spent + time.perf_counter() - self._started
        # The report's own tokens are of its step alone.
        record = {**asdict(report), "name": name, "step": step, "tokens": tokens, "seconds": round(seconds, 2)}
        self._sink.write(json.dumps(record) + "\n")
        if self._board is not None:
            for term in ("loss", "ce", "tv", "confidence", "soft", "expected_accept_len"):
                self._board.add_scalar(f"{name}/{term}", getattr(report, term), step)
            for slot, rate in enumerate(report.accept_rate):
                self._board.add_scalar(f"{name}/accept_rate/{slot}", rate, step)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sink is not None:
            self._sink.close()
        if self._board is not None:
            self._board.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read a run's records; the line that a kill left half written is left out."""
    if not path.is_file():
        return []
    found = []
    for _, line in numbered(path.read_text(encoding="utf-8")):
        try:
            found.append(json.loads(line))
        except ValueError:
            # Only a torn last line: what is complete was written as a whole.
            break
    return found
