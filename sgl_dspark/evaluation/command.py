"""Measure a draft offline: accept length per prompt set, acceptance per slot, thresholds, calibration, draft cost.

Protocol of the DSpark paper: temperature 1, no top-p or top-k, whole blocks, first user turn, mean over rounds, bonus
included. Results go to standard output and, with --out, to a folder as JSON, Markdown and plots.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

HELP = "measure a draft offline on prompt files"
EPILOG = """examples:
  dspark data prompts --split held-out --sources maths --count 60 --out runs/maths.jsonl
  dspark evaluate --target TARGET --draft DRAFT --prompts runs/maths.jsonl runs/chat.jsonl --out runs/evaluation
  dspark evaluate --target TARGET --draft DRAFT --prompts runs/maths.jsonl --thresholds 0.4 0.8 --latency 1 32"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--target", type=Path, required=True, help="Hugging Face folder of the target")
    parser.add_argument("--draft", type=Path, required=True, help="draft folder")
    parser.add_argument("--prompts", type=Path, nargs="+", required=True, help="prompt files, one set each")
    parser.add_argument("--limit", type=int, default=None, help="use only the first prompts of each file")
    parser.add_argument(
        "--temperatures", type=float, nargs="+", default=[1.0], help="one pass each (default: %(default)s)"
    )
    parser.add_argument(
        "--thresholds", type=float, nargs="+", default=[], help="confidence thresholds, at the first temperature"
    )
    parser.add_argument("--shortlist", type=int, default=None, help="draw each slot from so many candidates")
    parser.add_argument("--max-new-tokens", type=int, default=2048, help="tokens per answer (default: %(default)s)")
    parser.add_argument(
        "--max-positions", type=int, default=None, help="prompt and answer (default: room for the longest prompt)"
    )
    parser.add_argument("--rows", type=int, default=32, help="prompts decoded together (default: %(default)s)")
    parser.add_argument("--latency", type=int, nargs="+", default=[], help="batch sizes to time a round at")
    parser.add_argument(
        "--chat-template-kwargs", type=json.loads, default={}, metavar="JSON", help="as the draft's data was made with"
    )
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of target and draft")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=980406, help="plus a prompt's index (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=None, help="folder for JSON, Markdown and plots")


def run(args: Namespace) -> int:
    """Evaluate; returns 0."""
    from sgl_dspark.reports.evaluation import evaluate

    sys.stdout.write(evaluate(args, _log))
    return 0


def _log(line: str) -> None:
    sys.stderr.write(f"evaluate: {line}\n")
    sys.stderr.flush()
