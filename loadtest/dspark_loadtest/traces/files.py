"""Opens trace files, plain or gzipped, and yields their rows; what is not text or not a row is named by line."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dspark_loadtest.errors import TraceError
from dspark_loadtest.traces.fields import Row

# More is no trace that fits into memory, but perhaps a small file that expands without end.
MAX_BYTES = 4 << 30


def read_text(path: Path) -> tuple[str, str]:
    """Return a file's text, unpacked if its name ends in ``.gz``, and the SHA-256 of the file as it lies there.

    Raises
    ------
    TraceError
        If it cannot be read, unpacked or decoded.
    """
    try:
        raw = path.read_bytes()
        text = (_unpack(raw, path) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read as text: {error}") from error
    return text, hashlib.sha256(raw).hexdigest()


def _unpack(raw: bytes, path: Path) -> bytes:
    with gzip.open(io.BytesIO(raw)) as stream:
        found = stream.read(MAX_BYTES + 1)
    if len(found) > MAX_BYTES:
        raise TraceError(f"{path}: is larger than {MAX_BYTES >> 30} GiB unpacked; cut it into parts")
    return found


def json_rows(text: str, file: str) -> Iterator[Row]:
    """Yield one row per line of JSON that is not empty."""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line, object_pairs_hook=unique_fields)
        except (json.JSONDecodeError, RecursionError) as error:
            raise TraceError(f"{file}, line {number}: is not JSON: {str(error)[:100]}") from error
        except ValueError as error:
            raise TraceError(f"{file}, line {number}: {str(error)[:100]}") from error
        if not isinstance(values, dict):
            raise TraceError(f"{file}, line {number}: is not a JSON object")
        yield Row(file, number, values)


def unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its fields; raise `ValueError` for one that comes twice, as the last would win in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"has two fields {_twice([name for name, _ in pairs])!r}; which one holds?")
    return found


def _twice(names: Sequence[str]) -> str | None:
    """Return the first name that comes again."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def csv_rows(text: str, file: str) -> Iterator[Row]:
    """Yield one row per line after the header, by the header's names."""
    # Ends of lines as CSV knows them; str.splitlines also cuts a cell at characters that a text may hold.
    reader = csv.reader(io.StringIO(text, newline=""))
    header: list[str] | None = None
    try:
        for cells in reader:
            if not cells or not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = [cell.strip() for cell in cells]
                twice = _twice(header)
                if twice is not None:
                    raise TraceError(f"{file}, line {reader.line_num}: has two columns {twice!r}; which one holds?")
                continue
            if len(cells) != len(header):
                raise TraceError(
                    f"{file}, line {reader.line_num}: has {len(cells)} values for {len(header)} columns; is it cut off?"
                )
            yield Row(file, reader.line_num, dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        raise TraceError(f"{file}, line {reader.line_num}: is not CSV: {error}") from error
