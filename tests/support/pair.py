"""The fixture pair and the requests that tests send to its server."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "pair"
TARGET, DRAFT = FOLDER / "target", FOLDER / "draft"

CONTEXT_LENGTH = 512
# Small enough that prompts arrive in chunks, and that a burst of long answers does not fit at once.
PREFILL_CHUNK, KV_TOKENS = 64, 6144
SERVER_FLAGS = [
    *("--model-path", str(TARGET), "--dtype", "float32", "--context-length", str(CONTEXT_LENGTH)),
    *("--chunked-prefill-size", str(PREFILL_CHUNK), "--max-total-tokens", str(KV_TOKENS)),
    *("--schedule-conservativeness", "0.2"),
    "--enable-custom-logit-processor",
    # Counters that load tests compare theirs with.
    "--enable-metrics",
    # An idle scheduler otherwise keeps a core busy, which the tests need for their own arithmetic.
    "--sleep-on-idle",
]
# Of a request's future tokens the scheduler counts no more than this when it admits it: with the flag above, a burst of
# long answers is let in at once, and requests have to be taken back out.
SERVER_ENVIRONMENT = {"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "32"}
NUM_PROMPTS = 200
# Far from the seeds of the pair's own training and held-out prompts.
PROMPT_SEED = 3_000_000


class Request(NamedTuple):
    """An endpoint and the JSON that goes to it."""

    path: str
    payload: dict[str, Any]


@cache
def tokenizer() -> Any:
    """Load the pair's tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TARGET)


@cache
def questions(count: int) -> list[str]:
    """Give ``count`` questions of the pair's own kind."""
    from sgl_dspark.demo.fixture_text import conversations

    return [question for question, _ in conversations(PROMPT_SEED, count)]


@cache
def prompts(count: int = NUM_PROMPTS) -> list[list[int]]:
    """Give the token ids of ``count`` chat prompts."""
    from sgl_dspark.demo.fixture_target import chat_text

    return [tokenizer().encode(chat_text(question, None)) for question in questions(count)]


def text(tokens: int, start: int = 0) -> list[int]:
    """Give the ids of ``tokens`` tokens of questions, from the first again where they end."""
    flat = [token for prompt in prompts() for token in prompt]
    return (flat * (1 + (start + tokens) // len(flat)))[start : start + tokens]


def generate(prompt: list[int], **sampling: Any) -> Request:
    """Ask ``/generate`` for a greedy answer of 64 tokens, unless ``sampling`` says otherwise."""
    return Request(
        "/generate", {"input_ids": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 64, **sampling}}
    )


def chat(question: str, **parameters: Any) -> Request:
    """Ask ``/v1/chat/completions`` for a greedy answer of 64 tokens, unless ``parameters`` say otherwise."""
    messages = [{"role": "user", "content": question}]
    return Request(
        "/v1/chat/completions",
        {"model": "default", "messages": messages, "temperature": 0, "max_tokens": 64, **parameters},
    )
