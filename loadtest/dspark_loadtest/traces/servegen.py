"""Alibaba's ServeGen: each client's rate, burstiness and lengths by window, from which arrivals are drawn."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dspark_loadtest.errors import TraceError
from dspark_loadtest.traces.fields import Row
from dspark_loadtest.traces.files import read_text, unique_fields
from dspark_loadtest.traces.request import Trace, TraceRequest

ATTRIBUTION = "alibaba/ServeGen, Apache-2.0"
MAX_REQUESTS = 5_000_000
# Length of a client's last window where its file does not tell.
WINDOW_S = 600.0
_COLUMNS = ("window_start_s", "rate", "cv", "pattern", "arg1", "arg2")
_PAIR = re.compile(r"\s*(\d{1,9})\s*:\s*(\d[\d.eE+-]{0,30})\s*")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Window:
    """One client during one window; ``rate`` in requests a second, ``family`` of its gaps."""

    start_s: float
    end_s: float
    rate: float
    cv: float
    family: str


@dataclass(frozen=True)
class LengthLaw:
    """Law of a token count, as values and cumulated probabilities."""

    tokens: NDArray[np.int64]
    cumulated: Floats

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return ``count`` lengths of at least 1."""
        found = self.tokens[
            np.searchsorted(self.cumulated, rng.random(count), side="right").clip(max=len(self.tokens) - 1)
        ]
        lengths: NDArray[np.int64] = np.maximum(found, 1)
        return lengths


def load_servegen(folder: Path, *, start_s: float = 0.0, duration_s: float = WINDOW_S, seed: int = 0) -> Trace:
    """Draw the arrivals of all clients of a folder of ``chunk-N-trace.csv`` and ``chunk-N-dataset.json``.

    Each window's gaps follow its own family (Gamma or Weibull) with the window's mean and coefficient of variation;
    the fitted parameters that the file also holds are not used. Clients without lengths are left out and counted.

    Parameters
    ----------
    folder : Path
    start_s, duration_s : float
        Part of ServeGen's clock that is drawn.
    seed : int

    Raises
    ------
    TraceError
        If a file is missing or a row is not in the format; names file, line and field.
    """
    files = sorted(folder.glob("chunk-*-trace.csv"), key=lambda path: (len(path.name), path.name))
    if not files:
        raise TraceError(f"{folder}: holds no chunk-N-trace.csv; give the folder of one ServeGen model")
    made: list[TraceRequest] = []
    silent = 0
    for number, file in enumerate(files):
        laws = read_lengths(file.with_name(file.name.replace("-trace.csv", "-dataset.json")))
        if not laws:
            silent += 1
            continue
        rng = np.random.default_rng([seed, number])
        for window in read_windows(file):
            begin, end = max(window.start_s, start_s), min(window.end_s, start_s + duration_s)
            if begin < end and window.rate > 0:
                made += _draw(window, begin - start_s, end - begin, _law_at(laws, window.start_s), rng)
        if len(made) > MAX_REQUESTS:
            raise TraceError(f"{folder}: more than {MAX_REQUESTS} requests; give a shorter --duration")
    if not made:
        raise TraceError(f"{folder}: no client asks anything from {start_s:g} s for {duration_s:g} s")
    made.sort(key=lambda request: request.timestamp or 0.0)
    source = {"format": "servegen", "file": folder.name, "attribution": ATTRIBUTION, "rows": len(made)}
    return Trace(
        tuple(made), {**source, "clients": len(files) - silent, "clients_without_lengths": silent, "seed": seed}
    )


def read_windows(path: Path) -> list[Window]:
    """Read a client's windows: ``start,rate,cv,pattern,arg1,arg2`` without a header; no pattern is silence."""
    text, _ = read_text(path)
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        cells = line.split(",")
        if len(cells) != len(_COLUMNS):
            raise TraceError(f"{path.name}, line {number}: has {len(cells)} values for {len(_COLUMNS)} columns")
        rows.append(Row(path.name, number, dict(zip(_COLUMNS, cells, strict=True))))
    starts = [row.number("window_start_s") for row in rows]
    for row, (before, after) in zip(rows[1:], pairwise(starts), strict=False):
        if after <= before:
            row.refuse("window_start_s", f"{after:g} does not come after {before:g}")
    ends = [*starts[1:], starts[-1] + (starts[-1] - starts[-2] if len(starts) > 1 else WINDOW_S)] if starts else []
    return [_window(row, *span) for row, span in zip(rows, zip(starts, ends, strict=True), strict=True)]


def _window(row: Row, start_s: float, end_s: float) -> Window:
    family = str(row.values["pattern"]).strip()
    if not family:
        return Window(start_s, end_s, 0.0, 1.0, "")
    if family not in ("Gamma", "Weibull"):
        row.refuse("pattern", f"{family[:20]!r} is neither Gamma nor Weibull")
    return Window(start_s, end_s, row.number("rate", high=1e5), row.number("cv", low=0.01, high=50), family)


def read_lengths(path: Path) -> dict[float, dict[str, LengthLaw]]:
    """Read a client's laws of prompt and answer lengths by window start; a window with an empty law is left out."""
    text, _ = read_text(path)
    try:
        found = json.loads(text, object_pairs_hook=unique_fields)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path.name}: cannot be read as JSON: {str(error)[:100]}") from error
    if not isinstance(found, dict):
        raise TraceError(f"{path.name}: is not a JSON object of windows")
    laws: dict[float, dict[str, LengthLaw]] = {}
    for start, fields in found.items():
        row = Row(path.name, 1, fields if isinstance(fields, dict) else {})
        at = Row(path.name, 1, {"window": start}).number("window")
        names = ("input_tokens", "output_tokens")
        made = {name: _law(row, name) for name in names}
        if all(made.values()):
            laws[at] = {name: law for name, law in made.items() if law is not None}
    return dict(sorted(laws.items()))


def _law(row: Row, name: str) -> LengthLaw | None:
    """Parse a Python dictionary of counts and probabilities, without evaluating it."""
    text = row.text(name).strip()
    if not (text.startswith("{") and text.endswith("}")):
        row.refuse(name, f"{text[:40]!r} is not a dictionary of lengths and probabilities")
    inside = text[1:-1].strip().rstrip(",")
    if not inside:
        return None
    pairs = []
    for part in inside.split(","):
        match = _PAIR.fullmatch(part)
        if match is None:
            row.refuse(name, f"{part[:40]!r} is not a length and its probability")
        values = Row(row.file, row.line, {name: match[2]})
        pairs.append((int(match[1]), values.number(name, high=1.0)))
    tokens, shares = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    total = float(shares.sum())
    if not 0.99 < total < 1.01:
        row.refuse(name, f"probabilities add up to {total:.4g}, not 1")
    return LengthLaw(tokens, np.cumsum(shares / total))


def _law_at(laws: dict[float, dict[str, LengthLaw]], at: float) -> dict[str, LengthLaw]:
    before = [start for start in laws if start <= at]
    return laws[before[-1] if before else next(iter(laws))]


def _draw(
    window: Window, begin_s: float, duration_s: float, laws: dict[str, LengthLaw], rng: np.random.Generator
) -> Sequence[TraceRequest]:
    expected = window.rate * duration_s
    if expected > MAX_REQUESTS:
        raise TraceError(f"a client asks {window.rate:g} times a second for {duration_s:g} s: too many; shorten it")
    drawn = int(expected + 10 * (1 + window.cv) * math.sqrt(expected) + 10)
    if window.family == "Gamma":
        gaps = rng.gamma(1 / window.cv**2, window.cv**2 / window.rate, drawn)
    else:
        shape = weibull_shape(window.cv)
        gaps = rng.weibull(shape, drawn) / (math.gamma(1 + 1 / shape) * window.rate)
    # The window is a piece cut out of an endless process: the first gap began before it.
    times = np.cumsum(gaps) - rng.random() * gaps[0]
    times = times[times < duration_s]
    lengths = zip(laws["input_tokens"].draw(len(times), rng), laws["output_tokens"].draw(len(times), rng), strict=True)
    return [
        TraceRequest(
            timestamp=round(1e3 * (begin_s + float(at)), 4), input_length=int(prompt), output_length=int(answer)
        )
        for at, (prompt, answer) in zip(times, lengths, strict=True)
    ]


def weibull_shape(cv: float) -> float:
    """Return the shape k at which a Weibull law has the coefficient of variation ``cv``, by bisection.

    cv falls as k rises: ``cv**2 + 1 = gamma(1 + 2/k) / gamma(1 + 1/k)**2``.
    """
    wanted = math.log1p(cv**2)
    low, high = 0.05, 200.0
    for _ in range(80):
        middle = math.sqrt(low * high)
        here = math.lgamma(1 + 2 / middle) - 2 * math.lgamma(1 + 1 / middle)
        low, high = (middle, high) if here > wanted else (low, middle)
    return math.sqrt(low * high)
