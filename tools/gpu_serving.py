"""Serve one pair by each worker in turn and compare: the target alone, SGLang's own DSPARK worker, and ours.

    python tools/gpu_serving.py --out DIR [--target PATH --draft PATH] [-- FLAGS of dspark serve, for all]

Without a pair the tests' fixture is made wide enough for FlashInfer (heads of 64), in bf16. Writes tokens a second,
accept length and their spread over the rounds, and what our server's step-time model was off by. A worker that cannot
serve is reported with its error, beside the others' figures; the status is then 1.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import urllib.request
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dspark_sglang.bench.arms import DSPARK_COMMAND
from dspark_sglang.bench.client import RequestSettings
from dspark_sglang.bench.report import markdown, rows, summarise
from dspark_sglang.bench.session import Plan, Run, run_session
from dspark_sglang.selection import OURS, UPSTREAM, WORKER_VARIABLE
from sgl_dspark.comparison import DSPARK_ONLY, without_flags
from sgl_dspark.data.prompt_set import load_prompts, order_prompts
from sgl_dspark.errors import DsparkError
from sgl_dspark.server_process import PLAIN, ServerArm

# What SGLang would choose on a recent device is not installed everywhere.
OTHERS_BACKEND = ("--attention-backend", "flashinfer")


@dataclass
class ReadArm(ServerArm):
    """A server whose scheduling state is read before it ends, where it has one."""

    states: list[dict[str, Any]] = field(default_factory=list)

    @contextlib.contextmanager
    def open(self) -> Iterator[str]:
        """Serve, as `ServerArm` does."""
        with super().open() as url:
            yield url
            if self.name == OURS:
                with urllib.request.urlopen(f"{url}/dspark/state", timeout=60) as reply:
                    self.states.append(json.load(reply))


def compose(target: str, draft: str, flags: Sequence[str], logs: Path, startup_s: float = 300.0) -> list[ReadArm]:
    """Give the three servers, all else equal but for the attention backend, which ours brings along."""
    serve = [*DSPARK_COMMAND, "serve"]
    pair = ["--model-path", target, "--speculative-draft-model-path", draft]
    plain = [*serve, "--plain", "--model-path", target, *OTHERS_BACKEND, *without_flags(flags, DSPARK_ONLY)]
    upstream = [*serve, *pair, *OTHERS_BACKEND, *flags]
    return [
        ReadArm(PLAIN, plain, logs, startup_s=startup_s),
        ReadArm(UPSTREAM, upstream, logs, environment={WORKER_VARIABLE: UPSTREAM}, startup_s=startup_s),
        ReadArm(OURS, [*serve, *pair, *flags], logs, environment={WORKER_VARIABLE: OURS}, startup_s=startup_s),
    ]


def compare(arms: Sequence[ReadArm], plan: Plan) -> tuple[list[Run], dict[str, str]]:
    """Measure round by round; returns the runs, and why an arm has none or no more."""
    runs: list[Run] = []
    failed: dict[str, str] = {}
    single = Plan(plan.prompts, plan.concurrency, 1, plan.requests, plan.settings)
    for turn in range(plan.rounds):
        for arm in arms if turn % 2 == 0 else list(reversed(arms)):
            if arm.name in failed:
                continue
            try:
                run_session([arm], single, runs, log=lambda line: print(line, file=sys.stderr))
            except DsparkError as error:
                failed[arm.name] = str(error)
    return runs, failed


def step_time_rows(states: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Lay out how far the step-time model was off, of each start of our server."""
    found = [["start", "steps timed", "predicted / measured", "median error of a step", "mean verify length"]]
    for number, state in enumerate(states, start=1):
        totals = state["totals"]
        ratio = totals["predicted_s"] / totals["predicted_actual_s"] if totals["predicted_actual_s"] else None
        numbers = (ratio, state["predicted"]["step_time_error"], state["mean_verify_len"])
        found.append([str(number), str(totals["timed_steps"]), *("-" if n is None else f"{n:.3f}" for n in numbers)])
    return found


def page(arms: Sequence[ReadArm], runs: Sequence[Run], failed: dict[str, str]) -> str:
    """Write what was measured."""
    names = [arm.name for arm in arms if any(run.arm == arm.name for run in runs)]
    states = [state for arm in arms for state in arm.states]
    parts = ["# Workers side by side", "`python tools/gpu_serving.py`; the first arm is what ratios are of."]
    if names:
        parts.append(markdown(rows(summarise(runs, names), names, same_text=False)))
    if states:
        parts.append("Step-time model of ours, against the steps that were served:")
        parts.append(markdown(step_time_rows(states)))
    parts += [f"{name} did not serve: {why}" for name, why in failed.items()]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; 1 if a worker did not serve."""
    args = parsed(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        target, draft = args.target, args.draft
        if target is None:
            sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
            from tests.support.wide_pair import make_wide_pair

            target, draft = (str(path) for path in make_wide_pair(Path(folder)))
        prompts = order_prompts(load_prompts(None, []), 0)
        plan = Plan(prompts, args.concurrency, args.rounds, args.requests, RequestSettings(args.max_tokens, 0.0, True))
        arms = compose(target, draft, args.flags, args.out)
        runs, failed = compare(arms, plan)
    text = page(arms, runs, failed)
    (args.out / "workers.md").write_text(text)
    print(text)
    return 1 if failed else 0


def parsed(arguments: Sequence[str] | None) -> Namespace:
    """Read the command line."""
    parser = ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for workers.md and the servers' logs")
    parser.add_argument("--target", metavar="PATH")
    parser.add_argument("--draft", metavar="PATH")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16, 64], metavar="N")
    parser.add_argument("--rounds", type=int, default=2, metavar="N")
    parser.add_argument("--requests", type=int, default=32, metavar="N")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N")
    parser.add_argument("flags", nargs="*", metavar="-- FLAGS", help="further flags of dspark serve, for all")
    args = parser.parse_args(arguments)
    if (args.target is None) != (args.draft is None):
        parser.error("--target and --draft go together")
    return args


if __name__ == "__main__":
    sys.exit(main())
