"""What would end the scheduler is refused by name or bounded to the same law; everything else is left as it was."""

from __future__ import annotations

import copy
from array import array
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang")
from sglang.srt import runtime_context
from sglang.srt.managers.io_struct import GenerateReqInput, SessionParams, TokenizedGenerateReqInput
from sglang.srt.sampling.sampling_params import TOP_K_ALL, SamplingParams

from dspark_sglang.http import bounds
from dspark_sglang.http.bounds import MOST_ANSWERS, bound_values, with_bounded_values, with_checked_form
from dspark_sglang.http.classify import classify
from tests.support.processors import BanTokens

VOCAB, CONTEXT = 100, 64
INFINITY, NAN = float("inf"), float("nan")


def tokenized(sampling: dict[str, Any] | None = None, **fields: Any) -> TokenizedGenerateReqInput:
    params = SamplingParams(**(sampling or {}))
    params.stop_strs, params.stop_regex_strs, params.is_normalized = [], [], True
    made = TokenizedGenerateReqInput(
        input_text="x",
        input_ids=array("q", [1, 2]),
        input_embeds=None,
        mm_inputs=None,
        token_type_ids=None,
        sampling_params=params,
        return_logprob=False,
        logprob_start_len=-1,
        top_logprobs_num=0,
        token_ids_logprob=None,
        stream=False,
        rid="a",
    )
    for name, value in fields.items():
        setattr(made, name, value)
    return made


REFUSED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("min_new_tokens", {"min_new_tokens": 2**31, "max_new_tokens": None}, {}),
    ("min_new_tokens", {"min_new_tokens": CONTEXT + 1, "max_new_tokens": None}, {}),
    ("stop_token_ids", {"stop_token_ids": [2**70]}, {}),
    ("repetition_penalty", {"repetition_penalty": 1e-40}, {}),
    ("logit_bias", {"logit_bias": {"5": INFINITY}}, {}),
    ("logit_bias", {"logit_bias": {"5": -INFINITY}}, {}),
    ("logit_bias", {"logit_bias": {"5": NAN}}, {}),
    ("logit_bias", {"logit_bias": {"5": 1e300}}, {}),
    ("logit_bias", {"logit_bias": {"5": "1"}}, {}),
    ("json_schema", {"json_schema": {"type": "object"}}, {}),
    ("max_new_tokens", {"max_new_tokens": 5.5}, {}),
    ("regex", {"regex": "\ud800"}, {}),
    ("top_logprobs_num", {}, {"top_logprobs_num": VOCAB + 1}),
    ("top_logprobs_num", {}, {"top_logprobs_num": -5, "return_logprob": True}),
    ("logprob_start_len", {}, {"logprob_start_len": -7, "return_logprob": True}),
    ("token_indices_to_pool", {}, {"token_indices_to_pool": [0, 2]}),
    ("multi_item_delimiter_indices", {}, {"multi_item_delimiter_indices": [-1]}),
    ("positional_embed_overrides", {}, {"positional_embed_overrides": {"a": 1}}),
    ("session_params", {}, {"session_params": SessionParams(id=5)}),
    ("session_params", {}, {"session_params": SessionParams(id="a", replace=True)}),
    ("priority", {}, {"priority": 2**70}),
    ("extra_key", {}, {"extra_key": "\udfff"}),
    ("custom_logit_processor", {}, {"custom_logit_processor": "nonsense"}),
    ("custom_logit_processor", {}, {"custom_logit_processor": '{"callable": "00"}'}),
]
SERVED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"top_k": 5, "temperature": 7.0, "repetition_penalty": 0.5, "min_new_tokens": 3}, {}),
    ({"stop_token_ids": [0, VOCAB - 1], "logit_bias": {"5": -100.0}, "max_new_tokens": None}, {}),
    ({"min_new_tokens": CONTEXT, "max_new_tokens": None}, {}),
    ({"custom_params": {"a": [1, None, "x"]}, "sampling_seed": -(2**63)}, {}),
    ({"json_schema": "{}"}, {"session_params": SessionParams(id="a", replace=True, rid="b")}),
    ({}, {"top_logprobs_num": VOCAB, "return_logprob": True, "logprob_start_len": 0, "token_ids_logprob": [5]}),
    ({}, {"token_indices_to_pool": [0, 1], "multi_item_delimiter_indices": []}),
    ({}, {"custom_logit_processor": BanTokens.to_str()}),
]


@pytest.mark.parametrize(("name", "sampling", "fields"), REFUSED)
def test_what_would_end_the_scheduler_is_refused_by_name(
    name: str, sampling: dict[str, Any], fields: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=rf"\A{name} must ") as caught:
        bound_values(tokenized(sampling, **fields), VOCAB, CONTEXT)
    told = classify(400, {"message": str(caught.value)}, "POST", "/generate", "req_1")
    assert (told.status, told.code, told.param) == (400, "invalid_value", name)
    assert "`$" not in told.message


@pytest.mark.parametrize(("sampling", "fields"), SERVED)
def test_everything_else_is_left_as_it_was(sampling: dict[str, Any], fields: dict[str, Any]) -> None:
    request = tokenized(sampling, **fields)
    before = copy.deepcopy(request)
    bound_values(request, VOCAB, CONTEXT)
    assert request == before


def test_bounds_that_keep_the_law() -> None:
    request = tokenized({"top_k": 2**40, "temperature": 1e300, "stop_token_ids": [VOCAB, 3, -1]})
    bound_values(request, VOCAB, CONTEXT)
    assert request.sampling_params.stop_token_ids == {3}
    assert request.sampling_params.top_k == TOP_K_ALL
    assert request.sampling_params.temperature == bounds.HOTTEST


def test_nested_parameters_pass_where_they_travel_as_a_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.managers import io_struct

    request = tokenized({"custom_params": {"a": {"b": {"c": 1}}}})
    monkeypatch.setattr(io_struct, "_USE_PICKLE_IPC", True)
    bound_values(request, VOCAB, CONTEXT)
    assert request.sampling_params.custom_params == {"a": {"b": {"c": 1}}}
    monkeypatch.setattr(io_struct, "_USE_PICKLE_IPC", False)
    with pytest.raises(ValueError, match=r"\Acustom_params must be of another type"):
        bound_values(request, VOCAB, CONTEXT)


def test_what_the_server_itself_writes_is_not_looked_at() -> None:
    request = tokenized(time_stats=object(), mm_inputs=object())
    bound_values(request, VOCAB, CONTEXT)
    assert len(request.input_ids) == 2


def test_the_wrapper_takes_requests_to_generate_only() -> None:
    manager = SimpleNamespace(model_config=SimpleNamespace(vocab_size=VOCAB), context_len=CONTEXT)
    embedding, wrong = object(), tokenized(top_logprobs_num=-1)
    assert with_bounded_values(lambda *_: embedding)(manager, "request") is embedding
    with pytest.raises(ValueError, match="top_logprobs_num"):
        with_bounded_values(lambda *_: wrong)(manager, "request")


@pytest.mark.parametrize("n", [0, -3, MOST_ANSWERS + 1, 10**9, "2", 1.5])
def test_a_number_of_answers_that_is_none(n: Any) -> None:
    normalize = with_checked_form(GenerateReqInput.normalize_batch_and_arguments)
    for sampling in ({"n": n}, [{"n": n}]):
        with pytest.raises(ValueError, match=r"\An must be "):
            normalize(GenerateReqInput(text=["x"], sampling_params=sampling))


def test_numbers_of_answers_that_are_served() -> None:
    normalize = with_checked_form(GenerateReqInput.normalize_batch_and_arguments)
    for sampling, answers in (({"n": 3}, 3), ({"n": None}, 1), (None, 1), ([{"n": 2}], 2)):
        request = GenerateReqInput(text=["x"], sampling_params=sampling)
        normalize(request)
        assert request.parallel_sample_num == answers
    with pytest.raises(ValueError, match="sampling_params must have an entry"):
        normalize(GenerateReqInput(text=["x"], sampling_params=[]))


@pytest.mark.parametrize("session", [{"foo": 1}, [{"id": "a"}], {"id": "a", "": 2}])
def test_a_session_of_another_form(session: Any) -> None:
    normalize = with_checked_form(GenerateReqInput.normalize_batch_and_arguments)
    with pytest.raises(ValueError, match=r"\Asession_params must "):
        normalize(GenerateReqInput(text="x", session_params=session))
    normalize(GenerateReqInput(text="x", session_params={"id": "a", "replace": None}))


def test_one_prompt_has_one_id() -> None:
    normalize = with_checked_form(GenerateReqInput.normalize_batch_and_arguments)
    with pytest.raises(ValueError, match=r"\Arid must be "):
        normalize(GenerateReqInput(text="x", rid=["a"]))
    for passing in (
        {"text": "x", "rid": "a"},
        {"text": "x"},
        {"text": ["x"], "rid": ["a"]},
        {"text": ["x"], "rid": "a"},
    ):
        normalize(GenerateReqInput(**passing))


@pytest.mark.parametrize(("known", "kept"), [(None, None), (["a"], {"a": "1"})])
def test_labels_that_no_metric_has_are_left_out(
    monkeypatch: pytest.MonkeyPatch, known: list[str] | None, kept: dict[str, str] | None
) -> None:
    settings = SimpleNamespace(tokenizer_metrics_allowed_custom_labels=known)
    monkeypatch.setattr(runtime_context, "get_observability", lambda: settings)
    request = GenerateReqInput(text="x", custom_labels={"a": "1", "b": "2"})
    with_checked_form(GenerateReqInput.normalize_batch_and_arguments)(request)
    assert request.custom_labels == kept
