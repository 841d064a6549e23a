"""What penalties, grammars and seeds cost: the same answers with and without them, in alternation on one server.

    python tools/bench_adjusted.py --concurrency 8 --rounds 5

Settings are neutral (a penalty of 1e-9, a grammar that allows everything), so that greedy answers and with them drafts
and acceptance stay what they are, and all that differs is the work. Prints a table of medians and spreads.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sgl_dspark.data.prompt_set import load_prompts
from tests.support.server import ServerProcess, concurrently

ARMS: dict[str, dict[str, Any]] = {
    "none": {},
    "penalties": {"frequency_penalty": 1e-9, "presence_penalty": 1e-9, "repetition_penalty": 1.000000001},
    "grammar": {"regex": "[\\s\\S]*"},
    "bias and least length": {"logit_bias": {"5": 1e-9}, "min_tokens": 8},
    "all": {
        "frequency_penalty": 1e-9, "repetition_penalty": 1.000000001, "regex": "[\\s\\S]*", "logit_bias": {"5": 1e-9},
    },
}  # fmt: skip


def tok_s(server: ServerProcess, messages: list[Any], settings: dict[str, Any], args: Any) -> float:
    """Measure one arm once: tokens of all answers over the time that they took together."""

    def ask(prompt: Any) -> int:
        body = {"model": "default", "messages": list(prompt.messages), "temperature": 0, "max_tokens": args.tokens}
        return int(
            server.ask("/v1/chat/completions", {**body, "ignore_eos": True, **settings})["usage"]["completion_tokens"]
        )

    started = time.perf_counter()
    tokens = sum(concurrently(ask, messages, args.concurrency))
    return tokens / (time.perf_counter() - started)


def main() -> int:
    """Measure all arms in alternation."""
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=24, help="a round asks these once in every arm")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("flags", nargs="*", help="of the server, after --; without any the demo pair is served")
    args = parser.parse_args()
    prompts = load_prompts(None)[: args.prompts]
    log = Path(tempfile.mkdtemp(prefix="dspark-bench-")) / "log"
    server = ServerProcess(args.flags, log)
    server.start()
    found: dict[str, list[float]] = {name: [] for name in ARMS}
    try:
        for settings in ARMS.values():
            tok_s(server, prompts[: args.concurrency], settings, args)
        for turn in range(args.rounds):
            names = list(ARMS)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                found[name].append(tok_s(server, prompts, ARMS[name], args))
        server.stop()
    finally:
        server.kill()
    base = found["none"]
    print("| settings | tok/s (range) | against none, median of rounds (range) |\n|---|---|---|")
    for name, rates in found.items():
        ratios = [rate / other for rate, other in zip(rates, base, strict=True)]
        print(
            f"| {name} | {statistics.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f}) "
            f"| {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}) |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
