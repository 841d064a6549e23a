"""Conversations from the built-in decoder: every prompt answered, states those of a plain forward."""

from __future__ import annotations

import pytest
import torch

from sgl_dspark.data.decode import BatchGenerator, Prompt, Response, common_prefix
from sgl_dspark.model.target import TargetModel
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
        cache = model.empty_cache(1, 32)
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


def test_long_prompts_are_skipped(model: TargetModel) -> None:
    generator = BatchGenerator(model, LAYERS, rows=2, max_positions=8, max_new_tokens=4)
    assert list(generator.run([Prompt(tuple(range(1, 12)), 0.0)])) == []
    assert VOCAB > 12
