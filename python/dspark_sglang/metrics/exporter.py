"""Hands the sheet to prometheus_client, in multiprocess mode as SGLang runs it.

A daemon thread writes what has changed, twice a second while anything does and not at all when the server is idle. One
pass costs what a few steps' worth of direct updates would, however many steps it covers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dspark_sglang.metrics.definitions import METRICS, Metric

if TYPE_CHECKING:
    from dspark_sglang.metrics.fold import Fold
    from dspark_sglang.metrics.sheet import Cell, Sheet

logger = logging.getLogger(__name__)

PERIOD_S = 0.5
# Different label values of an information metric that one process may bring up, such as policies that were in force:
# series cannot be taken back, so what comes after these shares one, whose last label, a digest, is this.
MOST_INFO = 32
OTHER_INFO = "other"

Source = Callable[["Sheet"], Mapping[str, Mapping[tuple[str, ...], float]]]


class Exporter:
    """Creates every series at 0 and keeps it up to date.

    Parameters
    ----------
    fold : Fold
    model_name : str
    source : callable
        Called at each pass: writes counts that others keep into the sheet, and returns the
        information metrics by name and label values.
    registry : prometheus_client registry, optional
        For tests; by default the one that SGLang's processes share.
    """

    def __init__(self, fold: Fold, model_name: str, source: Source, registry: Any = None) -> None:
        # SGLang names the folder that the processes share in the environment; the import must come after that.
        from prometheus_client import REGISTRY

        self._fold, self._model, self._source = fold, model_name, source
        self._families = {m.name: self._family(m, registry or REGISTRY) for m in METRICS}
        self._cells: list[tuple[Cell, Any]] = [
            (cell, self._families[cell.metric.name].labels(model_name, *cell.labels)) for cell in fold.sheet
        ]
        for cell, child in self._cells:
            if cell.metric.kind == "gauge":
                # One that was never set is not among the most recent of several processes, and not shown at all.
                child.set(0.0)
        self._owner = np.repeat(np.arange(len(self._cells)), [cell.size for cell, _ in self._cells])
        self._written = np.zeros_like(fold.sheet.values)
        self._counts = np.repeat(
            [cell.metric.kind != "gauge" for cell, _ in self._cells], [cell.size for cell, _ in self._cells]
        )
        self._info: dict[tuple[str, tuple[str, ...]], Any] = {}
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def _family(self, metric: Metric, registry: Any) -> Any:
        from prometheus_client import Counter, Gauge, Histogram

        labels = ("model_name", *metric.labels)
        if metric.kind == "counter":
            return Counter(metric.name, metric.help, labels, registry=registry)
        if metric.kind == "gauge":
            return Gauge(metric.name, metric.help, labels, registry=registry, multiprocess_mode="livemostrecent")
        edges = self._fold.sheet.edges[metric.name]
        return Histogram(metric.name, metric.help, labels, registry=registry, buckets=edges)

    def export(self) -> None:
        """Write what has changed since the last pass."""
        sheet = self._fold.sheet
        self._fold.fold()
        info = self._source(sheet)
        # A total that is put right later, such as after a verdict that got lost, waits until it has caught up:
        # Prometheus takes whatever falls for a restart.
        values = np.where(self._counts, np.fmax(sheet.values, self._written), sheet.values)
        changed = np.flatnonzero((values != self._written) & ~(np.isnan(values) & np.isnan(self._written)))
        for index in np.unique(self._owner[changed]).tolist():
            cell, child = self._cells[index]
            self._write(cell, child, values)
        self._written = values
        self._write_info(info)

    def _write(self, cell: Cell, child: Any, values: np.ndarray) -> None:
        new, old = values[cell.start : cell.start + cell.size], self._written[cell.start : cell.start + cell.size]
        if cell.metric.kind == "gauge":
            child.set(float(new[0]))
        elif cell.metric.kind == "counter":
            child.inc(float(new[0] - old[0]))
        else:
            # Upstream: prometheus_client can only observe one value at a time; what its observe() does to its buckets
            # and sum is done here for all values since the last pass. tests/unit/metrics holds it to the public API.
            grown = new - old
            for i in np.flatnonzero(grown[:-1]).tolist():
                child._buckets[i].inc(float(grown[i]))
            child._sum.inc(float(grown[-1]))

    def _write_info(self, info: Mapping[str, Mapping[tuple[str, ...], float]]) -> None:
        """Set information to 1 where it holds, and to 0 where it has held."""
        current = {}
        for name, series in info.items():
            for labels, value in series.items():
                current[self._info_key(name, labels)] = value
        for key, child in self._info.items():
            child.set(current.get(key, 0.0))

    def _info_key(self, name: str, labels: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
        """Return under what information is exported: as it is while there are few, then without its digest."""
        key = (name, labels)
        if key not in self._info and sum(known == name for known, _ in self._info) >= MOST_INFO:
            key = (name, (*labels[:-1], OTHER_INFO))
        if key not in self._info:
            self._info[key] = self._families[name].labels(self._model, *key[1])
        return key

    # The thread.

    def start(self) -> None:
        """Start the thread and make every series appear."""
        self.export()
        self._thread = threading.Thread(target=self._run, name="dspark-metrics", daemon=True)
        self._thread.start()

    def touch(self) -> None:
        """Say that something has changed; costs nothing when it was said already."""
        if not self._wake.is_set():
            self._wake.set()

    def stop(self) -> None:
        """Write what is left and end the thread."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            # Steps of half a second are written together; the wait ends at once when the process does.
            self._stop.wait(PERIOD_S)
            self._wake.clear()
            try:
                self.export()
            except Exception:  # noqa: BLE001 - serving must go on; the log says what is missing
                logger.exception("metrics could not be written; /metrics shows older figures")
