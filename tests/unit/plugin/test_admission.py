"""Every parameter that would not be exact is refused by the name its client used, and nothing else is."""

from __future__ import annotations

import ast
import inspect
from array import array
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang")
from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
from sglang.srt.sampling.sampling_params import SamplingParams

from dspark_sglang import admission, selection


class LetterTokenizer:
    """Stop strings need a tokenizer; one token per letter will do."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return [ord(c) for c in text]


def tokenized(sampling: dict[str, Any] | None = None, **fields: Any) -> TokenizedGenerateReqInput:
    params = SamplingParams(**(sampling or {}))
    params.normalize(LetterTokenizer())
    base: dict[str, Any] = {
        "input_text": None,
        "input_ids": array("q", [1, 2]),
        "input_embeds": None,
        "mm_inputs": None,
        "token_type_ids": None,
        "sampling_params": params,
        "return_logprob": False,
        "logprob_start_len": -1,
        "top_logprobs_num": 0,
        "token_ids_logprob": None,
        "stream": False,
    }
    return TokenizedGenerateReqInput(**{**base, **fields})


REFUSED_SAMPLING = {
    "beam_width": {"beam_width": 2},
    "watermark": {"watermark": {"enabled": True}},
}
REFUSED_FIELDS = {
    "lora_path (model adapter)": {"lora_id": "a"},
    "return_hidden_states": {"return_hidden_states": True},
    "input_embeds": {"input_embeds": [[0.1]]},
    "return_routed_experts": {"return_routed_experts": True},
    "return_indexer_topk": {"return_indexer_topk": True},
    "return_sampling_mask": {"return_sampling_mask": True},
}
SERVED: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"temperature": 0.3, "top_p": 0.9, "top_k": 20, "min_p": 0.05},
    {"stop": ["x"], "stop_token_ids": [3], "ignore_eos": True, "max_new_tokens": 3, "n": 2},
    {"stop_regex": ["x+"]},
    {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "logit_bias": {}},
    {"frequency_penalty": 0.1, "presence_penalty": -0.1, "repetition_penalty": 1.1, "min_new_tokens": 1},
    {"logit_bias": {"5": 1.0}, "sampling_seed": 3},
    {"json_schema": "{}"},
    {"regex": "a+"},
    {"ebnf": 'root ::= "a"'},
    {"structural_tag": "{}"},
    {"beam_width": 1},
    {"watermark": {"enabled": False}},
]


@pytest.mark.parametrize(("name", "sampling"), REFUSED_SAMPLING.items())
def test_sampling_parameters_are_named(name: str, sampling: dict[str, Any]) -> None:
    assert admission.unsupported_parameters(tokenized(sampling)) == [name]


@pytest.mark.parametrize(("name", "fields"), REFUSED_FIELDS.items())
def test_request_fields_are_named(name: str, fields: dict[str, Any]) -> None:
    assert admission.unsupported_parameters(tokenized(**fields)) == [name]


def test_every_rule_is_tested() -> None:
    rules = [name for name, _ in (*admission._SAMPLING_RULES, *admission._REQUEST_RULES)]
    assert rules == [*REFUSED_SAMPLING, *REFUSED_FIELDS]


@pytest.mark.parametrize("sampling", SERVED)
def test_what_is_served_is_let_through(sampling: dict[str, Any]) -> None:
    assert admission.unsupported_parameters(tokenized(sampling)) == []
    logprobs = tokenized(sampling, return_logprob=True, top_logprobs_num=3, stream=True)
    assert admission.unsupported_parameters(logprobs) == []


def test_the_message_names_every_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "serves_ours", lambda: True)
    request = tokenized({"beam_width": 2, "watermark": {"enabled": True}}, lora_id="a")
    with pytest.raises(ValueError, match=r"^beam_width, watermark, lora_path .*: not"):
        admission.refuse_unsupported(request)
    admission.refuse_unsupported(tokenized())


def test_other_servers_and_other_requests_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "serves_ours", lambda: False)
    admission.refuse_unsupported(tokenized({"beam_width": 2}))
    monkeypatch.setattr(selection, "serves_ours", lambda: True)
    admission.refuse_unsupported(SimpleNamespace(sampling_params=None))


def test_no_sampling_parameter_of_this_sglang_is_unknown() -> None:
    """A parameter that a new SGLang adds must be judged before it is let through."""
    known = """
    max_new_tokens stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty
    presence_penalty repetition_penalty min_new_tokens n beam_width json_schema regex ebnf structural_tag ignore_eos
    skip_special_tokens spaces_between_special_tokens no_stop_trim stream_interval logit_bias sampling_seed
    custom_params watermark stop_strs stop_regex_strs stop_str_max_len stop_regex_max_len is_normalized
    ebnf_full_assistant
    """
    tree = ast.parse(inspect.getsource(SamplingParams))
    (cls,) = tree.body
    assert isinstance(cls, ast.ClassDef)
    fields = [n.target.id for n in cls.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
    assert fields == known.split()
