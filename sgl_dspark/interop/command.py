"""Convert a draft between layouts: the released one (deepspec), speculators', and, for reading, ModelOpt's.

What a layout cannot say is refused by field. Also: fewer slots per block, and a smaller draft vocabulary.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

HELP = "convert a draft between layouts, limit its vocabulary"
EPILOG = """examples:
  dspark convert DRAFT OUT --to speculators --target TARGET
  dspark convert SPECULATORS_DRAFT OUT --target TARGET
  dspark convert runs/draft/draft OUT --draft-vocabulary runs/cache --least 3
  dspark convert DRAFT OUT --block-size 4"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("source", type=Path, help="draft folder, in any known layout")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--to", choices=("deepspec", "speculators"), default="deepspec", help="layout to write")
    parser.add_argument("--target", type=Path, default=None, help="the draft's target: fills in and checks")
    parser.add_argument("--verifier", default="", help="target's name in a speculators config; the folder's if unset")
    parser.add_argument("--with-embeddings", action="store_true", help="store the target's embedding and head as well")
    parser.add_argument("--sample-from-anchor", action="store_true", help="a speculators draft that does not say so is")
    parser.add_argument("--block-size", type=int, default=None, help="slots per block, at most what was trained")
    parser.add_argument(
        "--draft-vocabulary", type=Path, nargs="+", default=[], metavar="CACHE", help="propose only tokens used here"
    )
    parser.add_argument("--least", type=int, default=3, help="occurrences that count as used (default: %(default)s)")


def run(args: Namespace) -> int:
    """Convert; returns 0."""
    from sgl_dspark.errors import ConfigError
    from sgl_dspark.interop.convert import convert

    if args.with_embeddings and args.target is None:
        raise ConfigError("--with-embeddings needs --target, which has them")
    if args.with_embeddings and args.to == "speculators":
        raise ConfigError("the speculators layout leaves the target's embedding and head out; drop --with-embeddings")
    convert(args, _log)
    return 0


def _log(line: str) -> None:
    sys.stderr.write(f"convert: {line}\n")
    sys.stderr.flush()
