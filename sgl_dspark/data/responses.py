"""Conversations as text: what the target answered, one JSON line each, appended as they finish."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from sgl_dspark.data.lines import numbered, to_line
from sgl_dspark.errors import DataError


@dataclass(frozen=True)
class Exchange:
    """A conversation between a prompt's turns and the target.

    Attributes
    ----------
    id : str
        Of the prompt (``PromptRecord.id``).
    kind : str
    messages : list of dict
        ``{"role", "content"}``, starting with a user turn (or a system prompt) and ending with the target's answer.
    finish_reasons : list of str
        One per assistant message: ``stop`` when the answer ended (see `ended`), ``length`` when it was cut off.
    sampling : dict
        Parameters of the requests, such as ``temperature``.
    model : str
        As the server named it.
    completion_tokens : int
        Over all answers.
    """

    id: str
    kind: str
    messages: list[dict[str, str]]
    finish_reasons: list[str]
    sampling: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    completion_tokens: int = 0

    def ended(self, answer: int) -> bool:
        """Whether the target itself ended this answer, its end-of-turn token emitted.

        A stop that the request asked for ends with the same reason, and no such token.
        """
        return self.finish_reasons[answer] == "stop" and not own_stops(self.sampling)

    def __post_init__(self) -> None:
        answers = [m for m in self.messages if m.get("role") == "assistant"]
        if not answers or self.messages[-1]["role"] != "assistant":
            raise DataError("messages must end with an answer (role assistant).")
        if len(answers) != len(self.finish_reasons):
            raise DataError(f"finish_reasons has {len(self.finish_reasons)} entries for {len(answers)} answers.")


def own_stops(sampling: dict[str, Any]) -> list[str]:
    """Name the request's fields that end an answer before the target does: stop strings, token ids, expressions."""
    return sorted(name for name, value in sampling.items() if name.startswith("stop") and value)


class ResponseFile:
    """Appends exchanges to a file, one line each, and knows which prompts it holds already.

    A line is handed to the operating system as a whole; a line that a killed process left half written is cut off
    when the file is opened again.

    Parameters
    ----------
    path : Path
        Made when missing.

    Attributes
    ----------
    done : set of str
        Prompts that are answered.
    samplings : list of dict
        Distinct sampling parameters of their requests.
    tokens : int
        Of their answers.

    Raises
    ------
    DataError
        If the file holds something else than exchanges.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.done: set[str] = set()
        self.samplings: list[dict[str, Any]] = []
        self.tokens = 0
        if path.is_file():
            _drop_torn_line(path)
            for exchange in read_exchanges(path):
                self._note(exchange)
        self._sink: IO[bytes] | None = None

    def add(self, exchange: Exchange) -> None:
        """Append one exchange; one of a prompt that is there already is dropped."""
        if exchange.id in self.done:
            return
        if self._sink is None:
            # A run that gets no answer leaves no file behind.
            self._sink = self.path.open("ab", buffering=0)
        self._sink.write(to_line(asdict(exchange)).encode())
        self._note(exchange)

    def _note(self, exchange: Exchange) -> None:
        self.done.add(exchange.id)
        self.tokens += exchange.completion_tokens
        if exchange.sampling not in self.samplings:
            self.samplings.append(exchange.sampling)

    def __enter__(self) -> ResponseFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sink is not None:
            self._sink.close()


def read_exchanges(path: Path) -> list[Exchange]:
    """Read a response file.

    Raises
    ------
    DataError
        If it is missing, or a line is malformed; names the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read responses from {path}: {error}; `dspark data generate` makes them.") from error
    return [_parse(line, f"{path} line {number}") for number, line in numbered(text)]


def _parse(line: str, where: str) -> Exchange:
    try:
        raw = json.loads(line)
        return Exchange(**raw)
    except TypeError as error:
        raise DataError(
            f"{where} has not the fields of a response; prompts are answered first, by `dspark data generate`."
        ) from error
    except (ValueError, KeyError, AttributeError, DataError) as error:
        raise DataError(f"{where} is not a response as `dspark data generate` writes it: {error}") from error


def _drop_torn_line(path: Path) -> None:
    size = path.stat().st_size
    with path.open("rb+") as file:
        content = file.read()
        end = content.rfind(b"\n") + 1
        if end < size:
            file.truncate(end)
            os.fsync(file.fileno())


def assistant_turns(messages: Sequence[dict[str, str]]) -> list[int]:
    """Return the indices of the answers among ``messages``."""
    return [index for index, message in enumerate(messages) if message["role"] == "assistant"]
