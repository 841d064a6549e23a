"""What the stages of ``dspark data`` do with their options."""

from __future__ import annotations

import itertools
import os
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sgl_dspark.data import build, endpoint, sources
from sgl_dspark.data import direct as directly
from sgl_dspark.data.cache import CacheWriter, TargetCache, weights_sha256
from sgl_dspark.data.decode import BatchGenerator
from sgl_dspark.data.prompts import read_prompts, write_prompts
from sgl_dspark.data.responses import ResponseFile, read_exchanges
from sgl_dspark.data.template import ChatEncoder
from sgl_dspark.errors import ConfigError, DataError
from sgl_dspark.model.device import device_of
from sgl_dspark.model.target import TargetModel
from sgl_dspark.model.target_config import TargetConfig

Log = Callable[[str], None]


def prompts(args: Namespace, log: Log) -> int:
    """Write a prompt file, or list the sources."""
    if args.list:
        for source in sources.SOURCES:
            sys.stdout.write(f"{source.group:<6} {source.name:<26} share {source.share:<4g} {source.licence}\n")
        return 0
    if args.out is None:
        raise ConfigError("--out is missing: the prompt file to write")
    chosen = sources.choose_sources(args.sources)
    records = list(itertools.islice(sources.prompts(args.split, args.seed, chosen), args.count))
    write_prompts(args.out, records)
    group_of = {source.name: source.group for source in chosen}
    counts = Counter(group_of[record.kind] for record in records)
    log(f"{args.out}: {len(records)} prompts, " + ", ".join(f"{counts[group]} {group}" for group in sources.GROUPS))
    if len(records) < args.count:
        log(f"the sources hold no more than these {len(records)} distinct prompts of the {args.split} half")
    return 0


def generate(args: Namespace, log: Log) -> int:
    """Answer prompts through an endpoint; 1 when some could not be answered."""
    asking = endpoint.Asking(
        url=args.url,
        model=args.model,
        temperatures=tuple(args.temperatures),
        sampling={"max_tokens": args.max_tokens, **args.sampling},
        concurrency=args.concurrency,
        timeout_s=args.timeout,
        # From the environment: on a command line it would show in the process list.
        api_key=os.environ.get(args.api_key_env, ""),
    )
    records = read_prompts(args.prompts, args.limit)
    with ResponseFile(args.out) as sink:
        for found in sink.samplings:
            if not asking.would_ask(found):
                raise ConfigError(f"{args.out} holds answers to other options ({found}); choose another --out")
        outcome = endpoint.generate(records, asking, sink, log)
        log(f"{args.out}: {len(sink.done)} conversations, {sink.tokens} tokens of the target")
    if outcome.failed:
        reasons = Counter(outcome.failed.values()).most_common(3)
        log(f"{len(outcome.failed)} prompts were not answered; mend the cause and run the command again. Reasons:")
        for reason, count in reasons:
            log(f"  {count} times: {reason}")
        return 1
    return 0


def cache(args: Namespace, log: Log) -> int:
    """Build the target cache of a response file."""
    config = TargetConfig.from_dir(args.target)
    encoder = ChatEncoder(args.target, config.eos_token_ids, args.chat_template_kwargs)
    exchanges = read_exchanges(args.responses)[: args.limit]
    encoded = [sequence for exchange in exchanges for sequence in encoder.encode(exchange)]
    kept = build.trainable(encoded, min(args.max_length, config.max_position_embeddings))
    if not kept:
        raise DataError(
            f"{args.responses} holds no answer of two tokens or more within --max-length {args.max_length}."
        )
    log(f"{len(exchanges)} conversations, {len(kept)} sequences, {sum(len(s.ids) for s in kept)} tokens")
    writer = CacheWriter(args.out, _source(args, config, {"responses": args.responses.name}))
    build.build_cache(_target(args), kept, args.feature_layers, writer, log, args.shard_tokens)
    log(f"{args.out}: {TargetCache.open(args.out).supervised_tokens} supervised tokens")
    return 0


def direct(args: Namespace, log: Log) -> int:
    """Answer prompts with the built-in decoder and write the cache at once."""
    config = TargetConfig.from_dir(args.target)
    sampling = {
        "prompts": args.prompts.name,
        "temperatures": args.temperatures,
        "max_new_tokens": args.max_new_tokens,
        "max_positions": args.max_positions,
        "seed": args.seed,
    }
    source = _source(args, config, sampling)
    encoder = ChatEncoder(args.target, config.eos_token_ids, args.chat_template_kwargs)
    encoded = directly.encode_prompts(encoder, read_prompts(args.prompts, args.limit), args.temperatures)
    fitting = [prompt for prompt in encoded if len(prompt.ids) < args.max_positions]
    if len(fitting) < len(encoded):
        log(f"{len(encoded) - len(fitting)} prompts are left out: they fill --max-positions {args.max_positions}")
    if not fitting:
        raise DataError("no prompt leaves room for an answer; give --max-positions more.")
    target = _target(args)
    writer = directly.DirectWriter(CacheWriter(args.out, source), args.shard_tokens)
    generator = BatchGenerator(
        target,
        args.feature_layers,
        rows=args.rows,
        max_positions=args.max_positions,
        max_new_tokens=args.max_new_tokens,
        # A continued run draws other numbers than the ones that are spent.
        seed=args.seed + len(writer.done),
    )
    directly.generate_directly(generator, fitting, writer, log)
    log(f"{args.out}: {TargetCache.open(args.out).supervised_tokens} supervised tokens")
    return 0


def check(args: Namespace, log: Log) -> int:
    """Read every shard; 1 when one is missing or damaged."""
    opened = TargetCache.open(args.cache)
    damaged = 0
    for entry in opened.shards:
        try:
            opened.read(entry)
        except DataError as error:
            damaged += 1
            log(str(error))
    tokens = sum(entry.tokens for entry in opened.shards)
    conversations = sum(entry.conversations for entry in opened.shards)
    sys.stdout.write(
        f"{args.cache}: {len(opened.shards)} shards, {conversations} conversations, {tokens} tokens, "
        f"{opened.supervised_tokens} supervised, feature layers {opened.feature_layers}, {damaged} damaged\n"
    )
    return 1 if damaged else 0


def _target(args: Namespace) -> TargetModel:
    return TargetModel.from_dir(args.target, getattr(torch, args.dtype), device_of(args.device))


def _source(args: Namespace, config: TargetConfig, origin: dict[str, Any]) -> dict[str, Any]:
    last = config.num_hidden_layers - 2
    if any(layer < -1 or layer > last for layer in args.feature_layers):
        raise ConfigError(
            f"--feature-layers must lie in [-1, {last}] for a target of {config.num_hidden_layers} layers"
        )
    if any(b <= a for a, b in itertools.pairwise(args.feature_layers)):
        raise ConfigError(f"--feature-layers is {args.feature_layers}; it must be strictly increasing")
    return {
        "target": Path(args.target).name,
        "target_sha256": weights_sha256(args.target),
        "feature_layers": list(args.feature_layers),
        "hidden_size": config.hidden_size,
        "dtype": args.dtype,
        "template_options": args.chat_template_kwargs,
        **origin,
    }
