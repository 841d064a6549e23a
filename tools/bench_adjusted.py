"""What penalties, grammars and seeds cost: the same answers with and without them, in alternation on one server.

    python tools/bench_adjusted.py --concurrency 8 --rounds 5

Settings are neutral (a penalty of 1e-9, a grammar that allows everything), so that greedy answers and with them drafts
and acceptance stay what they are, and all that differs is the work. An end of text ends an answer in a grammar even
where it is to be ignored: prompts are asked in every arm first, and those with a shorter answer are left out. Prints a
table of medians and spreads, and how many answers had another text than without settings (in bf16 rounding depends on
who shares a step).
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sgl_dspark.data.prompt_set import Prompt, load_prompts
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


def answers(server: ServerProcess, prompts: Sequence[Prompt], settings: dict[str, Any], args: Any) -> list[Any]:
    """Ask all prompts at the benchmark's concurrency; give (tokens, text) of each."""

    def ask(prompt: Prompt) -> tuple[int, str]:
        body = {"model": "default", "messages": list(prompt.messages), "temperature": 0, "max_tokens": args.tokens}
        answer = server.ask("/v1/chat/completions", {**body, "ignore_eos": True, **settings})
        return int(answer["usage"]["completion_tokens"]), answer["choices"][0]["message"]["content"]

    return concurrently(ask, prompts, args.concurrency)


def comparable(server: ServerProcess, args: Any) -> list[tuple[Prompt, str]]:
    """Find prompts that every arm answers at full length, with their texts; warms everything up."""
    prompts = load_prompts(None)
    by_arm = [answers(server, prompts, settings, args) for settings in ARMS.values()]
    found = [
        (prompt, every[0][1])
        for prompt, *every in zip(prompts, *by_arm, strict=True)
        if all(tokens == args.tokens for tokens, _ in every)
    ]
    if len(found) < args.concurrency:
        raise SystemExit(
            f"only {len(found)} of {len(prompts)} prompts are answered at full length; ask for less --tokens"
        )
    return found[: args.prompts]


def measure(
    server: ServerProcess, right: list[tuple[Prompt, str]], settings: dict[str, Any], args: Any
) -> tuple[float, int]:
    """Measure one arm once: tokens of all answers over the time that they took together, and other texts."""
    started = time.perf_counter()
    found = answers(server, [prompt for prompt, _ in right], settings, args)
    taken = time.perf_counter() - started
    if any(tokens != args.tokens for tokens, _ in found):
        raise SystemExit(f"with {settings} an answer ended early this time: its rate would not compare")
    others = sum(text != before for (_, text), (_, before) in zip(found, right, strict=True))
    return args.tokens * len(found) / taken, others


def main() -> int:
    """Measure all arms in alternation."""
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=24, help="a round asks at most so many once in every arm")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("flags", nargs="*", help="of the server, after --; without any the demo pair is served")
    args = parser.parse_args()
    log = Path(tempfile.mkdtemp(prefix="dspark-bench-")) / "log"
    server = ServerProcess(args.flags, log)
    server.start()
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in ARMS}
    try:
        right = comparable(server, args)
        for turn in range(args.rounds):
            names = list(ARMS)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                found[name].append(measure(server, right, ARMS[name], args))
        server.stop()
    finally:
        server.kill()
    base = [rate for rate, _ in found["none"]]
    print(f"{len(right)} prompts, {args.tokens} tokens each, {args.rounds} rounds\n")
    print("| settings | tok/s (range) | against none, median of rounds (range) | other texts |\n|---|---|---|---|")
    for name, measured in found.items():
        rates = [rate for rate, _ in measured]
        ratios = [rate / other for rate, other in zip(rates, base, strict=True)]
        others = sum(other for _, other in measured)
        print(
            f"| {name} | {statistics.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f}) "
            f"| {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}) "
            f"| {others} of {len(right) * len(rates)} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
