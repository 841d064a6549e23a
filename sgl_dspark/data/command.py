"""Prompts in, what a draft is trained on out: answers of the target, and its hidden states on them.

Every stage continues where it was interrupted when the same command is run again.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any

HELP = "make training data: prompts, answers of the target, its hidden states"
EPILOG = """examples:
  dspark data prompts --split train --count 4000 --out runs/train.jsonl
  dspark data generate --url http://127.0.0.1:30000 --prompts runs/train.jsonl --out runs/answers.jsonl
  dspark data cache --target TARGET --responses runs/answers.jsonl --feature-layers 9 16 23 28 --out runs/cache
  dspark data direct --target TARGET --prompts runs/train.jsonl --feature-layers 9 16 23 28 --out runs/cache
  dspark data check runs/cache"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the stages and their options."""
    stages = parser.add_subparsers(dest="stage", required=True, metavar="{prompts,generate,cache,direct,check}")
    for name, text, declare in (
        ("prompts", "write prompts from built-in sources, training and held-out halves disjoint", _prompts_arguments),
        ("generate", "let an OpenAI-compatible endpoint answer prompts", _generate_arguments),
        ("cache", "run the target over answers and keep its hidden states", _cache_arguments),
        (
            "direct",
            "answer prompts and keep hidden states at once, without a server (small targets)",
            _direct_arguments,
        ),
        ("check", "compare a cache's shards with its manifest", _check_arguments),
    ):
        declare(stages.add_parser(name, help=text, description=text, formatter_class=ArgumentDefaultsHelpFormatter))


def run(args: Namespace) -> int:
    """Run one stage; 1 when some prompts could not be answered or a shard is damaged."""
    from sgl_dspark.data import stages

    stage = {
        "prompts": stages.prompts,
        "generate": stages.generate,
        "cache": stages.cache,
        "direct": stages.direct,
        "check": stages.check,
    }[args.stage]
    return stage(args, _log)


def _log(line: str) -> None:
    sys.stderr.write(f"data: {line}\n")
    sys.stderr.flush()


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ArgumentTypeError(f"{text!r} is not a JSON object")
    return found


def _at_least_one(text: str) -> int:
    try:
        value = int(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is no whole number") from error
    if value < 1:
        raise ArgumentTypeError(f"{value} is below 1")
    return value


def _prompts_arguments(stage: ArgumentParser) -> None:
    stage.add_argument("--list", action="store_true", help="show the sources with their shares and licences")
    stage.add_argument("--split", choices=("train", "held-out"), default="train", help="half of the prompt space")
    stage.add_argument("--count", type=_at_least_one, default=1000, help="prompts to write")
    stage.add_argument("--sources", nargs="+", default=[], metavar="NAME", help="sources or groups; all if unset")
    stage.add_argument("--seed", type=int, default=0, help="of the mix")
    stage.add_argument("--out", type=Path, help="prompt file to write")


def _generate_arguments(stage: ArgumentParser) -> None:
    stage.add_argument("--url", required=True, help="base URL of the endpoint")
    stage.add_argument("--prompts", type=Path, required=True, help='JSONL of {"turns": [...], "kind": ...}')
    stage.add_argument("--out", type=Path, required=True, help="response file; continued when it exists")
    stage.add_argument("--limit", type=_at_least_one, default=None, help="use only the first prompts")
    stage.add_argument("--model", default="", help="model name to ask for; the endpoint's first if unset")
    stage.add_argument("--concurrency", type=_at_least_one, default=32, help="conversations in flight")
    stage.add_argument("--max-tokens", type=_at_least_one, default=1024, help="tokens per answer")
    stage.add_argument(
        "--temperatures", type=float, nargs="+", default=[], help="dealt out in turn; the endpoint's default if unset"
    )
    stage.add_argument(
        "--sampling", type=_json_object, default={}, metavar="JSON", help='further request fields, e.g. {"top_p": 0.8}'
    )
    stage.add_argument("--timeout", type=float, default=600.0, help="seconds for one answer")
    stage.add_argument(
        "--api-key-env", default="DSPARK_API_KEY", metavar="NAME", help="environment variable that holds the API key"
    )


def _target_arguments(stage: ArgumentParser) -> None:
    stage.add_argument("--target", type=Path, required=True, help="Hugging Face folder of the target")
    stage.add_argument("--out", type=Path, required=True, help="cache folder; continued when it exists")
    stage.add_argument("--feature-layers", type=int, nargs="+", required=True, help="target_layer_ids of the draft")
    stage.add_argument("--limit", type=_at_least_one, default=None, help="use only the first prompts")
    stage.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the target")
    stage.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    stage.add_argument("--shard-tokens", type=_at_least_one, default=16_384, help="tokens that close a shard")
    stage.add_argument(
        "--chat-template-kwargs", type=_json_object, default={}, metavar="JSON", help="options of the chat template"
    )


def _cache_arguments(stage: ArgumentParser) -> None:
    _target_arguments(stage)
    stage.add_argument("--responses", type=Path, required=True, help="response file of `dspark data generate`")
    stage.add_argument("--max-length", type=_at_least_one, default=4096, help="tokens of a sequence; the rest is cut")


def _direct_arguments(stage: ArgumentParser) -> None:
    _target_arguments(stage)
    stage.add_argument("--prompts", type=Path, required=True, help="prompt file; first turns are used")
    stage.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7], help="dealt out in turn")
    stage.add_argument("--rows", type=_at_least_one, default=64, help="conversations decoded together")
    stage.add_argument("--max-positions", type=_at_least_one, default=512, help="tokens per conversation")
    stage.add_argument("--max-new-tokens", type=_at_least_one, default=256, help="tokens per response")
    stage.add_argument("--seed", type=int, default=0, help="of sampling")


def _check_arguments(stage: ArgumentParser) -> None:
    stage.add_argument("cache", type=Path, help="cache folder")
