"""Where a trainer's conversations come from, in an order that is a function of the seed alone."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from sgl_dspark.data.build import target_states, trainable
from sgl_dspark.data.cache import Conversation, TargetCache, weights_sha256
from sgl_dspark.data.responses import read_exchanges
from sgl_dspark.data.template import ChatEncoder, Encoded
from sgl_dspark.errors import DataError
from sgl_dspark.model.target import TargetModel
from sgl_dspark.training.ranks import Ranks

Share = list[tuple[int, Conversation]]
"""Conversations of one rank, each with its place in the global batch."""

# Shards that are shuffled together; all of them are in memory at a time.
_POOL = 4


class Source(Protocol):
    """Conversations with target states."""

    @property
    def feature_layers(self) -> list[int]:
        """Layers whose outputs the conversations carry."""

    @property
    def fingerprint(self) -> str:
        """Hash of everything that the conversations and their order come from."""

    def shares(self, seed: int, size: int, ranks: Ranks, skip: int = 0) -> Iterator[Share]:
        """Yield one rank's share of every global batch, for ever, but of the first ``skip``.

        The batches depend on seed, size and the data alone. Only what the rank needs is read.
        """

    def all(self) -> Iterator[Conversation]:
        """Yield every conversation once, in the data's order."""

    def label_counts(self, vocab_size: int) -> Tensor:
        """Count the supervised tokens, int64 [V]."""


class CacheSource:
    """Conversations from caches on disk; every shard is compared with its checksum as it is read.

    Parameters
    ----------
    folders : sequence of Path
    target : Path
        The caches must have been made with these weights.

    Raises
    ------
    DataError
        If a folder holds no cache, or caches are of other layers or of another target.
    """

    def __init__(self, folders: Sequence[Path], target: Path) -> None:
        self._caches = [TargetCache.open(folder) for folder in folders]
        wanted = weights_sha256(target)
        for cache in self._caches:
            if cache.source.get("target_sha256") != wanted:
                raise DataError(f"{cache.folder} was made with another target than {target}; make it again.")
            if cache.feature_layers != self._caches[0].feature_layers:
                raise DataError("the caches hold different feature layers; make them with the same ones.")
            if not cache.shards:
                raise DataError(f"{cache.folder} holds no shard yet; finish making it.")
        self._shards = [(cache, entry) for cache in self._caches for entry in cache.shards]

    @property
    def feature_layers(self) -> list[int]:
        """Layers whose outputs the conversations carry."""
        return self._caches[0].feature_layers

    @property
    def fingerprint(self) -> str:
        """Hash of the target and of every shard, in order."""
        parts = [(c.source["target_sha256"], e.file, e.sha256) for c, e in self._shards]
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def shares(self, seed: int, size: int, ranks: Ranks, skip: int = 0) -> Iterator[Share]:
        """See `Source.shares`: shards shuffled every epoch, conversations within a few shards at a time.

        What a pool leaves over opens the next one.
        """
        held: dict[int, list[Conversation]] = {}
        for batch in itertools.islice(self._order(seed, size), skip, None):
            mine = ranks.share(batch)
            needed = {shard for _, (shard, _) in mine}
            for shard in needed - held.keys():
                # Shards of earlier pools are done with; one pool and what its batches share is in memory.
                if len(held) > _POOL:
                    held = {key: held[key] for key in held if key in needed}
                cache, entry = self._shards[shard]
                held[shard] = cache.read(entry)
            yield [(number, held[shard][index]) for number, (shard, index) in mine]

    def _order(self, seed: int, size: int) -> Iterator[list[tuple[int, int]]]:
        """Yield batches of (shard, index in the shard)."""
        left: list[tuple[int, int]] = []
        for epoch in itertools.count():
            rng = random.Random(f"{seed}-{epoch}")
            order = list(range(len(self._shards)))
            rng.shuffle(order)
            for start in range(0, len(order), _POOL):
                shards = order[start : start + _POOL]
                pool = left + [(s, i) for s in shards for i in range(self._shards[s][1].conversations)]
                rng.shuffle(pool)
                whole = len(pool) // size * size
                left = pool[whole:]
                for first in range(0, whole, size):
                    yield pool[first : first + size]

    def all(self) -> Iterator[Conversation]:
        """Yield every conversation once, in the data's order."""
        for cache, entry in self._shards:
            yield from cache.read(entry)

    def label_counts(self, vocab_size: int) -> Tensor:
        """Count the supervised tokens, int64 [V]."""
        return _count((c.ids[c.loss_mask] for c in self.all()), vocab_size)


class ResponseSource:
    """Conversations from response files, their states computed by the target: once and kept, or for every batch.

    Parameters
    ----------
    encoded : sequence of Encoded
        Trainable sequences.
    target : TargetModel
    feature_layers : sequence of int
    target_sha256 : str
        Of the target's weights.
    keep : bool
        Hold all states in memory (about 2 * (m + 1) * d bytes a token in bf16), from the first use on.
    """

    def __init__(
        self,
        encoded: Sequence[Encoded],
        target: TargetModel,
        feature_layers: Sequence[int],
        *,
        target_sha256: str,
        keep: bool,
    ) -> None:
        if not encoded:
            raise DataError("the responses hold no answer of two tokens or more.")
        self._encoded, self._target, self._layers = list(encoded), target, list(feature_layers)
        self._sha256, self._keep = target_sha256, keep
        self._kept: list[Conversation] = []

    @property
    def feature_layers(self) -> list[int]:
        """Layers whose outputs the conversations carry."""
        return self._layers

    @property
    def fingerprint(self) -> str:
        """Hash of the sequences and of what their states come from."""
        target = (self._sha256, self._target.config.raw, self._layers)
        return hashlib.sha256(repr((self._encoded, target)).encode()).hexdigest()

    def shares(self, seed: int, size: int, ranks: Ranks, skip: int = 0) -> Iterator[Share]:
        """See `Source.shares`: the conversations are shuffled anew every epoch."""
        for batch in itertools.islice(self._order(seed, size), skip, None):
            mine = ranks.share(batch)
            states = self._states([index for _, index in mine])
            yield list(zip((number for number, _ in mine), states, strict=True))

    def _order(self, seed: int, size: int) -> Iterator[list[int]]:
        left: list[int] = []
        for epoch in itertools.count():
            order = list(range(len(self._encoded)))
            random.Random(f"{seed}-{epoch}").shuffle(order)
            order = left + order
            whole = len(order) // size * size
            left = order[whole:]
            for first in range(0, whole, size):
                yield order[first : first + size]

    def all(self) -> Iterator[Conversation]:
        """Yield every conversation once, in the data's order."""
        for index in range(len(self._encoded)):
            yield from self._states([index])

    def label_counts(self, vocab_size: int) -> Tensor:
        """Count the supervised tokens, int64 [V]."""
        supervised = (torch.tensor(e.ids)[torch.tensor(e.supervised)] for e in self._encoded)
        return _count(supervised, vocab_size)

    def _states(self, indices: Sequence[int]) -> list[Conversation]:
        if self._keep:
            # Not before a state is asked for: a run that is finished needs none.
            self._kept = self._kept or target_states(self._target, self._encoded, self._layers)
            return [self._kept[index] for index in indices]
        return target_states(self._target, [self._encoded[index] for index in indices], self._layers)


def response_source(
    files: Sequence[Path],
    target: TargetModel,
    encoder: ChatEncoder,
    feature_layers: Sequence[int],
    max_length: int,
    *,
    target_sha256: str,
    keep: bool,
) -> ResponseSource:
    """Read and encode response files."""
    encoded = [e for path in files for exchange in read_exchanges(path) for e in encoder.encode(exchange)]
    kept = trainable(encoded, max_length)
    return ResponseSource(kept, target, feature_layers, target_sha256=target_sha256, keep=keep)


def _count(supervised: Iterator[Tensor], vocab_size: int) -> Tensor:
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for ids in supervised:
        counts += torch.bincount(ids, minlength=vocab_size)
    return counts
