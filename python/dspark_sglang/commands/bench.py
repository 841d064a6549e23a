"""Measure tokens per second, tokens per second per user and accept length, with and without DSpark."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any

HELP = "same prompts with and without DSpark, alternating: tok/s, tok/s/user, accept length, spread"
EPILOG = """examples:
  dspark bench                                        the demo pair: 2 rounds at concurrency 1, 4 and 16
  dspark bench --concurrency 1 --rounds 4 --ignore-eos --json result.json
  dspark bench --target TARGET --draft DRAFT --prompts mt-bench.jsonl -- --dtype float32
  dspark bench --policies adaptive,static:1,static:3,static:7 --concurrency 1,2,4,8,16,32
  dspark bench planner                                times the planner against SGLang's; serves nothing
  dspark bench metrics                                times what metrics add to a step; serves nothing
  dspark bench --url plain=http://127.0.0.1:30000 --url dspark=http://127.0.0.1:30001

It starts one server at a time, plain, DSpark, DSpark, plain, ..., on a free port, with OMP_NUM_THREADS=1 unless set,
and ends it again. Ratios are taken within a round. Ctrl-C prints what was measured so far."""


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _levels(text: str) -> list[int]:
    levels = list(dict.fromkeys(_count(part.strip()) for part in text.split(",")))
    return sorted(levels)


def _not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def _share(text: str) -> float:
    value = _not_negative(text)
    if value >= 1:
        raise ArgumentTypeError(f"{text!r} is not below 1")
    return value


def _policies(text: str) -> list[Any]:
    from sgl_dspark.comparison import parse_policies

    try:
        return parse_policies(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ArgumentTypeError("not a JSON object")
    return value


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``dspark bench``."""
    _add_served(parser)
    _add_asked(parser)
    output = parser.add_argument_group("what is reported")
    output.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    output.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw throughput and verify length against concurrency (.png, .svg)"
    )
    output.add_argument("--markdown", action="store_true", help="print the table as Markdown")


def _add_served(parser: ArgumentParser) -> None:
    what = parser.add_argument_group("what is served")
    what.add_argument("--target", metavar="PATH", help="target model (default: the demo target)")
    what.add_argument("--draft", metavar="PATH", help="its draft (default: the demo draft)")
    what.add_argument(
        "--url", action="append", default=[], metavar="NAME=URL", help="measure a server that runs already; repeatable"
    )
    what.add_argument("--pin", default="auto", metavar="SERVER:CLIENT", help="cores such as 0:1, or auto, or none")
    what.add_argument("--startup-timeout", type=_count, default=900, metavar="S", help="default: 900")
    what.add_argument("--logs", type=Path, metavar="DIR", help="keep the servers' logs there")
    what.add_argument(
        "--metrics-overhead", action="store_true", help="DSpark without its metrics against DSpark with them"
    )
    what.add_argument("server_flags", nargs="*", metavar="-- FLAGS", help="further flags of dspark serve, for both")

    policies = parser.add_argument_group("policies, compared on one DSpark server beside the plain one")
    policies.add_argument(
        "--policies",
        type=_policies,
        default=[],
        metavar="LIST",
        help="of adaptive, static:DRAFTS, threshold:CONFIDENCE, early-stop; switched by POST /dspark/policy",
    )
    policies.add_argument("--no-plain", action="store_true", help="without the plain server; the first is the baseline")


def _add_asked(parser: ArgumentParser) -> None:
    load = parser.add_argument_group("what is asked")
    load.add_argument("--concurrency", type=_levels, default=[1, 4, 16], metavar="LIST", help="default: 1,4,16")
    load.add_argument("--rounds", type=_count, default=2, metavar="N", help="turns of each server (default: 2)")
    load.add_argument(
        "--requests", type=_count, default=16, metavar="N", help="least number of requests per level (default: 16)"
    )
    load.add_argument(
        "--waves",
        type=_count,
        default=4,
        metavar="N",
        help="least number of requests per client (default: 4); clients idle while the last wave ends, 8 for a sweep",
    )
    load.add_argument("--max-tokens", type=_count, default=128, metavar="N", help="longest answer (default: 128)")
    load.add_argument(
        "--length-spread",
        type=_share,
        default=0.5,
        metavar="SHARE",
        help="limits of the answers lie evenly between (1 - SHARE) of --max-tokens and all of it (default: 0.5); at 0 "
        "answers end together and share prefills, as those of real clients do not",
    )
    load.add_argument("--temperature", type=_not_negative, default=0.0, metavar="T", help="default: 0, greedy")
    load.add_argument("--ignore-eos", action="store_true", help="every answer runs to its limit")
    load.add_argument("--prompts", type=Path, metavar="FILE", help='JSON lines: "prompt", "turns" or "messages"')
    load.add_argument(
        "--category", action="append", default=[], metavar="NAME", help="only these (built in: maths, code, chat)"
    )
    load.add_argument("--seed", type=int, default=0, metavar="N", help="order of the prompts (default: 0)")
    load.add_argument("--body", type=_object, default={}, metavar="JSON", help="further fields of each request")
    load.add_argument("--timeout", type=_count, default=600, metavar="S", help="for one request (default: 600)")


def run(args: Namespace) -> int:
    """Measure and report; 0 when complete, 130 after Ctrl-C, with what was measured until then."""
    from dspark_sglang.bench import main

    return main.run(args)
