"""Prompts of 6,000 tokens and more: read in chunks beside running streams, which keep a stated pace."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest

from tests.support import arms, pair
from tests.support.server import ServerProcess, concurrently

pytestmark = pytest.mark.server
# The pair learned 2,048 positions; further ones make its answers no better, but what is compared here is exactness.
CONTEXT, CHUNK, LONG_PROMPT = 8192, 256, 6000


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serve the pair with room for 8,192 tokens."""
    pytest.importorskip("sglang")
    flags = ["--model-path", str(pair.TARGET), "--speculative-draft-model-path", str(pair.DRAFT), "--dtype", "float32"]
    positions = json.dumps({"max_position_embeddings": CONTEXT})
    flags += ["--context-length", str(CONTEXT), "--json-model-override-args", positions]
    flags += ["--chunked-prefill-size", str(CHUNK), "--max-total-tokens", "32768"]
    flags += ["--step-time-profile", "off", "--sleep-on-idle"]
    with ServerProcess(flags, tmp_path_factory.mktemp("long") / "log").serving() as server:
        yield server


def test_lengths_from_1_to_8000_together_are_as_alone(long: ServerProcess) -> None:
    requests = {
        f"{n}": pair.generate(pair.text(n, 13 * i), ignore_eos=True, max_new_tokens=24)
        for i, n in enumerate((1, 2, 63, 64, 255, 256, 257, 1000, 2500, 6000, 8000))
    }
    long.flush_cache()
    together = arms.answer_all(long, requests, len(requests))
    long.flush_cache()
    alone = arms.answer_all(long, requests, 1)
    for name in requests:
        assert together[name]["output_ids"] == alone[name]["output_ids"], name


def test_a_step_of_every_stream_between_two_chunks(long: ServerProcess) -> None:
    """The bound of docs/api.md: a prompt of n chunks delays a running stream by a chunk at a time, not by n."""
    lengths = [0] * 4
    begun = threading.Barrier(len(lengths) + 1)
    chunks = LONG_PROMPT // CHUNK

    def stream(place: int) -> None:
        request = pair.generate(pair.prompts()[place], ignore_eos=True, max_new_tokens=1500)
        waiting = True
        for event in long.stream(*request):
            lengths[place] = len(event["output_ids"])
            if waiting and lengths[place] > 8:
                begun.wait()
                waiting = False

    def late(_: int) -> list[int]:
        begun.wait()
        request = pair.generate(pair.text(LONG_PROMPT, 5000), max_new_tokens=8, ignore_eos=True)
        before = list(lengths)
        next(iter(long.stream(*request)))
        return [now - earlier for now, earlier in zip(lengths, before, strict=True)]

    long.flush_cache()
    jobs = [(stream, place) for place in range(len(lengths))]
    *_, gained = concurrently(lambda job: job[0](job[1]), [*jobs, (late, 0)], len(jobs) + 1)
    # A step brings a token or more; the first and the last chunk may have company.
    assert min(gained) >= chunks - 2, gained
