"""Generated conversations: masks, stored states, cache round trip and order."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from sgl_dspark.errors import DataError
from sgl_dspark.training.data import CacheWriter, cache_shards, conversation_batches, read_shard, supervised_mask
from sgl_dspark.training.generate import BatchGenerator, Prompt, Response, common_prefix
from sgl_dspark.training.target import KeyValueCache, TargetModel
from tests.support.tiny_target import EOS, VOCAB, write_tiny_target

LAYERS = (0, 2)
PROMPTS = [Prompt((1, 9, 4, 20 + i % 7, *range(30, 30 + i % 4)), temperature=(0.0, 1.0)[i % 2]) for i in range(21)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TargetModel:
    folder = tmp_path_factory.mktemp("target")
    write_tiny_target(folder)
    return TargetModel.from_dir(folder, torch.float32)


@pytest.fixture(scope="module")
def responses(model: TargetModel) -> list[Response]:
    generator = BatchGenerator(model, LAYERS, rows=4, max_positions=32, max_new_tokens=12, seed=3)
    return list(generator.run(PROMPTS))


def test_every_prompt_is_answered_once_within_the_cap(responses: list[Response]) -> None:
    assert sorted(r.prompt.ids for r in responses) == sorted(p.ids for p in PROMPTS)
    for response in responses:
        prompt = response.prompt.ids
        assert tuple(response.ids[: response.prompt_len].tolist()) == prompt
        new = response.ids[response.prompt_len :].tolist()
        assert 1 <= len(new) <= 12
        assert len(new) == 12 or new[-1] == EOS
        assert EOS not in new[:-1]


def test_stored_states_are_those_of_one_plain_forward(model: TargetModel, responses: list[Response]) -> None:
    for response in responses:
        cache = KeyValueCache.empty(model.config, 1, 32, torch.float32)
        hidden, features = model.forward(response.ids[None, :-1], cache, LAYERS)
        assert features is not None
        torch.testing.assert_close(response.hidden, hidden[0], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(response.features, features[0], atol=1e-4, rtol=1e-4)


def test_greedy_responses_are_the_argmax_of_their_own_states(model: TargetModel, responses: list[Response]) -> None:
    greedy = [r for r in responses if r.prompt.temperature == 0]
    assert greedy
    for response in greedy:
        best = model.logits(response.hidden[response.prompt_len - 1 :]).argmax(-1)
        assert best.tolist() == response.ids[response.prompt_len :].tolist()


def test_common_prefix_leaves_every_prompt_a_token_of_its_own() -> None:
    assert common_prefix([Prompt((1, 2, 3), 0.0), Prompt((1, 2, 4, 5), 0.0)]) == 2
    assert common_prefix([Prompt((1, 2), 0.0), Prompt((1, 2, 4), 0.0)]) == 1
    assert common_prefix([Prompt((3,), 0.0)]) == 0


def test_loss_mask_starts_behind_the_prompt_and_includes_the_end_of_turn() -> None:
    assert supervised_mask(5, 2).tolist() == [False, False, True, True, True]


def test_cache_round_trip_and_resumption(tmp_path: Path, responses: list[Response]) -> None:
    writer = CacheWriter(tmp_path, {"feature_layers": list(LAYERS)}, shard_tokens=40)
    for response in responses[:10]:
        writer.add(response)
    writer.flush()
    again = CacheWriter(tmp_path, {"feature_layers": list(LAYERS)}, shard_tokens=40)
    for response in responses[10:]:
        again.add(response)
    again.flush()
    read = [c for path in cache_shards(tmp_path) for c in read_shard(path)]
    kept = [r for r in responses if len(r.ids) - r.prompt_len >= 2]
    assert len(read) == len(kept)
    for conversation, response in zip(read, kept, strict=True):
        assert conversation.ids.tolist() == response.ids.tolist()
        assert int(conversation.loss_mask.sum()) == len(response.ids) - response.prompt_len
        torch.testing.assert_close(conversation.features, response.features, atol=0, rtol=0)
        torch.testing.assert_close(conversation.hidden, response.hidden, atol=0, rtol=0)
    with pytest.raises(DataError, match="other data"):
        CacheWriter(tmp_path, {"feature_layers": [1]})


def test_batches_are_a_function_of_the_seed_and_cover_the_data(tmp_path: Path, responses: list[Response]) -> None:
    writer = CacheWriter(tmp_path, {}, shard_tokens=40)
    for response in responses:
        writer.add(response)
    writer.flush()
    shards = cache_shards(tmp_path)
    everything = sorted(c.ids.tolist() for path in shards for c in read_shard(path))

    def first(seed: int, count: int) -> list[list[list[int]]]:
        batches = itertools.islice(conversation_batches(shards, seed, 4), count)
        return [[c.ids.tolist() for c in batch] for batch in batches]

    whole = len(everything) // 4
    assert first(0, 3 * whole) == first(0, 3 * whole)
    assert first(0, whole) != first(1, whole)
    assert all(len(batch) == 4 for batch in first(0, 3 * whole))
    # An epoch leaves fewer than a batch over, and the next one begins with it.
    seen = [ids for batch in first(0, whole) for ids in batch]
    assert all(seen.count(ids) <= everything.count(ids) for ids in seen)
    twice = [ids for batch in first(0, 2 * whole + 1) for ids in batch]
    assert all(ids in twice for ids in everything)


def test_a_folder_without_a_cache_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no target cache"):
        cache_shards(tmp_path)


def test_long_prompts_are_skipped(model: TargetModel) -> None:
    generator = BatchGenerator(model, LAYERS, rows=2, max_positions=8, max_new_tokens=4)
    assert list(generator.run([Prompt(tuple(range(1, 12)), 0.0)])) == []
    assert VOCAB > 12
