"""From messages to token ids and a loss mask, through the target's own chat template.

The mask covers an answer through its end-of-turn token: what the target emits while serving. Ids are those that serving
sees: text up to an answer is tokenised as one prompt, the answer on its own behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgl_dspark.data.responses import Exchange, assistant_turns
from sgl_dspark.errors import DataError


@dataclass(frozen=True)
class Encoded:
    """One supervised sequence.

    Attributes
    ----------
    ids : tuple of int
    supervised : tuple of bool
        As long as ``ids``.
    """

    ids: tuple[int, ...]
    supervised: tuple[bool, ...]


class ChatEncoder:
    """Applies a target's chat template.

    Parameters
    ----------
    folder : Path
        Of the target, with its tokenizer.
    eos_token_ids : sequence of int
        Tokens that end a turn.
    template_options : dict, optional
        Passed to the template, for example ``{"enable_thinking": False}``.

    Raises
    ------
    DataError
        If the folder has no tokenizer or the tokenizer no chat template.
    """

    def __init__(
        self, folder: Path, eos_token_ids: Sequence[int], template_options: dict[str, Any] | None = None
    ) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError) as error:
            raise DataError(f"cannot load the tokenizer of {folder}: {error}") from error
        # transformers makes an empty tokenizer where the folder has none.
        if len(self._tokenizer) < 2 or not self._tokenizer("a", add_special_tokens=False).input_ids:
            raise DataError(f"{folder} holds no tokenizer (tokenizer.json); fetch the target again.")
        if not self._tokenizer.chat_template:
            raise DataError(f"the tokenizer in {folder} has no chat template; training needs a chat model.")
        self._options = dict(template_options or {})
        self._eos = tuple(eos_token_ids)
        self._eos_texts = tuple(self._tokenizer.decode([token]) for token in eos_token_ids)

    def prompt_ids(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
        """Return the ids that a server would continue: the rendered messages and the generation prompt."""
        return self._tokenise(self._render(messages, generation_prompt=True))

    def encode(self, exchange: Exchange) -> list[Encoded]:
        """Return the supervised sequences of an exchange.

        One, where the template renders earlier turns as it did when they were generated. Some templates rewrite them
        (they drop reasoning, say); then each answer becomes a sequence of its own, behind the history that the
        server saw.

        Raises
        ------
        DataError
            If the template does not put an answer behind the generation prompt.
        """
        sequences: list[Encoded] = []
        ids: list[int] = []
        mask: list[bool] = []
        rendered = ""
        for number, turn in enumerate(assistant_turns(exchange.messages)):
            before = self._render(exchange.messages[:turn], generation_prompt=True)
            if not before.startswith(rendered):
                sequences.append(Encoded(tuple(ids), tuple(mask)))
                ids, mask, rendered = [], [], ""
            opening = self._tokenise(before[len(rendered) :])
            answer, rendered = self._answer(exchange, turn, before, ended=exchange.ended(number))
            ids += [*opening, *answer]
            mask += [False] * len(opening) + [True] * len(answer)
        sequences.append(Encoded(tuple(ids), tuple(mask)))
        return sequences

    def _answer(self, exchange: Exchange, turn: int, before: str, *, ended: bool) -> tuple[list[int], str]:
        """Return an answer's ids, its end of turn included when the target emitted it, and the text through it."""
        content = exchange.messages[turn]["content"]
        whole = self._render(exchange.messages[: turn + 1], generation_prompt=False)
        if not whole.startswith(before):
            raise DataError(
                f"the chat template does not put the answer of {exchange.id} behind its generation prompt; "
                "give the options that the server used with --chat-template-kwargs."
            )
        end, token = self._end_of_turn(whole, len(before) + len(content.strip()))
        ids = list(self._tokenise(content))
        if not ended:
            return ids, whole[:end]
        return [*ids, token], whole[: end + len(self._tokenizer.decode([token]))]

    def _end_of_turn(self, text: str, start: int) -> tuple[int, int]:
        """Find the first end-of-turn token at or behind ``start``: its place in the text and its id."""
        found = [(text.find(piece, start), token) for piece, token in zip(self._eos_texts, self._eos, strict=True)]
        places = [(place, token) for place, token in found if place >= 0]
        if not places:
            raise DataError("the chat template ends no turn with an end-of-turn token of the generation config.")
        return min(places)

    def _render(self, messages: Sequence[dict[str, str]], *, generation_prompt: bool) -> str:
        text = self._tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=generation_prompt, tokenize=False, **self._options
        )
        return str(text)

    def _tokenise(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False).input_ids) if text else ()
