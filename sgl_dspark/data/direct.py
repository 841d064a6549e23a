"""Answers and target states at once, by the built-in decoder: for small targets, without a server.

The states are by-products of decoding, so a token costs one forward and no second pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sgl_dspark.data.cache import CacheWriter, Conversation, shard_name
from sgl_dspark.data.decode import BatchGenerator, Prompt, Response
from sgl_dspark.data.prompts import PromptRecord
from sgl_dspark.data.template import ChatEncoder

Log = Callable[[str], None]


def encode_prompts(
    encoder: ChatEncoder, records: Sequence[PromptRecord], temperatures: Sequence[float]
) -> list[Prompt]:
    """Tokenise first turns; temperatures are dealt out in turn."""
    return [
        Prompt(
            ids=encoder.prompt_ids([{"role": "user", "content": record.turns[0]}]),
            temperature=temperatures[index % len(temperatures)],
            kind=record.kind,
            id=record.id,
        )
        for index, record in enumerate(records)
    ]


def conversation_of(response: Response) -> Conversation:
    """Mark a response as supervised behind its prompt."""
    supervised = response.ids.new_zeros(len(response.ids)).bool()
    supervised[response.prompt_len :] = True
    return Conversation(response.ids, supervised, response.features, response.hidden)


class DirectWriter:
    """Collects responses and writes a shard when one is full; knows which prompts are on disk.

    Parameters
    ----------
    writer : CacheWriter
    shard_tokens : int
        Tokens that close a shard.
    """

    def __init__(self, writer: CacheWriter, shard_tokens: int = 16_384) -> None:
        self._writer, self._shard_tokens = writer, shard_tokens
        self._held: list[Response] = []
        # A damaged shard does not count: its prompts are answered again, in a shard of another name.
        entries = writer.entries.values()
        sound = [entry.file for entry in entries if writer.holds(entry.file, entry.key)]
        self._next = 1 + max((int(entry.file.split("-")[1].split(".")[0]) for entry in entries), default=-1)
        writer.keep_only(sound)
        self.done = {prompt for file in sound for prompt in writer.entries[file].key.split()}

    def add(self, response: Response) -> None:
        """Take one response."""
        self._held.append(response)
        if sum(len(r.ids) for r in self._held) >= self._shard_tokens:
            self.flush()

    def flush(self) -> None:
        """Write what is held as one more shard; answers too short to hold an anchor and a label only leave a mark."""
        kept = [c for c in map(conversation_of, self._held) if c.trainable]
        if kept:
            self._writer.write(shard_name(self._next), kept, " ".join(r.prompt.id for r in self._held))
            self._next += 1
        self._held = []


def generate_directly(
    generator: BatchGenerator, prompts: Iterable[Prompt], writer: DirectWriter, log: Log, every_s: float = 10.0
) -> dict[str, Any]:
    """Answer every prompt that is not on disk; an interruption loses at most a shard's worth of answers.

    Returns
    -------
    dict
        ``responses``, ``tokens`` and ``seconds`` of this run.
    """
    wanted = [prompt for prompt in prompts if prompt.id not in writer.done]
    log(f"{len(writer.done)} conversations on disk, {len(wanted)} to generate")
    started = said = time.perf_counter()
    tokens = count = 0
    try:
        for response in generator.run(wanted):
            writer.add(response)
            count += 1
            tokens += len(response.ids) - response.prompt_len
            now = time.perf_counter()
            if now - said > every_s:
                rate, said = tokens / (now - started), now
                left = (len(wanted) - count) * (now - started) / count
                log(f"{count}/{len(wanted)} responses, {tokens} new tokens, {rate:.0f} tok/s, {left:.0f} s left")
    finally:
        # Ctrl-C keeps the answers that are finished; only a kill loses those of the open shard.
        writer.flush()
    return {"responses": count, "tokens": tokens, "seconds": time.perf_counter() - started}
