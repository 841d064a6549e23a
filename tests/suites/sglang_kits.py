"""SGLang's own kits of server tests; runs in this project's environment, against SUITE_SERVER_URL.

What they ask under a grammar gets SUITE_LOGIT_BIAS, which lets a toy close what the grammar made it open.
"""

from __future__ import annotations

import json
import os
import unittest
from functools import cached_property
from typing import Any

import openai
import psutil
import requests
from openai.resources.chat import Completions
from sglang.test.kits.abort_timeout_kit import AbortAllMixin
from sglang.test.kits.basic_api_contract_kit import BasicAPIContractMixin
from sglang.test.kits.basic_decode_correctness_kit import BasicDecodeCorrectnessMixin
from sglang.test.kits.basic_scheduler_stress_kit import BasicSchedulerStressMixin
from sglang.test.kits.ebnf_constrained_kit import EBNFConstrainedMixin
from sglang.test.kits.json_constrained_kit import JSONConstrainedMixin
from sglang.test.kits.json_mode_kit import JSONModeMixin
from sglang.test.kits.matched_stop_kit import MatchedStopMixin
from sglang.test.kits.prefix_cache_branching_kit import PrefixCacheBranchingMixin
from sglang.test.kits.regex_constrained_kit import RegexConstrainedMixin
from sglang.test.kits.spec_server_kits import SpecGrammarKit, SpecLogprobKit, SpecPenaltyKit

BIAS = json.loads(os.environ["SUITE_LOGIT_BIAS"])
GRAMMARS = {"json_schema", "regex", "ebnf"}
post, create = requests.post, Completions.create


def post_biased(url: str, **given: Any) -> requests.Response:
    """Post, with the bias where the sampling parameters have a grammar."""
    sampling = given.get("json", {}).get("sampling_params")
    if isinstance(sampling, dict) and GRAMMARS & set(sampling):
        given["json"]["sampling_params"] = {"logit_bias": BIAS, **sampling}
    return post(url, **given)


def create_biased(self: Completions, **given: Any) -> Any:
    """Ask for a chat completion, with the bias where it has a format."""
    return create(self, **({"logit_bias": BIAS} if "response_format" in given else {}), **given)


requests.post, Completions.create = post_biased, create_biased


class Server:
    """The server that runs already, as the kits know one that they started."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def poll(self) -> int | None:
        """Give None while it runs."""
        return None if psutil.pid_exists(self._pid) else 1


class Served(unittest.TestCase):
    """What the kits expect of the class that they are mixed into."""

    base_url = os.environ["SUITE_SERVER_URL"]
    process = Server(int(os.environ["SUITE_SERVER_PID"]))
    model = "default"
    cache_chunk_size = 64

    @cached_property
    def client(self) -> openai.Client:
        """OpenAI's client of this server."""
        return openai.Client(base_url=f"{self.base_url}/v1", api_key="x", max_retries=0)

    @classmethod
    def flush_cache(cls) -> None:
        """Empty the prefix cache."""
        requests.post(f"{cls.base_url}/flush_cache", timeout=60).raise_for_status()

    def run_decode(self, sampling: dict[str, object]) -> None:
        """Ask under the given settings."""
        payload = {"text": "Human: Write a travel blog post to Hawaii.\n\nAssistant:"}
        limits = {"temperature": 0.7, "max_new_tokens": 48, "n": 1, **sampling}
        response = requests.post(f"{self.base_url}/generate", json={**payload, "sampling_params": limits}, timeout=60)
        assert response.status_code == 200, response.text


class TestApiContract(BasicAPIContractMixin, Served): ...


class TestDecodeCorrectness(BasicDecodeCorrectnessMixin, Served): ...


class TestStress(BasicSchedulerStressMixin, Served): ...


class TestMatchedStop(MatchedStopMixin, Served): ...


class TestPrefixCache(PrefixCacheBranchingMixin, Served): ...


class TestRegex(RegexConstrainedMixin, Served): ...


class TestEbnf(EBNFConstrainedMixin, Served): ...


class TestJson(JSONConstrainedMixin, Served): ...


class TestJsonMode(JSONModeMixin, Served): ...


class TestGrammar(SpecGrammarKit, Served): ...


class TestLogprobs(SpecLogprobKit, Served): ...


class TestPenalties(SpecPenaltyKit, Served): ...


class TestAbort(AbortAllMixin, Served):
    # As many tokens as the context has room for.
    abort_all_max_new_tokens = 1900
