"""Contexts of 2,000 tokens: shared prefixes, prefill beside running streams, all lengths together; and reasoning."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import arms, pair
from tests.support.server import ServerProcess, concurrently

pytestmark = pytest.mark.server
CONTEXT, CHUNK = 2048, 128


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serve the pair with its longest context and a reasoning parser."""
    pytest.importorskip("sglang")
    folder = tmp_path_factory.mktemp("long")
    flags = ["--model-path", str(pair.TARGET), "--speculative-draft-model-path", str(pair.DRAFT), "--dtype", "float32"]
    flags += ["--context-length", str(CONTEXT), "--chunked-prefill-size", str(CHUNK), "--max-total-tokens", "16384"]
    flags += ["--step-time-profile", "off", "--sleep-on-idle", "--reasoning-parser", "qwen3"]
    with ServerProcess(flags, folder / "log").serving() as server:
        yield server


def test_a_cached_prefix_of_1900_tokens_is_as_good_as_a_cold_one(long: ServerProcess) -> None:
    """The draft's own context over the prefix: rounds of the second request are those of a cold one."""
    # Whole blocks: what is verified otherwise follows what was learned meanwhile.
    long.ask("/dspark/policy", {"policy": "static"})
    prefix = pair.text(1900)
    requests = [pair.generate([*prefix, *pair.prompts()[i][-20:]], ignore_eos=True) for i in range(4)]
    cold = []
    for request in requests:
        long.flush_cache()
        cold.append(long.ask(*request))
    warm = [long.ask(*request) for request in requests]
    long.ask("/dspark/policy", {"policy": "adaptive"})
    for one, other in zip(cold, warm, strict=True):
        assert one["output_ids"] == other["output_ids"]
        assert one["meta_info"]["spec_verify_ct"] == other["meta_info"]["spec_verify_ct"]
    assert all(answer["meta_info"]["cached_tokens"] >= len(prefix) for answer in warm[:-1])


def test_lengths_from_1_to_1900_together_are_as_alone(long: ServerProcess) -> None:
    requests = {
        f"{n}": pair.generate(pair.text(n, 13 * i), ignore_eos=True, max_new_tokens=24)
        for i, n in enumerate((1, 2, 7, 64, 127, 128, 129, 300, 777, 1024, 1500, 1900))
    }
    long.flush_cache()
    together = arms.answer_all(long, requests, len(requests))
    long.flush_cache()
    alone = arms.answer_all(long, requests, 1)
    for name in requests:
        assert together[name]["output_ids"] == alone[name]["output_ids"], name


def test_streams_go_on_while_a_long_prompt_is_read(long: ServerProcess) -> None:
    """Each is as long as if nobody had come, and the long prompt's reader is answered among them."""
    short = [pair.generate(pair.prompts()[i], ignore_eos=True, max_new_tokens=200) for i in range(4)]
    alone = [long.ask(*request)["output_ids"] for request in short]
    begun = threading.Barrier(len(short) + 1)

    def stream(request: pair.Request) -> list[int]:
        last: dict[str, Any] = {}
        for count, event in enumerate(long.stream(*request)):
            if count == 3:
                begun.wait()
            last = event
        return list(last["output_ids"])

    def late(_: None) -> list[int]:
        begun.wait()
        return list(long.ask(*pair.generate(pair.text(1900, 5000), max_new_tokens=8, ignore_eos=True))["output_ids"])

    long.flush_cache()
    results = concurrently(lambda job: job[0](job[1]), [*((stream, r) for r in short), (late, None)], 5)
    assert results[:-1] == alone
    assert len(results[-1]) == 8


@pytest.mark.parametrize("policy", ["adaptive", "static"])
def test_reasoning_is_never_longer_than_the_answer(long: ServerProcess, policy: str) -> None:
    """The model never closes its reasoning, so every token counts, and none that the end cut off."""
    questions = pair.questions(40)
    requests = {
        f"{limit} {i}": pair.chat(questions[i], max_tokens=limit, ignore_eos=i % 2 == 0)
        for limit in (3, 5, 6, 7, 11, 64)
        for i in range(0, 40, 8)
    }
    long.ask("/dspark/policy", {"policy": policy})
    try:
        answers = arms.answer_all(long, requests, 8)
    finally:
        long.ask("/dspark/policy", {"policy": "adaptive"})
    for name, answer in answers.items():
        usage = answer["usage"]
        reasoning = usage.get("reasoning_tokens") or usage["completion_tokens_details"]["reasoning_tokens"]
        assert 0 < reasoning <= usage["completion_tokens"], (name, usage)
