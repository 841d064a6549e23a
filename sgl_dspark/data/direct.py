"""``dspark train data``: prompts in, a target cache out."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from sgl_dspark.errors import DataError
from sgl_dspark.training.data import CacheWriter, cache_shards, read_shard
from sgl_dspark.training.generate import BatchGenerator, Prompt
from sgl_dspark.training.target import TargetModel

Log = Callable[[str], None]


def read_prompts(path: Path, limit: int | None) -> list[dict[str, Any]]:
    """Read ``{"turns": [...], "kind": ...}`` lines; only the first turn is used.

    Raises
    ------
    DataError
        If the file is missing or a line has no turns.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist; make prompts with tools/make_prompts.py.")
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        record = json.loads(line)
        if not record.get("turns"):
            raise DataError(f"{path} line {number} has no turns.")
        records.append(record)
        if limit is not None and len(records) == limit:
            break
    return records


def format_prompts(target: Path, records: Sequence[dict[str, Any]], temperatures: Sequence[float]) -> list[Prompt]:
    """Tokenise first turns with the target's own chat template; temperatures are dealt out in turn."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)
    prompts = []
    for index, record in enumerate(records):
        messages = [{"role": "user", "content": record["turns"][0]}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False).input_ids
        prompts.append(Prompt(tuple(ids), temperatures[index % len(temperatures)], record.get("kind", "")))
    return prompts


def make_data(args: Namespace, log: Log) -> None:
    """Generate responses to every prompt and write them with the target's hidden states.

    An interrupted run continues behind the conversations that are on disk. Responses in flight when it stopped are
    generated anew, so the cache's order, not its law, depends on where it was interrupted.
    """
    dtype = getattr(torch, args.dtype)
    records = read_prompts(args.prompts, args.limit)
    manifest = {
        "target": args.target.name,
        "feature_layers": args.feature_layers,
        "prompts": args.prompts.name,
        "temperatures": args.temperatures,
        "max_new_tokens": args.max_new_tokens,
        "seed": args.seed,
        "dtype": args.dtype,
    }
    writer = CacheWriter(args.out, manifest)
    done = sum(len(read_shard(path)) for path in cache_shards(args.out)) if writer.num_shards else 0
    prompts = format_prompts(args.target, records, args.temperatures)[done:]
    log(f"{done} conversations on disk, {len(prompts)} to generate")
    generator = BatchGenerator(
        TargetModel.from_dir(args.target, dtype),
        args.feature_layers,
        rows=args.rows,
        max_positions=args.max_positions,
        max_new_tokens=args.max_new_tokens,
        seed=args.seed + done,
    )
    started, tokens = time.perf_counter(), 0
    for count, response in enumerate(generator.run(prompts), 1):
        writer.add(response)
        tokens += len(response.ids) - response.prompt_len
        if count % 50 == 0:
            rate = tokens / (time.perf_counter() - started)
            log(f"{count}/{len(prompts)} responses, {tokens} new tokens, {rate:.0f} tok/s")
    writer.flush()
    log(f"{args.out}: {tokens} new tokens")
