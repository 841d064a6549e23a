"""Built-in prompt sources that a fresh machine can reach: seeded, in halves that share no template.

None of the sources is an evaluation set of the paper, or is made from one: reasoning-gym's ``gsm_symbolic``, whose
tasks are those of GSM8K with other numbers and names, is left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sgl_dspark.data.composed import chat_prompt, code_prompt
from sgl_dspark.data.corpora import corpus_questions, library_prompts, problem_prompts
from sgl_dspark.data.prompts import PromptRecord
from sgl_dspark.data.split import SPLITS, Draw, Drawn, split_of
from sgl_dspark.data.tasks import TASK_SHARES, task_prompts
from sgl_dspark.errors import DataError

GROUPS = ("maths", "code", "chat")
# A source that gives nothing new so many times in a row is used up.
_PATIENCE = 200
# One that gives only prompts of the other half so many times in a row has no template in this one.
_ELSEWHERE = 500


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
        Yields prompts from a random generator, in an order that depends on it alone.
    """

    name: str
    group: str
    share: float
    licence: str
    draw: Draw


def _forever(compose: Callable[[random.Random], str]) -> Draw:
    def draw(rng: random.Random) -> Iterator[Drawn]:
        while True:
            text = compose(rng)
            yield Drawn(text, text)

    return draw


def _shuffled(read: Callable[[], Sequence[Drawn]]) -> Draw:
    def draw(rng: random.Random) -> Iterator[Drawn]:
        found = list(read())
        rng.shuffle(found)
        yield from found

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


def _next_new(stream: Iterator[Drawn], split: str, seen: set[str]) -> str | None:
    misses = elsewhere = 0
    for text, origin in stream:
        # What belongs to the other half says nothing about whether the source is used up, but for a source of few
        # templates, all of which may.
        if split_of(origin) != split:
            elsewhere += 1
            if elsewhere == _ELSEWHERE:
                return None
            continue
        elsewhere = 0
        if text not in seen:
            return text
        misses += 1
        if misses == _PATIENCE:
            return None
    return None
