"""A training run as a YAML file: every field checked by name, single fields overridden on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sgl_dspark.errors import ConfigError
from sgl_dspark.training.losses import LossWeights


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataSection(_Section):
    """What is trained on.

    Attributes
    ----------
    mode : {"cache", "memory", "online"}
        Target states from caches on disk; computed once and held in memory; or computed anew for every batch.
    caches : list of Path
        Cache folders, for ``cache``.
    responses : list of Path
        Response files, for ``memory`` and ``online``.
    held_out : list of Path
        To report on while training, never trained on: caches for ``cache``, response files for the other modes.
    held_out_limit : int
        Conversations of it to use.
    max_length : int
        Tokens of a sequence, for ``memory`` and ``online``.
    template_options : dict
        Options of the chat template, for ``memory`` and ``online``.
    """

    mode: Literal["cache", "memory", "online"] = "cache"
    caches: list[Path] = []
    responses: list[Path] = []
    held_out: list[Path] = []
    held_out_limit: int = Field(default=64, ge=1)
    max_length: int = Field(default=4096, ge=2)
    template_options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _sources(self) -> Self:
        name = "caches" if self.mode == "cache" else "responses"
        if not getattr(self, name):
            raise ValueError(f"data.{name} is empty; mode {self.mode!r} reads it")
        return self


class DraftSection(_Section):
    """Shape of the draft; sizes that are not given are the target's.

    Attributes
    ----------
    kind : {"dspark", "dflash", "eagle3"}
        DSpark; the DFlash baseline (no sequential head, no confidence head); an autoregressive one-layer baseline.
    gamma : int
        Draft slots per block; for ``eagle3`` the steps of training-time test.
    layers : int
    intermediate_size : int or None
    feature_layers : list of int or None
        Target layers that are read: a subset of those that the data holds, or all of them.
    markov_rank, markov_head
        Of the sequential head.
    confidence : bool
    mask_token_id : int or None
        An otherwise unused token of the target; ``eagle3`` needs none.
    """

    kind: Literal["dspark", "dflash", "eagle3"] = "dspark"
    gamma: int = Field(default=7, ge=1)
    layers: int = Field(default=2, ge=1)
    intermediate_size: int | None = Field(default=None, ge=1)
    feature_layers: list[int] | None = None
    markov_rank: int = Field(default=64, ge=0)
    markov_head: Literal["vanilla", "gated", "rnn"] = "vanilla"
    confidence: bool = True
    mask_token_id: int | None = Field(default=None, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_kind(cls, raw: Any) -> Any:
        if isinstance(raw, Mapping) and raw.get("kind") in ("dflash", "eagle3"):
            return {"markov_rank": 0, "confidence": False, "layers": 1 if raw["kind"] == "eagle3" else 2, **raw}
        return raw

    @model_validator(mode="after")
    def _fits_the_kind(self) -> Self:
        if self.kind != "dspark" and (self.markov_rank or self.confidence):
            raise ValueError(f"{self.kind} has neither markov_rank nor confidence")
        if self.kind == "eagle3" and self.layers != 1:
            raise ValueError("eagle3 has one layer")
        if self.kind != "eagle3" and self.mask_token_id is None:
            raise ValueError("mask_token_id is missing: name an otherwise unused token of the target")
        return self


class LossSection(_Section):
    """Coefficients of the loss terms (Eq. 12); those that are not given are the paper's for the draft's kind.

    Attributes
    ----------
    ce, tv, confidence, soft : float or None
        Cross-entropy of the data's token; L1 distance to the target's law; confidence; cross-entropy against the
        target's law (what ``eagle3`` is trained with).
    decay : float or None
        Slots over which a slot's weight falls by e: 4, and for ``eagle3`` the 0.8 a step that it was published with.
    ce_first : float
        Fraction of the run in which cross-entropy counts fully; TV moves little while a draft gives right tokens no
        probability. 0 is the paper's recipe.
    """

    ce: float | None = Field(default=None, ge=0)
    tv: float | None = Field(default=None, ge=0)
    confidence: float | None = Field(default=None, ge=0)
    soft: float | None = Field(default=None, ge=0)
    decay: float | None = Field(default=None, gt=0)
    ce_first: float = Field(default=0.0, ge=0, le=1)

    def weights(self, kind: str) -> LossWeights:
        """Return the coefficients for a draft of ``kind``."""
        base = {
            "dspark": LossWeights(),
            "dflash": LossWeights(ce=1.0, tv=0.0, confidence=0.0),
            "eagle3": LossWeights(ce=0.0, tv=0.0, confidence=0.0, soft=1.0),
        }[kind]
        names = ("ce", "tv", "confidence", "soft")
        return LossWeights(**{n: getattr(base, n) if getattr(self, n) is None else getattr(self, n) for n in names})

    def decay_of(self, kind: str) -> float:
        """Return the decay constant for a draft of ``kind``."""
        if self.decay is not None:
            return self.decay
        # exp(-1 / 4.4814) = 0.8.
        return 4.4814 if kind == "eagle3" else 4.0


class VocabularySection(_Section):
    """Sampled vocabulary for targets whose head dominates a step (see ``vocabulary``).

    Attributes
    ----------
    sample : int
        Ids drawn anew in every step beside the core; 0 uses the whole vocabulary.
    core_count : int
        Occurrences in the data that put an id into the core.
    full_from : float
        Fraction of the run after which the whole vocabulary is used.
    """

    sample: int = Field(default=0, ge=0)
    core_count: int = Field(default=3, ge=1)
    full_from: float = Field(default=0.9, ge=0, le=1)


class OptimSection(_Section):
    """How the draft is optimised.

    Attributes
    ----------
    steps, warmup_steps : int
        Linear warm-up, then cosine to zero.
    batch_size : int
        Conversations a step, over all ranks.
    micro_batch_size : int or None
        Conversations a forward on one rank; a rank's whole share if unset.
    anchors : int
        Blocks a conversation, at most.
    learning_rate, clip_norm, weight_decay : float
    bf16 : bool
        bf16 arithmetic with fp32 master weights, where the device has it; fp32 elsewhere.
    seed : int
        Of initialisation, order, anchors and sampled vocabulary.
    """

    steps: int = Field(ge=1)
    warmup_steps: int = Field(default=100, ge=0)
    batch_size: int = Field(default=8, ge=1)
    micro_batch_size: int | None = Field(default=None, ge=1)
    anchors: int = Field(default=32, ge=1)
    learning_rate: float = Field(default=6e-4, gt=0)
    clip_norm: float = Field(default=1.0, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    bf16: bool = True
    seed: int = 0


class OutputSection(_Section):
    """Where results go and how often.

    Attributes
    ----------
    folder : Path
        Receives ``state.pt``, ``metrics.jsonl``, ``tensorboard/`` and ``draft/``. A run that it holds is resumed.
    log_every : int
        Steps between lines of metrics.
    save_every_s : float
        Seconds between saved states.
    evaluate_every : int
        Steps between held-out reports; 0 reports only at the end.
    tensorboard : bool
    """

    folder: Path
    log_every: int = Field(default=20, ge=1)
    save_every_s: float = Field(default=180.0, ge=0)
    evaluate_every: int = Field(default=0, ge=0)
    tensorboard: bool = True


class Recipe(_Section):
    """A whole run.

    Attributes
    ----------
    target : Path
        Hugging Face folder.
    device : str
        ``auto``, ``cpu`` or ``cuda``.
    strategy : {"ddp", "fsdp"}
        How several ranks share the work: replicas, or parameters and optimiser state in shards (FSDP2).
    """

    target: Path
    data: DataSection
    draft: DraftSection
    loss: LossSection = LossSection()
    vocabulary: VocabularySection = VocabularySection()
    optim: OptimSection
    output: OutputSection
    device: str = "auto"
    strategy: Literal["ddp", "fsdp"] = "ddp"


def load_recipe(path: Path | None, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe.

    Parameters
    ----------
    path : Path or None
        YAML file; None starts from nothing.
    overrides : sequence of str
        ``section.field=value``, the value in YAML.

    Raises
    ------
    ConfigError
        If the file cannot be read, or a field is unknown, missing or out of range; names the field.
    """
    raw: Any = {}
    if path is not None:
        try:
            raw = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the recipe {path}: {error}") from error
        except yaml.YAMLError as error:
            mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
            where = f", line {mark.line + 1}" if mark is not None else ""
            raise ConfigError(f"the recipe {path} is not YAML{where}: {problem or 'unreadable'}") from error
        if not isinstance(raw, dict):
            raise ConfigError(f"the recipe {path} must be a mapping of sections")
    for override in overrides:
        _override(raw, override)
    try:
        return Recipe.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        message = "unknown field" if first["type"] == "extra_forbidden" else first["msg"]
        message = message.removeprefix("Value error, ")
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise ConfigError(f"recipe field {field or '(top level)'}: {message}{more}") from error


def _override(raw: dict[str, Any], text: str) -> None:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ConfigError(f"{text!r} is no override; write section.field=value")
    *sections, field = name.split(".")
    place = raw
    for section in sections:
        place = place.setdefault(section, {})
        if not isinstance(place, dict):
            raise ConfigError(f"{text!r}: {section} is not a section")
    try:
        place[field] = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"{text!r}: the value is not YAML ({error})") from error
