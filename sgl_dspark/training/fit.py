"""A training run: from a recipe to a draft on disk, resumed exactly where it was interrupted."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from sgl_dspark.config import DrafterConfig
from sgl_dspark.data.cache import Conversation, weights_sha256
from sgl_dspark.data.template import ChatEncoder
from sgl_dspark.errors import ConfigError, DataError
from sgl_dspark.model.checkpoint import save_drafter
from sgl_dspark.model.device import computes_bf16, device_of
from sgl_dspark.model.drafter import Drafter
from sgl_dspark.model.eagle3 import Eagle3Drafter, save_eagle3
from sgl_dspark.model.provenance import write_provenance
from sgl_dspark.model.target import TargetModel, load_embeddings
from sgl_dspark.model.target_config import TargetConfig
from sgl_dspark.training.checkpoint import read_state, save_state
from sgl_dspark.training.identity import Sections, check_same, decides, is_finished
from sgl_dspark.training.journal import Journal, describe
from sgl_dspark.training.loop import Trainer, TrainingOptions, fold_feature_scale, measure_feature_scale
from sgl_dspark.training.ranks import Ranks, check_batch
from sgl_dspark.training.recipe import DraftSection, Recipe
from sgl_dspark.training.source import CacheSource, Source, response_source
from sgl_dspark.training.vocabulary import Draft, SampledVocabulary

Log = Callable[[str], None]
Shares = Iterator[list[tuple[int, Conversation]]]
Data = tuple[Source, Source | None]
"""What is trained on, and what is held out."""
DRAFT_FOLDER = "draft"
# Conversations that the scale of features is measured on.
_SCALE_SAMPLE = 256


def draft_config(target: TargetConfig, section: DraftSection, feature_layers: Sequence[int]) -> DrafterConfig:
    """Shape of the draft: the target's geometry, with depth, width, gamma and heads from the recipe."""
    return DrafterConfig(
        hidden_size=target.hidden_size,
        intermediate_size=section.intermediate_size or target.raw["intermediate_size"],
        num_hidden_layers=section.layers,
        num_attention_heads=target.num_attention_heads,
        num_key_value_heads=target.num_key_value_heads,
        head_dim=target.head_dim,
        vocab_size=target.vocab_size,
        rms_norm_eps=target.rms_norm_eps,
        rope_theta=target.rope_theta,
        max_position_embeddings=target.max_position_embeddings,
        gamma=section.gamma,
        mask_token_id=section.mask_token_id or 0,
        target_layer_ids=tuple(feature_layers),
        num_target_layers=target.num_hidden_layers,
        markov_rank=section.markov_rank,
        markov_head_type=section.markov_head if section.markov_rank else None,
        enable_confidence_head=section.confidence,
        confidence_head_with_markov=section.confidence and section.markov_rank > 0,
    )


def feature_columns(held: Sequence[int], wanted: Sequence[int], hidden_size: int) -> Tensor | None:
    """Columns of the data's features that the draft reads; None when it reads all of them.

    Raises
    ------
    DataError
        If a wanted layer is not in the data.
    """
    missing = [layer for layer in wanted if layer not in held]
    if missing:
        raise DataError(f"the data holds feature layers {list(held)}, not {missing}; make the data again with them.")
    if list(wanted) == list(held):
        return None
    starts = torch.tensor([list(held).index(layer) * hidden_size for layer in wanted])
    return (starts[:, None] + torch.arange(hidden_size)).flatten()


def select(conversation: Conversation, columns: Tensor | None) -> Conversation:
    """Return the conversation with only the given feature columns."""
    if columns is None:
        return conversation
    return replace(conversation, features=conversation.features[:, columns])


def training_options(recipe: Recipe) -> TrainingOptions:
    """Gather what the trainer needs of a recipe."""
    optim, kind = recipe.optim, recipe.draft.kind
    return TrainingOptions(
        steps=optim.steps,
        warmup_steps=optim.warmup_steps,
        num_anchors=optim.anchors,
        micro_batch_size=optim.micro_batch_size,
        learning_rate=optim.learning_rate,
        clip_norm=optim.clip_norm,
        weight_decay=optim.weight_decay,
        loss_decay=recipe.loss.decay_of(kind),
        weights=recipe.loss.weights(kind),
        ce_first=recipe.loss.ce_first,
        full_vocabulary_from=recipe.vocabulary.full_from,
        bf16=optim.bf16,
        seed=optim.seed,
    )


def write_draft(trainer: Trainer, folder: Path) -> None:
    """Save the draft as it would be served: bf16, raw features, without the target's embedding and head."""
    state = {name: tensor.cpu() for name, tensor in trainer.state()["drafter"].items()}
    if not trainer.ranks.first:
        return
    kind = type(trainer.drafter)
    trained: Draft = kind(trainer.drafter.config)
    trained.load_state_dict(state, strict=False)
    fold_feature_scale(trained, trainer.feature_scale.cpu())
    trained = trained.to(torch.bfloat16)
    if isinstance(trained, Eagle3Drafter):
        save_eagle3(trained, folder)
    else:
        save_drafter(trained, folder, include_shared=False)


def fit(recipe: Recipe, log: Log) -> Path:
    """Train; a run that the output folder holds is continued, one that is finished is left as it is.

    Returns the draft's folder.

    Raises
    ------
    DataError
        If the data is unusable.
    ConfigError
        If the folder holds a run of another recipe, or ranks cannot share the batch.
    """
    # Made first, so that a folder that cannot be is known before anything is computed.
    recipe.output.folder.mkdir(parents=True, exist_ok=True)
    device = device_of(recipe.device)
    ranks = Ranks.join(device)
    if device.type == "cuda" and ranks.world > 1:
        device = torch.device("cuda", ranks.rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    say = log if ranks.first else _silent
    try:
        config = TargetConfig.from_dir(recipe.target)
        data = _sources(recipe, config, device)
        wanted, draft = decides(recipe, *data), recipe.output.folder / DRAFT_FOLDER
        # Before anything that reads the data: a study asks this of every draft that it has.
        if is_finished(draft, wanted):
            say(f"{draft} is finished; nothing is left to do")
            return draft
        _Run(recipe, device, ranks, config, data, wanted, say).go(say)
    finally:
        ranks.leave()
    return draft


class _Run:
    """A trainer with its stream of batches, its held-out data and its journal."""

    def __init__(
        self,
        recipe: Recipe,
        device: torch.device,
        ranks: Ranks,
        config: TargetConfig,
        data: Data,
        wanted: Sections,
        log: Log,
    ) -> None:
        check_batch(recipe.optim.batch_size, ranks.world)
        self.recipe, self.ranks, self._decides = recipe, ranks, wanted
        source, held_out = data
        state = read_state(recipe.output.folder)
        if state is not None:
            check_same(recipe.output.folder, state["recipe"], wanted)
        layers = recipe.draft.feature_layers or source.feature_layers
        columns = feature_columns(source.feature_layers, layers, config.hidden_size)
        self.trainer = _trainer(recipe, device, ranks, source, columns, config, layers, log)
        if state is not None:
            self.trainer.load_state(state)
            log(f"resuming at step {self.trainer.step}")
        # A resumed run skips what it has consumed, so that it sees exactly what it would have seen.
        optim = recipe.optim
        order = source.shares(optim.seed, optim.batch_size, ranks, skip=self.trainer.step)
        self.stream: Shares = ([(i, select(c, columns)) for i, c in share] for share in order)
        self.held_out: list[Conversation] = []
        if held_out is not None:
            own = feature_columns(held_out.feature_layers, layers, config.hidden_size)
            rows = itertools.islice(held_out.all(), recipe.data.held_out_limit)
            self.held_out = [select(c, own) for c in rows]

    def go(self, log: Log) -> None:
        """Train to the last step and write the draft."""
        trainer, output = self.trainer, self.recipe.output
        journal = Journal(output.folder, trainer.step, enabled=self.ranks.first, tensorboard=output.tensorboard)
        last_saved = time.perf_counter()
        with journal:
            while trainer.step < trainer.options.steps:
                report = trainer.train_step(next(self.stream))
                final = trainer.step == trainer.options.steps
                if trainer.step % output.log_every == 0 or final:
                    journal.add("train", trainer.step, trainer.tokens, report)
                    log(describe(f"step {trainer.step}/{trainer.options.steps} {journal.pace}", report))
                if final or (output.evaluate_every and trainer.step % output.evaluate_every == 0):
                    self._evaluate(journal, log)
                # Ranks must agree on when to save, since a sharded state needs all of them.
                due = torch.tensor([float(time.perf_counter() - last_saved > output.save_every_s)])
                if final or float(self.ranks.total(due.to(trainer.device))) > 0:
                    self._save()
                    last_saved = time.perf_counter()
        write_draft(trainer, output.folder / DRAFT_FOLDER)
        if self.ranks.first:
            write_provenance(output.folder / DRAFT_FOLDER, self._made())
        log(f"draft written to {output.folder / DRAFT_FOLDER}")

    def _made(self) -> dict[str, object]:
        """Describe the run: no paths, so that the description means the same elsewhere."""
        return {
            "target": self.recipe.target.resolve().name,
            "target_sha256": weights_sha256(self.recipe.target),
            "steps": self.trainer.step,
            "supervised_tokens": self.trainer.tokens,
            "arithmetic": "bf16" if self.trainer.options.bf16 else "fp32",
            **self._decides,
        }

    def _evaluate(self, journal: Journal, log: Log) -> None:
        if self.held_out:
            report = self.trainer.evaluate(self.held_out)
            journal.add("held_out", self.trainer.step, self.trainer.tokens, report)
            log(describe(f"held-out at {self.trainer.step}", report))

    def _save(self) -> None:
        state = self.trainer.state()
        if self.ranks.first:
            save_state(self.recipe.output.folder, {**state, "recipe": self._decides})


def _silent(line: str) -> None:
    """Say nothing: ranks but the first."""


def _sources(recipe: Recipe, config: TargetConfig, device: torch.device) -> Data:
    data = recipe.data
    if data.mode == "cache":
        held = CacheSource(data.held_out, recipe.target) if data.held_out else None
        return CacheSource(data.caches, recipe.target), held
    layers = recipe.draft.feature_layers
    if layers is None:
        raise ConfigError(f"draft.feature_layers is missing: mode {data.mode!r} computes the states of these layers.")
    if any(layer < -1 or layer > config.num_hidden_layers - 2 for layer in layers):
        raise ConfigError(f"draft.feature_layers must lie in [-1, {config.num_hidden_layers - 2}] for this target.")
    longest = min(data.max_length, config.max_position_embeddings)
    dtype = torch.bfloat16 if recipe.optim.bf16 else torch.float32
    target = TargetModel.from_dir(recipe.target, dtype, device)
    encoder = ChatEncoder(recipe.target, target.config.eos_token_ids, data.template_options)
    weights = weights_sha256(recipe.target)
    for path in data.held_out:
        if path.is_dir():
            raise ConfigError(f"data.held_out {path} is a folder; mode {data.mode!r} reads response files.")

    def read(files: Sequence[Path]) -> Source:
        keep = data.mode == "memory"
        return response_source(files, target, encoder, layers, longest, target_sha256=weights, keep=keep)

    return read(data.responses), read(data.held_out) if data.held_out else None


def _trainer(
    recipe: Recipe,
    device: torch.device,
    ranks: Ranks,
    source: Source,
    columns: Tensor | None,
    config: TargetConfig,
    wanted: Sequence[int],
    log: Log,
) -> Trainer:
    torch.manual_seed(recipe.optim.seed)
    kind = Eagle3Drafter if recipe.draft.kind == "eagle3" else Drafter
    draft: Draft = kind(draft_config(config, recipe.draft, wanted)).to(device)
    embed, head = load_embeddings(recipe.target, torch.float32, device)
    draft.share_embeddings(embed, head)
    bf16 = recipe.optim.bf16 and computes_bf16(device)
    arithmetic = "bf16" if bf16 else "fp32, as this processor has no bf16" if recipe.optim.bf16 else "fp32"
    vocabulary = None
    if recipe.vocabulary.sample:
        core = (source.label_counts(config.vocab_size) >= recipe.vocabulary.core_count).nonzero().flatten()
        log(f"sampled vocabulary: core of {len(core)} ids, {recipe.vocabulary.sample} of the rest a step")
        dtype = torch.bfloat16 if bf16 else torch.float32
        vocabulary = SampledVocabulary(head.to(dtype), core, recipe.vocabulary.sample)
    sample = (select(c, columns) for c in itertools.islice(source.all(), _SCALE_SAMPLE))
    scale = measure_feature_scale(sample)
    count = sum(p.numel() for p in draft.parameters() if p.requires_grad)
    log(f"{count / 1e6:.2f}M trained parameters, {ranks.world} rank(s) on {device.type}, {arithmetic}")
    return Trainer(draft, replace(training_options(recipe), bf16=bf16), scale, vocabulary, ranks, recipe.strategy)
