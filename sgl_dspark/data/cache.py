"""The target cache: what the frozen target computed on each conversation, in shards on disk (Sec. 4.1).

One shard is one safetensors file with the tensors of :class:`Shard`. Vocabulary logits are never stored: they are
``lm_head`` times the final-norm hidden state, formed where a loss needs them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sgl_dspark.errors import DataError
from sgl_dspark.training.generate import Response

MANIFEST = "manifest.json"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Conversation:
    """One supervised sequence.

    Attributes
    ----------
    ids : int64 [S]
        All tokens.
    loss_mask : bool [S]
        True on assistant tokens, end-of-turn token included.
    features : [S-1, m*d]
        Concatenated target layer outputs of tokens 0..S-2.
    hidden : [S-1, d]
        The target's final-norm output of the same tokens.
    """

    ids: Tensor
    loss_mask: Tensor
    features: Tensor
    hidden: Tensor


def supervised_mask(length: int, prompt_len: int) -> Tensor:
    """Loss mask of a single-turn conversation: every token behind the prompt, bool [length]."""
    return torch.arange(length) >= prompt_len


class CacheWriter:
    """Append conversations to a cache folder; a shard is written when it is full and is whole once it exists.

    Parameters
    ----------
    folder : Path
        Made when missing. An existing cache is continued when its manifest agrees, so generation can be resumed.
    manifest : dict
        What produced the data: feature layers, target, seeds. Compared with an existing manifest.
    shard_tokens : int
        Tokens after which a shard is closed.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], shard_tokens: int = 16_384) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.shard_tokens = folder, shard_tokens
        full = {"version": FORMAT_VERSION, **manifest}
        path = folder / MANIFEST
        if path.is_file():
            found = json.loads(path.read_text(encoding="utf-8"))
            if found != full:
                raise DataError(f"{path} describes other data ({found}); choose an empty folder.")
        else:
            path.write_text(json.dumps(full, indent=2) + "\n", encoding="utf-8")
        self._held: list[Response] = []

    @property
    def num_shards(self) -> int:
        """Shards on disk."""
        return len(list(self.folder.glob("shard-*.safetensors")))

    def add(self, response: Response) -> None:
        """Take one response; responses too short to hold an anchor and a label are dropped."""
        if len(response.ids) - response.prompt_len < 2:
            return
        self._held.append(response)
        if sum(len(r.ids) for r in self._held) >= self.shard_tokens:
            self.flush()

    def flush(self) -> None:
        """Write what is held as one more shard."""
        from safetensors.torch import save_file

        if not self._held:
            return
        tensors = {
            "ids": torch.cat([r.ids for r in self._held]).to(torch.int32),
            "loss_mask": torch.cat([supervised_mask(len(r.ids), r.prompt_len) for r in self._held]).to(torch.uint8),
            "lengths": torch.tensor([len(r.ids) for r in self._held]),
            "features": torch.cat([r.features for r in self._held]),
            "hidden": torch.cat([r.hidden for r in self._held]),
        }
        path = self.folder / f"shard-{self.num_shards:05d}.safetensors"
        partial = path.with_suffix(".partial")
        save_file(tensors, str(partial))
        partial.replace(path)
        self._held = []


def cache_shards(folder: Path) -> list[Path]:
    """List the shards of a cache, in order of writing.

    Raises
    ------
    DataError
        If ``folder`` holds no cache.
    """
    shards = sorted(folder.glob("shard-*.safetensors"))
    if not shards or not (folder / MANIFEST).is_file():
        raise DataError(f"{folder} holds no target cache; make one with `dspark train data`.")
    return shards


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a cache folder."""
    cache_shards(folder)
    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return manifest


def read_shard(path: Path) -> list[Conversation]:
    """Read all conversations of one shard, in order of writing."""
    from safetensors.torch import load_file

    raw = load_file(str(path))
    lengths = raw["lengths"].tolist()
    # The last token of a conversation has no hidden state, hence two running offsets.
    tokens, states, conversations = 0, 0, []
    for length in lengths:
        conversations.append(
            Conversation(
                ids=raw["ids"][tokens : tokens + length].long(),
                loss_mask=raw["loss_mask"][tokens : tokens + length].bool(),
                features=raw["features"][states : states + length - 1],
                hidden=raw["hidden"][states : states + length - 1],
            )
        )
        tokens, states = tokens + length, states + length - 1
    return conversations


def conversation_batches(shards: Sequence[Path], seed: int, size: int) -> Iterator[list[Conversation]]:
    """Yield batches of ``size`` conversations for ever.

    Shards are shuffled every epoch; within a few shards at a time, conversations of like length go together, so that
    little is spent on padding, and the batches are shuffled. What a pool leaves over opens the next one. The order is a
    function of the arguments alone, so a resumed run sees what it would have seen.
    """
    epoch, left = 0, list[Conversation]()
    while True:
        rng = random.Random(f"{seed}-{epoch}")
        order = list(shards)
        rng.shuffle(order)
        for start in range(0, len(order), 3):
            pool = left + [c for path in order[start : start + 3] for c in read_shard(path)]
            rng.shuffle(pool)
            whole = len(pool) // size * size
            left = pool[whole:]
            ranked = sorted(pool[:whole], key=lambda c: len(c.ids))
            batches = [ranked[i : i + size] for i in range(0, whole, size)]
            rng.shuffle(batches)
            yield from batches
        epoch += 1
