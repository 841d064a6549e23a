"""Composes prompts of real text: the same for the same hash id, so that what is shared in a trace is shared here.

How many drafts a target accepts depends on what the text is about; made-up tokens would make every figure about
speculation meaningless. So prompts are made of questions of labelled categories, and results are reported by category.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dspark_loadtest.errors import LoadtestError
from dspark_loadtest.traces.request import TraceRequest
from sgl_dspark.data.prompt_set import load_prompts

# A word with the white space before it: tokenizers of the usual kind never join two of them.
_UNIT = re.compile(r"\s*\S+")
_GAP = "\n\n"
_CHARS_PER_TOKEN = 4.2
_CACHED_BLOCKS = 65536

Counter = Callable[[Sequence[str]], list[int]]


def estimate(texts: Sequence[str]) -> list[int]:
    """Guess tokens where nobody can count them: English takes a token per 4.2 characters, and one at least per word."""
    return [max(1, round(len(text) / _CHARS_PER_TOKEN)) for text in texts]


@dataclass(frozen=True)
class Piece:
    """One text, cut into words, each with its tokens."""

    units: tuple[str, ...]
    tokens: tuple[int, ...]

    @property
    def total(self) -> int:
        """Tokens of the whole."""
        return sum(self.tokens)

    @property
    def text(self) -> str:
        """The whole."""
        return "".join(self.units)


class Library:
    """Texts by category, with their lengths in tokens of the served model.

    Parameters
    ----------
    sources : sequence of Path or None
        Files of prompts (see `sgl_dspark.data.prompt_set.load_prompts`), or folders of them; None is the built-in set.
    count : callable
        Tokens of each of several texts; `estimate` if the server cannot tell.

    Raises
    ------
    DsparkError
        If a file cannot be read or holds no prompt.
    """

    def __init__(self, sources: Sequence[Path | None], count: Counter = estimate) -> None:
        texts: dict[str, list[str]] = {}
        for source in sources or [None]:
            files = sorted(source.glob("*.jsonl")) if source is not None and source.is_dir() else [source]
            if not files:
                raise LoadtestError(f"--prompts: {source} holds no .jsonl file")
            for file in files:
                for prompt in load_prompts(file):
                    text = str(prompt.messages[-1].get("content") or "").strip()
                    if text:
                        texts.setdefault(prompt.category, []).append(text)
        self.pieces = {name: _pieces(found, count) for name, found in sorted(texts.items()) if found}
        if not self.pieces:
            raise LoadtestError("--prompts: no text in any of the files")

    @property
    def categories(self) -> tuple[str, ...]:
        """Names of the categories, in alphabetical order."""
        return tuple(self.pieces)


def _pieces(texts: Sequence[str], count: Counter) -> tuple[Piece, ...]:
    cut = [tuple(_UNIT.findall(_GAP + text)) for text in texts]
    distinct = sorted({unit for units in cut for unit in units})
    lengths = dict(zip(distinct, count(distinct), strict=True))
    return tuple(Piece(units, tuple(lengths[unit] for unit in units)) for units in cut)


class Composer:
    """Makes the prompt of each request.

    Parameters
    ----------
    library : Library
    block_size : int
        Tokens of one hash id.
    seed : int
        Another seed, other text; the same seed, the same text on every machine.
    mix : dict of str to float, optional
        Weights of the categories; all alike by default.
    """

    def __init__(
        self, library: Library, block_size: int, *, seed: int = 0, mix: dict[str, float] | None = None
    ) -> None:
        weights = mix or dict.fromkeys(library.categories, 1.0)
        for name, weight in weights.items():
            if name not in library.pieces:
                raise LoadtestError(f"no category {name!r}; there are: {', '.join(library.categories)}")
            if not 0 <= weight < float("inf"):
                raise LoadtestError(f"weight of {name!r}: {weight} is not a number of at least 0")
        if not sum(weights.values()):
            raise LoadtestError("all categories weigh nothing")
        self.texts, self.block_size, self.seed = library, max(1, block_size), seed
        self._names, self._weights = list(weights), list(weights.values())
        self._block = lru_cache(_CACHED_BLOCKS)(self._make_block)

    def category(self, request: TraceRequest, index: int) -> str:
        """Return the request's own category, else one drawn by what its prompt begins with, or by its session."""
        if request.category is not None:
            if request.category not in self.texts.pieces:
                raise LoadtestError(
                    f"the trace asks for category {request.category!r}; there are: {', '.join(self.texts.categories)}"
                )
            return request.category
        key: object = request.hash_ids[0] if request.hash_ids else (request.session_id or f"request {index}")
        return self._random("category", key).choices(self._names, self._weights)[0]

    def compose(self, request: TraceRequest, index: int, *, tokens: int | None = None) -> str:
        """Return a prompt of about ``tokens`` (default: ``input_length``) tokens.

        Blocks of text by hash id, then a question of the category. A request without hash ids shares nothing.

        Parameters
        ----------
        request : TraceRequest
            With ``input_length``.
        index : int
            Its place in the trace; decides about the question, and the text where there are no hash ids.
        tokens : int, optional
            Of this message alone.
        """
        wanted = tokens if tokens is not None else request.input_length or 1
        category = self.category(request, index)
        question = self._random("question", index).choice(self.texts.pieces[category])
        if question.total >= wanted:
            return _head(question, wanted).strip()
        left = wanted - question.total
        parts = []
        if request.hash_ids and tokens is None:
            for hash_id in request.hash_ids:
                part = self._block(hash_id, category)
                parts.append(part.text if part.total <= left else _head(part, left))
                left -= min(part.total, left)
                if left <= 0:
                    break
        if left > 0:
            parts.append(_head(self._fill(("own", index), category, left), left))
        return ("".join(parts) + question.text).strip()

    def _make_block(self, hash_id: int, category: str) -> Piece:
        return self._fill(("block", hash_id), category, self.block_size)

    def _fill(self, key: tuple[str, int], category: str, tokens: int) -> Piece:
        """Return exactly the first words that make up ``tokens`` of an endless text of the category."""
        random_ = self._random(*key)
        units: list[str] = []
        lengths: list[int] = []
        total = 0
        while total < tokens:
            piece = random_.choice(self.texts.pieces[category])
            for unit, length in zip(piece.units, piece.tokens, strict=True):
                units.append(unit)
                lengths.append(length)
                total += length
                if total >= tokens:
                    break
        return Piece(tuple(units), tuple(lengths))

    def _random(self, *key: object) -> random.Random:
        digest = hashlib.blake2b(repr((self.seed, *key)).encode(), digest_size=8).digest()
        return random.Random(int.from_bytes(digest, "big"))


def _head(piece: Piece, tokens: int) -> str:
    """Return the first words of a piece that make up ``tokens``, one at least."""
    kept = 0
    for index, length in enumerate(piece.tokens):
        kept += length
        if kept >= tokens:
            return "".join(piece.units[: index + 1])
    return piece.text
