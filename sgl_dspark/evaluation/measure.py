"""``dspark train evaluate``: accept length of a draft on prompts it was not trained on."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict

import torch

from sgl_dspark.evaluation.report import Acceptance, Round, summarise
from sgl_dspark.evaluation.runner import SpeculativeRunner
from sgl_dspark.model.checkpoint import load_drafter
from sgl_dspark.training.make_data import format_prompts, read_prompts
from sgl_dspark.training.target import TargetModel

Log = Callable[[str], None]


def describe(label: str, found: Acceptance) -> str:
    """One log line."""
    slots = " ".join(f"{rate:.2f}" for rate in found.conditional)
    return f"{label}: mean accept length {found.mean_accept_len:.3f} over {found.rounds} rounds, conditional [{slots}]"


def measure(args: Namespace, log: Log) -> None:
    """Decode every prompt at every temperature and report τ, by kind of prompt and in all."""
    dtype = getattr(torch, args.dtype)
    target = TargetModel.from_dir(args.target, dtype)
    drafter = load_drafter(
        args.draft, dtype=dtype, device="cpu", target_embed=target.embed, target_lm_head=target.lm_head
    )
    drafter.fuse_for_serving()
    runner = SpeculativeRunner(target, drafter)
    records = read_prompts(args.prompts, args.limit)
    results = {}
    for temperature in args.temperatures:
        rounds: dict[str, list[Round]] = {}
        tokens = 0
        for index, prompt in enumerate(format_prompts(args.target, records, [temperature])):
            sample = runner.run(
                prompt.ids, temperature=temperature, max_new_tokens=args.max_new_tokens, seed=args.seed + index
            )
            rounds.setdefault(prompt.kind, []).extend(sample.rounds)
            tokens += len(sample.tokens)
        for kind, found in sorted(rounds.items()):
            log(describe(f"  T={temperature:g} {kind}", summarise(found, drafter.config.gamma)))
        total = summarise([r for found in rounds.values() for r in found], drafter.config.gamma)
        log(describe(f"T={temperature:g} all kinds, {tokens} tokens", total))
        results[f"{temperature:g}"] = asdict(total) | {"tokens": tokens, "prompts": len(records)}
    if args.out is not None:
        args.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
