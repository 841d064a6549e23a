"""Show what a decode step costs at every number of verify tokens."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

HELP = "what a step costs at each number of verify tokens, measured by the server: table and plot"
EPILOG = """examples:
  dspark profile                                      start the demo pair, measure, print
  dspark profile --url http://127.0.0.1:30000         of a running server, corrected by what it has served
  dspark profile --file PROFILE.json --plot step-times.png
  dspark profile --target TARGET --draft DRAFT -- --dtype float32

The server measures by itself at every start (or reads the profile it wrote before, if nothing has changed); this
command shows the result. Gains assume the same acceptance for every draft, see --acceptance; serving decides by the
confidence of each."""


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _counts(text: str) -> list[int]:
    return sorted({_count(part.strip()) for part in text.split(",")})


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise ArgumentTypeError(f"{text!r} is not a number above 0 and at most 1")
    return value


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``dspark profile``."""
    what = parser.add_argument_group("whose step times")
    what.add_argument("--url", help="of a running server")
    what.add_argument("--file", type=Path, metavar="JSON", help="of a stored profile")
    what.add_argument("--target", metavar="PATH", help="target model to start (default: the demo target)")
    what.add_argument("--draft", metavar="PATH", help="its draft (default: the demo draft)")
    what.add_argument("--startup-timeout", type=_count, default=900, metavar="S", help="default: 900")
    what.add_argument("server_flags", nargs="*", metavar="-- FLAGS", help="further flags of dspark serve")
    shown = parser.add_argument_group("what is shown")
    shown.add_argument("--requests", type=_counts, default=[1, 2, 4, 8, 16, 32], metavar="LIST", help="1,2,4,8,16,32")
    shown.add_argument("--context", type=_count, default=256, metavar="TOK", help="of each request (default: 256)")
    shown.add_argument("--acceptance", type=_share, default=0.7, metavar="P", help="of a draft (default: 0.7)")
    shown.add_argument("--plot", type=Path, metavar="PNG", help="draw it")
    shown.add_argument("--json", type=Path, metavar="FILE", help="write the model")


def run(args: Namespace) -> int:
    """Print, and draw if asked; returns 0."""
    from dspark_sglang.step_time_profile import show

    show(args)
    return 0
