"""``dspark train fit``: from a target cache to a draft checkpoint, resumable."""

from __future__ import annotations

import itertools
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from sgl_dspark.config import DrafterConfig
from sgl_dspark.errors import DataError
from sgl_dspark.model.checkpoint import save_drafter
from sgl_dspark.model.drafter import Drafter
from sgl_dspark.training.data import Conversation, cache_shards, conversation_batches, read_manifest, read_shard
from sgl_dspark.training.loop import StepReport, Trainer, TrainingOptions, fold_feature_scale, measure_feature_scale
from sgl_dspark.training.target import TargetConfig, TargetModel
from sgl_dspark.training.vocabulary import SampledVocabulary

Log = Callable[[str], None]
STATE_FILE = "state.pt"


def draft_config(target: TargetConfig, args: Namespace, feature_layers: Sequence[int]) -> DrafterConfig:
    """Shape of the draft: the target's geometry, with depth, width, gamma and heads from the options."""
    return DrafterConfig(
        hidden_size=target.hidden_size,
        intermediate_size=args.intermediate_size or target.raw["intermediate_size"],
        num_hidden_layers=args.layers,
        num_attention_heads=target.num_attention_heads,
        num_key_value_heads=target.num_key_value_heads,
        head_dim=target.head_dim,
        vocab_size=target.vocab_size,
        rms_norm_eps=target.rms_norm_eps,
        rope_theta=target.rope_theta,
        max_position_embeddings=target.max_position_embeddings,
        gamma=args.gamma,
        mask_token_id=args.mask_token_id,
        target_layer_ids=tuple(feature_layers),
        num_target_layers=target.num_hidden_layers,
        markov_rank=args.markov_rank,
        markov_head_type=args.markov_head if args.markov_rank else None,
        enable_confidence_head=True,
        confidence_head_with_markov=args.markov_rank > 0,
    )


def feature_columns(cached: Sequence[int], wanted: Sequence[int], hidden_size: int) -> Tensor | None:
    """Columns of the cached features that the draft reads; None when it reads all of them.

    Raises
    ------
    DataError
        If a wanted layer is not in the cache.
    """
    missing = [layer for layer in wanted if layer not in cached]
    if missing:
        raise DataError(f"the cache holds feature layers {list(cached)}, not {missing}; make the data again with them.")
    if list(wanted) == list(cached):
        return None
    starts = torch.tensor([list(cached).index(layer) * hidden_size for layer in wanted])
    return (starts[:, None] + torch.arange(hidden_size)).flatten()


def select(conversation: Conversation, columns: Tensor | None) -> Conversation:
    """Return the conversation with only the given feature columns."""
    if columns is None:
        return conversation
    return replace(conversation, features=conversation.features[:, columns])


def core_vocabulary(shards: Sequence[Path], vocab_size: int, least: int) -> Tensor:
    """Ids that the data supervises at least ``least`` times, int64 ascending."""
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for conversation in itertools.chain.from_iterable(map(read_shard, shards)):
        counts += torch.bincount(conversation.ids[conversation.loss_mask], minlength=vocab_size)
    return (counts >= least).nonzero().flatten()


def write_draft(trainer: Trainer, folder: Path) -> None:
    """Save the draft as it would be served: bf16, raw features, without the target's embedding and head."""
    trained = Drafter(trainer.drafter.config)
    trained.load_state_dict(trainer.drafter.state_dict())
    fold_feature_scale(trained, trainer.feature_scale)
    save_drafter(trained.to(torch.bfloat16), folder, include_shared=False)


def describe(label: str, report: StepReport) -> str:
    """One log line."""
    slots = " ".join(f"{rate:.2f}" for rate in report.accept_rate)
    return (
        f"{label}: loss {report.loss:.4f} ce {report.ce:.3f} tv {report.tv:.3f} conf {report.confidence:.3f} "
        f"accept [{slots}] expected accept length {report.expected_accept_len:.3f}"
    )


def fit(args: Namespace, log: Log) -> Path:
    """Train, resuming from ``state.pt`` when the output folder holds one; return the draft's folder."""
    trainer, stream, held_out = _prepare(args, log)
    started, last_saved = time.perf_counter(), time.perf_counter()
    first_step = trainer.step
    while trainer.step < trainer.options.steps:
        report = trainer.train_step(next(stream))
        if trainer.step % args.log_every == 0 or trainer.step == trainer.options.steps:
            pace = (time.perf_counter() - started) / (trainer.step - first_step)
            log(describe(f"step {trainer.step}/{trainer.options.steps} {pace:.2f} s/step", report))
        if time.perf_counter() - last_saved > args.save_every_s:
            _save_state(trainer, args.out)
            if held_out:
                log(describe(f"held-out at {trainer.step}", trainer.evaluate(held_out)))
            last_saved = time.perf_counter()
    _save_state(trainer, args.out)
    if held_out:
        log(describe(f"held-out at {trainer.step}", trainer.evaluate(held_out)))
    write_draft(trainer, args.out / "draft")
    log(f"draft written to {args.out / 'draft'}")
    return Path(args.out / "draft")


def _prepare(args: Namespace, log: Log) -> tuple[Trainer, Iterator[list[Conversation]], list[list[Conversation]]]:
    torch.manual_seed(args.seed)
    target = TargetModel.from_dir(args.target, torch.float32)
    shards = [path for folder in args.data for path in cache_shards(folder)]
    cached = read_manifest(args.data[0])["feature_layers"]
    if any(read_manifest(folder)["feature_layers"] != cached for folder in args.data):
        raise DataError("the data folders hold different feature layers; make them with the same ones.")
    wanted = args.feature_layers or cached
    columns = feature_columns(cached, wanted, target.config.hidden_size)
    drafter = Drafter(draft_config(target.config, args, wanted))
    drafter.share_embeddings(target.embed, target.lm_head)
    options = TrainingOptions(
        steps=args.steps,
        warmup_steps=args.warmup_steps,
        batch_size=args.batch_size,
        num_anchors=args.anchors,
        learning_rate=args.learning_rate,
        loss_decay=args.loss_decay,
        ce_first=args.ce_first,
        full_vocabulary_from=args.full_vocabulary_from,
        bf16=not args.fp32,
        seed=args.seed,
    )
    vocabulary = None
    if args.sampled_vocabulary:
        core = core_vocabulary(shards, target.config.vocab_size, args.core_count)
        log(f"sampled vocabulary: core of {len(core)} ids, {args.sampled_vocabulary} of the rest a step")
        dtype = torch.bfloat16 if options.bf16 else torch.float32
        vocabulary = SampledVocabulary(target.lm_head.to(dtype), core, args.sampled_vocabulary)
    scale = measure_feature_scale(select(c, columns) for path in shards[:4] for c in read_shard(path))
    trainer = Trainer(drafter, options, scale, vocabulary)
    count = sum(p.numel() for p in drafter.parameters() if p.requires_grad)
    log(f"{len(shards)} shards, {count / 1e6:.2f}M trained parameters")
    state = args.out / STATE_FILE
    if state.is_file():
        trainer.load_state(torch.load(state, weights_only=True))
        log(f"resuming at step {trainer.step}")
    # A resumed run skips what it has consumed, so that it sees exactly what it would have seen.
    order = itertools.islice(conversation_batches(shards, args.seed, options.batch_size), trainer.step, None)
    stream = ([select(c, columns) for c in batch] for batch in order)
    held_out: list[list[Conversation]] = []
    if args.held_out is not None:
        rows = [select(c, columns) for path in cache_shards(args.held_out) for c in read_shard(path)]
        rows = rows[: args.held_out_limit]
        held_out = [rows[i : i + options.batch_size] for i in range(0, len(rows), options.batch_size)]
    return trainer, stream, held_out


def _save_state(trainer: Trainer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / (STATE_FILE + ".partial")
    torch.save(trainer.state(), partial)
    partial.replace(folder / STATE_FILE)
