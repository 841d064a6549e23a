"""Read recorded arrivals: Azure CSV and Mooncake JSONL, plain or gzipped.

The traces themselves are not part of this package; keep their attribution wherever a figure is drawn from them
(Azure/AzurePublicDataset, CC-BY-4.0; kvcache-ai/Mooncake, Apache-2.0).
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from sgl_dspark.errors import ConfigError, DataError
from sgl_dspark.simulator.arrivals import Floats, Workload, at_least

Row = tuple[float, int, int]

# Mooncake stamps its requests every three seconds.
MOONCAKE_TICK_S = 3.0


@dataclass(frozen=True)
class TraceOptions:
    """How a trace is fitted to the simulated engine.

    Attributes
    ----------
    limit : int or None
        Keep only the first requests.
    speed : float
        Arrivals are compressed by this factor; 2 doubles the load.
    length_scale : float
        Multiplies prompt and output lengths before they are cut.
    max_prompt_tok, max_output_tok : int
        Longer ones are cut to them.
    """

    limit: int | None = None
    speed: float = 1.0
    length_scale: float = 1.0
    max_prompt_tok: int = 131072
    max_output_tok: int = 4096

    def __post_init__(self) -> None:
        if self.limit is not None:
            at_least("limit", self.limit, 1)
        for name in ("speed", "length_scale"):
            value = getattr(self, name)
            if not 0 < value < np.inf:
                raise ConfigError(f"{name}: {value} is not a positive number")
        at_least("max_prompt_tok", self.max_prompt_tok, 1)
        at_least("max_output_tok", self.max_output_tok, 1)


def load_trace(path: Path, options: TraceOptions, rng: np.random.Generator) -> Workload:
    """Read a trace file as a workload.

    Parameters
    ----------
    path : Path
        ``*.csv[.gz]`` with ``TIMESTAMP,ContextTokens,GeneratedTokens`` or ``*.jsonl[.gz]`` with ``timestamp`` (ms),
        ``input_length`` and ``output_length``. Requests with no output are dropped.
    options : TraceOptions
        Limits and scales.
    rng : numpy.random.Generator
        Spreads stamps that were rounded: JSONL stamps that repeat are moved uniformly within their three seconds.

    Raises
    ------
    DataError
        If the file cannot be read or a row is not in the format; names the file and the row.
    """
    name = path.name.removesuffix(".gz")
    if not name.endswith((".csv", ".jsonl")):
        raise DataError(f"{path}: a trace is a .csv or .jsonl file, optionally with .gz; rename or convert it")
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable trace: {error}") from error
    lines = io.StringIO(text)
    rows = _azure(lines) if name.endswith(".csv") else _mooncake(lines)
    kept = _take(rows, options.limit, path)
    seconds = np.array([row[0] for row in kept])
    if name.endswith(".jsonl"):
        seconds = _spread(seconds, rng)
    seconds = np.sort(seconds)
    lengths = np.array([row[1:] for row in kept], dtype=np.float64) * options.length_scale
    most = (options.max_prompt_tok, options.max_output_tok)
    cut = np.clip(np.rint(lengths), 1, most).astype(np.int64)
    return Workload((seconds - seconds[0]) / options.speed, cut[:, 0], cut[:, 1])


def _take(rows: Iterator[Row], limit: int | None, path: Path) -> list[Row]:
    kept: list[Row] = []
    number = 0
    while limit is None or len(kept) < limit:
        number += 1
        try:
            row = next(rows)
        except StopIteration:
            break
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: row {number} is not in the trace format ({error!r})") from error
        if row[2] > 0:
            kept.append(row)
    if not kept:
        raise DataError(f"{path}: no request with an output; is this a trace?")
    return kept


def _azure(lines: Iterable[str]) -> Iterator[Row]:
    for row in csv.DictReader(lines):
        # Seven fractional digits: 100 ns, one more than datetime reads.
        whole, _, fraction = row["TIMESTAMP"].partition(".")
        seconds = (datetime.fromisoformat(whole) - datetime(2000, 1, 1)).total_seconds() + float(f"0.{fraction or 0}")
        yield seconds, int(row["ContextTokens"]), int(row["GeneratedTokens"])


def _mooncake(lines: Iterable[str]) -> Iterator[Row]:
    for line in lines:
        row = json.loads(line)
        yield float(row["timestamp"]) / 1e3, int(row["input_length"]), int(row["output_length"])


def _spread(seconds: Floats, rng: np.random.Generator) -> Floats:
    _, groups, sizes = np.unique(seconds, return_inverse=True, return_counts=True)
    moved: Floats = seconds + np.where(sizes[groups] > 1, rng.uniform(0.0, MOONCAKE_TICK_S, len(seconds)), 0.0)
    return moved
