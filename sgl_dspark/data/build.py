"""From encoded conversations to a target cache: one batched forward of the target over each."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from sgl_dspark.data.cache import CacheWriter, Conversation, shard_name
from sgl_dspark.data.template import Encoded
from sgl_dspark.model.target import TargetModel

Log = Callable[[str], None]


def trainable(sequences: Sequence[Encoded], max_length: int) -> list[Encoded]:
    """Cut sequences to ``max_length`` tokens and keep those in which an anchor and a label fit."""
    found = []
    for sequence in sequences:
        mask = sequence.supervised[:max_length]
        if any(a and b for a, b in zip(mask, mask[1:], strict=False)):
            found.append(Encoded(sequence.ids[:max_length], mask))
    return found


def groups_of(sequences: Sequence[Encoded], shard_tokens: int) -> Iterator[list[Encoded]]:
    """Deal sequences out to shards, in order; a shard is closed by the one that fills it."""
    held: list[Encoded] = []
    tokens = 0
    for sequence in sequences:
        held.append(sequence)
        tokens += len(sequence.ids)
        if tokens >= shard_tokens:
            yield held
            held, tokens = [], 0
    if held:
        yield held


def group_key(group: Sequence[Encoded]) -> str:
    """Hash a group's ids and masks: equal exactly for the same sequences in the same order."""
    digest = hashlib.sha256()
    for sequence in group:
        digest.update(repr((sequence.ids, sequence.supervised)).encode())
    return digest.hexdigest()


def target_states(
    target: TargetModel, sequences: Sequence[Encoded], feature_layers: Sequence[int], batch_tokens: int = 4096
) -> list[Conversation]:
    """Run the target over sequences, those of like length together, and return them in order with their states.

    Parameters
    ----------
    target : TargetModel
    sequences : sequence of Encoded
        Of two or more tokens.
    feature_layers : sequence of int
    batch_tokens : int
        Tokens of one forward, padding included; a longer sequence runs alone.
    """
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i].ids))
    found: dict[int, Conversation] = {}
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * len(sequences[order[stop]].ids) <= batch_tokens:
            stop += 1
        members = order[start:stop]
        found.update(zip(members, _forward(target, [sequences[i] for i in members], feature_layers), strict=True))
        start = stop
    return [found[i] for i in range(len(sequences))]


def _forward(target: TargetModel, sequences: Sequence[Encoded], feature_layers: Sequence[int]) -> list[Conversation]:
    rows = [torch.tensor(s.ids[:-1]) for s in sequences]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(target.device)
    # Padding stands behind every sequence, where causal attention does not look.
    hidden, features = target.forward(ids, target.empty_cache(*ids.shape), feature_layers)
    assert features is not None
    return [
        Conversation(
            ids=torch.tensor(s.ids),
            loss_mask=torch.tensor(s.supervised),
            features=features[i, : len(s.ids) - 1].cpu(),
            hidden=hidden[i, : len(s.ids) - 1].cpu(),
        )
        for i, s in enumerate(sequences)
    ]


def build_cache(
    target: TargetModel,
    sequences: Sequence[Encoded],
    feature_layers: Sequence[int],
    writer: CacheWriter,
    log: Log,
    shard_tokens: int = 16_384,
) -> None:
    """Write every shard that is not on disk, undamaged and made from the same sequences.

    Which sequences go into which shard depends on their order and ``shard_tokens`` alone, so running this again
    continues an interrupted run, mends damaged shards, and adds what was appended to the responses.
    """
    groups = list(groups_of(sequences, shard_tokens))
    names = [shard_name(index) for index in range(len(groups))]
    keys = [group_key(group) for group in groups]
    missing = [i for i, name in enumerate(names) if not writer.holds(name, keys[i])]
    log(f"{len(groups) - len(missing)} of {len(groups)} shards are on disk, {len(missing)} to write")
    started, tokens = time.perf_counter(), 0
    for count, index in enumerate(missing, 1):
        conversations = target_states(target, groups[index], feature_layers)
        writer.write(names[index], conversations, keys[index])
        tokens += sum(len(c.ids) for c in conversations)
        rate = tokens / (time.perf_counter() - started)
        left = sum(len(s.ids) for i in missing[count:] for s in groups[i]) / rate
        log(f"shard {count}/{len(missing)}, {tokens} tokens, {rate:.0f} tok/s, {left:.0f} s left")
    writer.keep_only(names)
