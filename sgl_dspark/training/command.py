"""``dspark train``: on-policy data, the training loop, and offline evaluation of a draft."""

from __future__ import annotations

import sys
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from pathlib import Path

HELP = "train a draft: generate on-policy data, fit, evaluate"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the stages ``data``, ``fit``, ``limit`` and ``evaluate`` and their options."""
    stages = parser.add_subparsers(dest="stage", required=True, metavar="{data,fit,limit,evaluate}")
    for name, text, declare in (
        ("data", "let the target answer prompts and keep its hidden states", _data_arguments),
        ("fit", "train a draft on a cache made by `data`", _fit_arguments),
        ("limit", "let a draft propose only the tokens that its data uses", _limit_arguments),
        ("evaluate", "measure accept length offline, one request at a time", _evaluate_arguments),
    ):
        stage = stages.add_parser(name, help=text, description=text, formatter_class=ArgumentDefaultsHelpFormatter)
        stage.add_argument("--target", type=Path, required=True, help="Hugging Face folder of the target")
        declare(stage)


def run(args: Namespace) -> int:
    """Run one stage; 1 with one sentence on standard error when its input is unusable."""
    from sgl_dspark.errors import DsparkError

    try:
        if args.stage == "data":
            from sgl_dspark.training.make_data import make_data

            make_data(args, _log)
        elif args.stage == "fit":
            from sgl_dspark.training.fit import fit

            fit(args, _log)
        elif args.stage == "limit":
            from sgl_dspark.training.limit import limit

            limit(args, _log)
        else:
            from sgl_dspark.evaluation.measure import measure

            measure(args, _log)
    except DsparkError as error:
        _log(f"error: {error}")
        return 1
    return 0


def _log(line: str) -> None:
    sys.stderr.write(f"train: {line}\n")
    sys.stderr.flush()


def _data_arguments(stage: ArgumentParser) -> None:
    stage.add_argument("--prompts", type=Path, required=True, help='JSONL of {"turns": [...], "kind": ...}')
    stage.add_argument("--out", type=Path, required=True, help="cache folder; continued when it exists")
    stage.add_argument("--feature-layers", type=int, nargs="+", required=True, help="target_layer_ids of the draft")
    stage.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7], help="dealt out in turn")
    stage.add_argument("--limit", type=int, default=None, help="use only the first prompts")
    stage.add_argument("--rows", type=int, default=64, help="conversations decoded together")
    stage.add_argument("--max-positions", type=int, default=512, help="tokens per conversation")
    stage.add_argument("--max-new-tokens", type=int, default=256, help="tokens per response")
    stage.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the target")
    stage.add_argument("--seed", type=int, default=0, help="of sampling")


def _fit_arguments(stage: ArgumentParser) -> None:
    stage.add_argument("--data", type=Path, nargs="+", required=True, help="cache folders from the data stage")
    stage.add_argument("--out", type=Path, required=True, help="folder for state and draft; resumed when it holds one")
    stage.add_argument("--held-out", type=Path, default=None, help="cache folder to report on while training")
    stage.add_argument("--held-out-limit", type=int, default=64, help="conversations of it to use")
    shape = stage.add_argument_group("draft")
    shape.add_argument("--gamma", type=int, default=7, help="draft slots per block")
    shape.add_argument("--layers", type=int, default=2, help="draft layers")
    shape.add_argument("--intermediate-size", type=int, default=None, help="feed-forward width; the target's if unset")
    shape.add_argument("--feature-layers", type=int, nargs="+", default=None, help="a subset of the cache's")
    shape.add_argument("--markov-rank", type=int, default=64, help="rank of the sequential head; 0 for none")
    shape.add_argument("--markov-head", choices=("vanilla", "gated", "rnn"), default="vanilla", help="its kind")
    shape.add_argument("--mask-token-id", type=int, required=True, help="an otherwise unused token of the target")
    run_ = stage.add_argument_group("optimisation")
    run_.add_argument("--steps", type=int, required=True, help="optimiser steps")
    run_.add_argument("--batch-size", type=int, default=8, help="conversations a step")
    run_.add_argument("--anchors", type=int, default=32, help="blocks a conversation, at most")
    run_.add_argument("--learning-rate", type=float, default=1e-3, help="peak, AdamW")
    run_.add_argument("--warmup-steps", type=int, default=100, help="linear warm-up before the cosine")
    run_.add_argument("--loss-decay", type=float, default=4.0, help="slots over which the loss weight falls by e")
    run_.add_argument("--ce-first", type=float, default=0.0, help="fraction of the run with full cross-entropy")
    run_.add_argument("--sampled-vocabulary", type=int, default=0, help="ids drawn a step beside the core; 0 uses all")
    run_.add_argument("--core-count", type=int, default=3, help="occurrences that put an id into the core")
    run_.add_argument("--full-vocabulary-from", type=float, default=0.9, help="fraction of the run")
    run_.add_argument("--fp32", action="store_true", help="no bf16 arithmetic")
    run_.add_argument("--seed", type=int, default=0, help="of initialisation, order and anchors")
    run_.add_argument("--log-every", type=int, default=20, help="steps between log lines")
    run_.add_argument("--save-every-s", type=float, default=180.0, help="seconds between saved states")


def _limit_arguments(stage: ArgumentParser) -> None:
    stage.add_argument("--draft", type=Path, required=True, help="draft folder")
    stage.add_argument("--data", type=Path, nargs="+", required=True, help="cache folders that it was trained on")
    stage.add_argument("--least", type=int, default=3, help="occurrences that put an id into the draft vocabulary")
    stage.add_argument("--out", type=Path, required=True, help="folder of the limited draft")


def _evaluate_arguments(stage: ArgumentParser) -> None:
    stage.add_argument("--draft", type=Path, required=True, help="draft folder")
    stage.add_argument("--prompts", type=Path, required=True, help="JSONL of prompts that were not trained on")
    stage.add_argument("--limit", type=int, default=None, help="use only the first prompts")
    stage.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0], help="one pass each")
    stage.add_argument("--max-new-tokens", type=int, default=256, help="tokens per response")
    stage.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of target and draft")
    stage.add_argument("--seed", type=int, default=980406, help="plus the prompt's index seeds its sampling")
    stage.add_argument("--out", type=Path, default=None, help="write the figures as JSON")
