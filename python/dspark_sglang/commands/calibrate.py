"""Fit a draft's confidence to what its target accepts, from answers of its own or from a server's traffic."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

HELP = "fit a draft's confidence to what its target accepts; writes calibration.json beside the draft"
EPILOG = """examples:
  dspark calibrate                                    the demo pair and the built-in prompts
  dspark calibrate --target TARGET --draft DRAFT --prompts prompts.jsonl --plot reliability.png
  dspark calibrate --url http://127.0.0.1:30000 --draft DRAFT            what the server has recorded
  dspark calibrate --url http://127.0.0.1:30000 --draft DRAFT --rounds 20000 --wait 600

While it collects, the server verifies whole blocks, so that every slot is observed; its policy is restored afterwards.
Greedy (temperature 0) and sampled requests are calibrated apart. If the server has an admin key, put it into the
environment as DSPARK_ADMIN_KEY, and its API key, if it has both, as DSPARK_API_KEY."""


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def _numbers(text: str) -> list[float]:
    return [_number(part.strip()) for part in text.split(",")]


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise ArgumentTypeError(f"{text!r} is not a URL such as http://127.0.0.1:30000")
    return text.rstrip("/").removesuffix("/v1")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``dspark calibrate``."""
    what = parser.add_argument_group("what is calibrated")
    what.add_argument("--target", metavar="PATH", help="target model (default: the demo target)")
    what.add_argument("--draft", type=Path, metavar="PATH", help="its draft (default: the demo draft)")
    what.add_argument("--url", type=_url, help="collect from a server that runs already; needs --draft")
    what.add_argument("--startup-timeout", type=_count, default=900, metavar="S", help="default: 900")
    what.add_argument("server_flags", nargs="*", metavar="-- FLAGS", help="further flags of dspark serve")

    asked = parser.add_argument_group("what is collected")
    asked.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help='JSON lines: "prompt", "turns" or "messages" (default: built in; with --url: the users\' requests)',
    )
    asked.add_argument("--limit", type=_count, metavar="N", help="only so many prompts")
    asked.add_argument("--temperatures", type=_numbers, default=[0.0, 0.7], metavar="LIST", help="default: 0,0.7")
    asked.add_argument("--concurrency", type=_count, default=8, metavar="N", help="requests at a time (default: 8)")
    asked.add_argument("--max-tokens", type=_count, default=256, metavar="N", help="longest answer (default: 256)")
    asked.add_argument("--seed", type=int, default=0, metavar="N", help="order of the prompts (default: 0)")
    asked.add_argument("--timeout", type=_count, default=600, metavar="S", help="for one request (default: 600)")
    asked.add_argument("--rounds", type=_count, default=20_000, metavar="N", help="of --url, wanted (default: 20000)")
    asked.add_argument("--wait", type=_number, default=0.0, metavar="S", help="of --url, longest wait for them (0)")

    result = parser.add_argument_group("what is fitted and written")
    result.add_argument("--held-out", type=_number, default=0.3, metavar="SHARE", help="to judge by (default: 0.3)")
    result.add_argument(
        "--method",
        choices=("auto", "sts", "affine"),
        default="auto",
        help="temperatures as in the paper, with an intercept per slot, or whichever is better (default)",
    )
    result.add_argument("--out", type=Path, metavar="FILE", help="default: calibration.json beside the draft")
    result.add_argument("--plot", type=Path, metavar="PNG", help="draw reliability diagrams")
    result.add_argument("--records", type=Path, metavar="NPZ", help="keep the collected rounds")


def run(args: Namespace) -> int:
    """Collect, fit and store; returns 0."""
    from dspark_sglang.calibrate import main

    return main.run(args)
