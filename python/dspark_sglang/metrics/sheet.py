"""All counts of one worker in one array: updated by vector operations, read by the exporter now and then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dspark_sglang.metrics.definitions import METRICS, Metric, edges_of, label_values

Floats = NDArray[np.float64]


class Cell(NamedTuple):
    """One series: its metric, its label values, and where its numbers are.

    A counter or gauge has one number. A histogram has one per bucket, infinity last, then the sum; buckets are not
    cumulative here.
    """

    metric: Metric
    labels: tuple[str, ...]
    start: int
    size: int


class Sheet:
    """Every series with known label values, all at 0.

    Parameters
    ----------
    gamma : int
        Drafts per block.
    sla : sequence of float
        Anchors in tokens per second.

    Attributes
    ----------
    values : float64 [N]
        Counts since the start. Writers take views with `view`.
    """

    def __init__(self, gamma: int, sla: Sequence[float]) -> None:
        self.gamma, self.sla = gamma, tuple(sla)
        self.edges = {m.name: edges_of(m, gamma, sla) for m in METRICS if m.kind == "histogram"}
        self._values_of = label_values(gamma, sla)
        self.cells: list[Cell] = []
        self._start: dict[str, int] = {}
        self._shape: dict[str, tuple[int, ...]] = {}
        size = 0
        for metric in METRICS:
            if metric.free:
                continue
            width = len(self.edges[metric.name]) + 2 if metric.kind == "histogram" else 1
            choices = [self._values_of[label] for label in metric.labels]
            self._start[metric.name] = size
            self._shape[metric.name] = (*(len(c) for c in choices), *((width,) if width > 1 else ()))
            for labels in product(*choices):
                self.cells.append(Cell(metric, labels, size, width))
                size += width
        self.values: Floats = np.zeros(size)

    def view(self, name: str) -> Floats:
        """Return a writable view of a metric, one axis per label and one for a histogram's buckets and sum."""
        shape, start = self._shape[name], self._start[name]
        return self.values[start : start + int(np.prod(shape, dtype=np.int64))].reshape(shape)

    def index(self, label: str, value: str) -> int:
        """Return the place of a label's value on its axis.

        Raises
        ------
        ValueError
            If it is none.
        """
        return self._values_of[label].index(value)

    def __iter__(self) -> Iterator[Cell]:
        return iter(self.cells)
