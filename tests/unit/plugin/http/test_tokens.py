"""Token ids and batches that clients put together themselves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dspark_sglang.http.classify import classify
from dspark_sglang.http.errors import ApiError
from dspark_sglang.http.tokens import (
    check_bias,
    check_detokenize,
    check_ids,
    check_stop_regex,
    with_even_batch,
    with_known_ids,
)


@pytest.mark.parametrize("ids", [None, [], [0], [9, 0, 5]])
def test_ids_of_the_vocabulary_pass(ids: list[int] | None) -> None:
    check_ids(ids, 10, "input_ids")


@pytest.mark.parametrize(("ids", "wrong"), [([10], "10"), ([1, -1], "-1"), ([3, 2**70, -5], str(2**70))])
def test_another_is_named(ids: list[int], wrong: str) -> None:
    with pytest.raises(ValueError, match=f"input_ids must be .* from 0 to 9, got {wrong}"):
        check_ids(ids, 10, "input_ids")


def test_the_wrapped_check_comes_after() -> None:
    seen: list[Any] = []
    manager = SimpleNamespace(model_config=SimpleNamespace(vocab_size=10))
    validate = with_known_ids(lambda *given: seen.append(given))
    embedded = SimpleNamespace(input_embeds=[[0.5]])
    for request, ids in (("request", [1]), ("request", None), (embedded, [])):
        validate(manager, request, ids)
        assert seen.pop() == (manager, request, ids)
    with pytest.raises(ValueError, match="input_ids"):
        validate(manager, "request", [11])
    for passing in (None, [], [0, 9], ["x"], [[1]], 5):
        validate(manager, SimpleNamespace(token_ids_logprob=passing), [1])
        seen.pop()
    with pytest.raises(ValueError, match=r"\Atoken_ids_logprob must be "):
        validate(manager, SimpleNamespace(token_ids_logprob=[3, 10]), [1])
    with pytest.raises(ValueError, match="at least one token"):
        validate(manager, "request", [])
    assert not seen


def test_a_bias_by_something_else_than_a_token_names_its_field() -> None:
    for passing in (None, {}, {"logit_bias": None}, {"logit_bias": {"5": 1.0, "-7": 2.0}}):
        check_bias(passing)
    request = SimpleNamespace(sampling_params={"logit_bias": {"5": 1.0, "foo": 0.0}})
    manager = SimpleNamespace(model_config=SimpleNamespace(vocab_size=10))
    with pytest.raises(ValueError, match=r"\Alogit_bias must have token ids as its keys\.\Z") as caught:
        with_known_ids(lambda *_: None)(manager, request, [1])
    told = classify(400, {"message": str(caught.value)}, "POST", "/v1/chat/completions", "req_1")
    assert (told.status, told.code, told.param) == (400, "invalid_value", "logit_bias")


WRONG_PATTERNS = ["(", ["a", "[z"], "(?<=a+)b", "a{99999999999999999999}", [5], "(" * 200, "a" * 1000]


@pytest.mark.parametrize("pattern", WRONG_PATTERNS)
def test_what_is_no_regular_expression_names_its_field(pattern: Any) -> None:
    """What is found by the scheduler's compiler only, and what its parser raises that is no ValueError, too."""
    pytest.importorskip("sglang")
    request = SimpleNamespace(sampling_params={"stop_regex": pattern})
    manager = SimpleNamespace(model_config=SimpleNamespace(vocab_size=10))
    with pytest.raises(ValueError, match=r"\Astop_regex must be ") as caught:
        with_known_ids(lambda *_: None)(manager, request, [1])
    told = classify(400, {"message": str(caught.value)}, "POST", "/generate", "req_1")
    assert (told.code, told.param) == ("invalid_value", "stop_regex")
    for passing in (None, {}, {"stop_regex": None}, {"stop_regex": "a+"}, {"stop_regex": ["[ab]", "x$"]}):
        check_stop_regex(passing)


def test_a_batch_of_uneven_lists() -> None:
    getitem = with_even_batch(list.__getitem__)
    assert getitem([4, 5], 1) == 5
    with pytest.raises(ValueError, match="the lists of a batch request"):
        getitem([4, 5], 2)


@pytest.mark.parametrize("tokens", [[10], [[1], [2, -1]]])
def test_ids_that_are_no_text(tokens: list[Any]) -> None:
    with pytest.raises(ApiError) as caught:
        check_detokenize(SimpleNamespace(tokens=tokens), 10)
    assert (caught.value.status, caught.value.param) == (400, "tokens")
    check_detokenize(SimpleNamespace(tokens=[[1], [2]]), 10)
    check_detokenize(SimpleNamespace(), 10)
