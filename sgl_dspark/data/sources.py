"""Built-in prompt sources that a fresh machine can reach: seeded, training and held-out halves disjoint.

Which half of a split a prompt falls into depends on its text alone, so the halves never share one. None of the sources
is an evaluation set of the paper.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sgl_dspark.data.composed import chat_prompt, code_prompt
from sgl_dspark.data.corpora import corpus_questions, library_prompts, problem_prompts
from sgl_dspark.data.prompts import PromptRecord
from sgl_dspark.data.tasks import TASK_SHARES, task_prompts
from sgl_dspark.errors import DataError

SPLITS = ("train", "held-out")
GROUPS = ("maths", "code", "chat")
HELD_OUT_PERCENT = 8
# A source that gives nothing new so many times in a row is used up.
_PATIENCE = 200

Draw = Callable[[random.Random], Iterator[str]]


@dataclass(frozen=True)
class Source:
    """Where prompts come from.

    Attributes
    ----------
    name : str
        Becomes the prompts' ``kind``.
    group : {"maths", "code", "chat"}
    share : float
        Weight in the mix.
    licence : str
        Of the text and where it comes from.
    draw : callable
        Yields texts from a random generator, in an order that depends on it alone.
    """

    name: str
    group: str
    share: float
    licence: str
    draw: Draw


def _forever(compose: Callable[[random.Random], str]) -> Draw:
    def draw(rng: random.Random) -> Iterator[str]:
        while True:
            yield compose(rng)

    return draw


def _shuffled(read: Callable[[], Sequence[str]]) -> Draw:
    def draw(rng: random.Random) -> Iterator[str]:
        texts = list(read())
        rng.shuffle(texts)
        yield from texts

    return draw


_GYM = "Apache-2.0, reasoning-gym 0.1.25"
SOURCES: tuple[Source, ...] = (
    *(Source(kind, "maths", share, _GYM, task_prompts(kind)) for kind, share in TASK_SHARES.items()),
    Source("code", "code", 24, "Apache-2.0, this project", _forever(code_prompt)),
    Source("problem", "code", 28, _GYM + " (CodeI/O task descriptions)", _shuffled(problem_prompts)),
    Source("library", "code", 10, "PSF-2.0, Python's standard library (docstrings)", _shuffled(library_prompts)),
    Source("question", "chat", 12, "BSD-3-Clause, chatterbot-corpus 1.3.3", _shuffled(corpus_questions)),
    Source("chat", "chat", 56, "Apache-2.0, this project", _forever(chat_prompt)),
)  # fmt: skip


def split_of(text: str) -> str:
    """Which half a prompt belongs to, by a hash of its text."""
    bucket = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 100
    return "held-out" if bucket < HELD_OUT_PERCENT else "train"


def choose_sources(names: Sequence[str]) -> tuple[Source, ...]:
    """Return the sources of these names or groups; all of them for an empty list.

    Raises
    ------
    DataError
        If a name is neither.
    """
    known = {source.name for source in SOURCES} | set(GROUPS)
    for name in names:
        if name not in known:
            raise DataError(f"there is no prompt source {name!r}; `dspark data prompts --list` shows them.")
    return tuple(source for source in SOURCES if not names or source.name in names or source.group in names)


def prompts(split: str, seed: int, sources: Sequence[Source] = SOURCES) -> Iterator[PromptRecord]:
    """Yield distinct prompts, the sources mixed by their shares, until all sources are used up.

    Parameters
    ----------
    split : {"train", "held-out"}
    seed : int
        Of the mixing and of the sources.
    sources : sequence of Source
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {SPLITS}, not {split!r}")
    rng = random.Random(f"{split}-{seed}")
    seen: set[str] = set()
    streams = {s.name: s.draw(random.Random(f"{split}-{seed}-{s.name}")) for s in sources}
    left = list(sources)
    while left:
        source = rng.choices(left, [s.share for s in left])[0]
        text = _next_new(streams[source.name], split, seen)
        if text is None:
            left.remove(source)
            continue
        seen.add(text)
        yield PromptRecord.of((text,), source.name)


def _next_new(stream: Iterator[str], split: str, seen: set[str]) -> str | None:
    misses = 0
    for text in stream:
        # What belongs to the other half says nothing about whether the source is used up.
        if split_of(text) != split:
            continue
        if text not in seen:
            return text
        misses += 1
        if misses == _PATIENCE:
            return None
    return None
