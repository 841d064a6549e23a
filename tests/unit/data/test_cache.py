"""The target cache: whole or absent, damage found and named, interrupted and appended runs continued."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sgl_dspark.data import build
from sgl_dspark.data.build import build_cache, group_key, groups_of
from sgl_dspark.data.cache import MANIFEST, CacheWriter, Conversation, TargetCache, shard_name, weights_sha256
from sgl_dspark.data.decode import BatchGenerator, Prompt
from sgl_dspark.data.direct import DirectWriter, generate_directly
from sgl_dspark.data.template import Encoded
from sgl_dspark.errors import DataError
from sgl_dspark.model.target import TargetModel
from tests.support.conversations import make_conversations
from tests.support.tiny_target import write_tiny_target

SOURCE = {"feature_layers": [0, 2], "target": "tiny"}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TargetModel:
    folder = tmp_path_factory.mktemp("target")
    write_tiny_target(folder)
    return TargetModel.from_dir(folder, torch.float32)


def quiet(line: str) -> None:
    """Take a log line and drop it."""


def same(found: Conversation, wanted: Conversation) -> bool:
    names = ("ids", "loss_mask", "features", "hidden")
    return all(torch.equal(getattr(found, n), getattr(wanted, n)) for n in names)


def sequences(count: int) -> list[Encoded]:
    random = torch.Generator().manual_seed(0)
    return [
        Encoded(
            tuple(torch.randint(3, 60, (6 + i % 5,), generator=random).tolist()), (False, False) + (True,) * (4 + i % 5)
        )
        for i in range(count)
    ]


def test_conversations_come_back_as_they_were(tmp_path: Path) -> None:
    data = make_conversations(5)
    CacheWriter(tmp_path, SOURCE).write(shard_name(0), data)
    cache = TargetCache.open(tmp_path)
    (entry,) = cache.shards
    assert entry.conversations == 5
    assert entry.supervised == cache.supervised_tokens == sum(int(c.loss_mask.sum()) for c in data)
    assert cache.feature_layers == [0, 2]
    assert all(same(a, b) for a, b in zip(cache.read(entry), data, strict=True))


def test_damage_is_found_and_named(tmp_path: Path) -> None:
    CacheWriter(tmp_path, SOURCE).write(shard_name(0), make_conversations(3))
    cache = TargetCache.open(tmp_path)
    path = tmp_path / shard_name(0)
    content = bytearray(path.read_bytes())
    for place in (0, len(content) // 2, len(content) - 1):
        damaged = bytearray(content)
        damaged[place] ^= 0x40
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"shard-00000\.safetensors is damaged"):
            cache.read(cache.shards[0])
    path.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        cache.read(cache.shards[0])


def test_what_is_no_cache_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no target cache"):
        TargetCache.open(tmp_path)
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(DataError, match="is damaged"):
        TargetCache.open(tmp_path)
    (tmp_path / MANIFEST).write_text(json.dumps({"version": 1}))
    with pytest.raises(DataError, match="version 1"):
        TargetCache.open(tmp_path)


def test_another_source_is_not_mixed_in(tmp_path: Path) -> None:
    CacheWriter(tmp_path, {"feature_layers": [5]})
    CacheWriter(tmp_path, SOURCE).write(shard_name(0), make_conversations(2))
    CacheWriter(tmp_path, SOURCE)
    with pytest.raises(DataError, match="differs in feature_layers"):
        CacheWriter(tmp_path, {**SOURCE, "feature_layers": [1]})


def test_building_continues_mends_and_extends(
    target: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = sequences(20)
    computed: list[int] = []
    plain = build.target_states

    def counted(*args: object, **kwargs: object) -> list[Conversation]:
        computed.append(1)
        return plain(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(build, "target_states", counted)

    def run(sequences_: list[Encoded]) -> list[Conversation]:
        computed.clear()
        build_cache(target, sequences_, [0, 2], CacheWriter(tmp_path, SOURCE), quiet, shard_tokens=40)
        cache = TargetCache.open(tmp_path)
        return [c for entry in cache.shards for c in cache.read(entry)]

    whole = run(data)
    shards = len(list(groups_of(data, 40)))
    assert len(computed) == shards > 3
    assert [tuple(c.ids.tolist()) for c in whole] == [s.ids for s in data]
    # Nothing to do.
    run(data)
    assert not computed
    # One damaged, one gone: these two only.
    path = tmp_path / shard_name(1)
    path.write_bytes(path.read_bytes()[:-7])
    (tmp_path / shard_name(2)).unlink()
    again = run(data)
    assert len(computed) == 2
    assert all(same(a, b) for a, b in zip(again, whole, strict=True))
    # More responses: the shard that was not full, and new ones.
    more = run(data + sequences(25)[20:])
    assert len(more) == 25
    assert 1 <= len(computed) <= 3
    # Fewer: what is no part of it any more goes.
    assert len(run(data[:4])) == 4
    assert len(list(tmp_path.glob("shard-*.safetensors"))) == len(list(groups_of(data[:4], 40)))


def test_states_are_those_of_one_sequence_alone(target: TargetModel) -> None:
    data = sequences(9)
    together = build.target_states(target, data, [0, 2], batch_tokens=30)
    for sequence, found in zip(data, together, strict=True):
        hidden, features = target.forward(
            torch.tensor([sequence.ids[:-1]]), target.empty_cache(1, len(sequence.ids)), [0, 2]
        )
        assert features is not None
        torch.testing.assert_close(found.hidden, hidden[0], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(found.features, features[0], atol=1e-4, rtol=1e-4)


def test_group_keys_tell_masks_apart() -> None:
    one = [Encoded((1, 2), (False, True))]
    assert group_key(one) != group_key([Encoded((1, 2), (True, True))])
    assert group_key(one) == group_key([Encoded((1, 2), (False, True))])


def test_direct_generation_answers_each_prompt_once_over_interruptions(target: TargetModel, tmp_path: Path) -> None:
    prompts = [Prompt((1, 9, 4, 20 + i), 1.0, id=f"p{i}") for i in range(15)]
    generator = BatchGenerator(target, [0, 2], rows=4, max_positions=30, max_new_tokens=8)

    def stopping(count: int) -> list[Prompt]:
        """Generate until ``count`` responses are written, then break off as Ctrl-C does."""
        writer = DirectWriter(CacheWriter(tmp_path, SOURCE), shard_tokens=30)
        add, seen = writer.add, []

        def limited(response: object) -> None:
            if len(seen) == count:
                raise KeyboardInterrupt
            seen.append(response)
            add(response)  # type: ignore[arg-type]

        writer.add = limited  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            generate_directly(generator, prompts, writer, quiet)
        return [r.prompt for r in seen]  # type: ignore[attr-defined]

    stopped = stopping(6)
    fresh = BatchGenerator(target, [0, 2], rows=4, max_positions=30, max_new_tokens=8, seed=1)
    writer = DirectWriter(CacheWriter(tmp_path, SOURCE), shard_tokens=30)
    assert writer.done == {p.id for p in stopped}
    generate_directly(fresh, prompts, writer, quiet)
    cache = TargetCache.open(tmp_path)
    ids = [name for entry in cache.shards for name in entry.key.split()]
    assert sorted(ids) == sorted(p.id for p in prompts)
    for entry in cache.shards:
        assert all(c.trainable for c in cache.read(entry))


def test_weights_are_known_by_their_content(tmp_path: Path) -> None:
    write_tiny_target(tmp_path / "a")
    write_tiny_target(tmp_path / "b")
    write_tiny_target(tmp_path / "c", seed=1)
    assert weights_sha256(tmp_path / "a") == weights_sha256(tmp_path / "b") != weights_sha256(tmp_path / "c")
    with pytest.raises(DataError, match=r"no \.safetensors"):
        weights_sha256(tmp_path)
