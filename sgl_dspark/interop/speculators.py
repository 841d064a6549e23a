"""The layout of the ``speculators`` library (speculators_model_type ``dspark``).

Differences to the released format: the transformer's sizes stand in ``transformer_layer_config``; feature layers are
numbered with the embedding output as 0 (our id + 1); a reduced draft vocabulary is stored as offsets ``d2t`` (target id
= draft id + offset) with a head and a Markov output of that many rows; copies of the target's tensors may be absent.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sgl_dspark.config import ARCHITECTURE, MODEL_TYPE, DrafterConfig
from sgl_dspark.config_file import read_config_file
from sgl_dspark.errors import CheckpointError, ConfigError
from sgl_dspark.interop.portable import PortableDraft, field, geometry, read_tensors
from sgl_dspark.model.checkpoint import SHARED_TENSORS, VOCABULARY_TENSOR, WEIGHTS_FILE, save_weights

NAME = "speculators"
_BIAS_OUT = "markov_head.markov_w2.weight"


def is_speculators(raw: dict[str, Any]) -> bool:
    """Whether a configuration is of this layout."""
    return "speculators_model_type" in raw or "transformer_layer_config" in raw


def read_speculators(
    folder: Path, num_target_layers: int | None, lm_head: Tensor | None, *, sample_from_anchor: bool = False
) -> PortableDraft:
    """Read a draft.

    Parameters
    ----------
    folder : Path
    num_target_layers : int, optional
        Depth of the target, which this layout does not store; the lowest that fits if unknown.
    lm_head : [V, d], optional
        The target's head, to compare a stored one with.
    sample_from_anchor : bool
        Take the draft's word for the anchor layout as given when the file does not say it.

    Raises
    ------
    ConfigError, CheckpointError
        If the draft is of another kind, or cannot be represented; names the field or the tensor.
    """
    raw = read_config_file(folder)
    where = f"{folder / 'config.json'}: "
    if field(raw, "speculators_model_type", where) != "dspark":
        raise ConfigError(f"{where}speculators_model_type is {raw['speculators_model_type']!r}; only 'dspark' is read.")
    _check_anchor(raw, where, sample_from_anchor)
    inner = field(raw, "transformer_layer_config", where)
    if inner.get("model_type", MODEL_TYPE) != MODEL_TYPE:
        raise ConfigError(f"{where}transformer_layer_config.model_type is {inner['model_type']!r}; only qwen3 is read.")
    # The library leaves out what is a default of transformers' configuration.
    from transformers import Qwen3Config

    sizes = geometry(Qwen3Config(**inner).to_dict(), where + "transformer_layer_config.")
    width = raw.get("target_hidden_size")
    if width is not None and width != sizes["hidden_size"]:
        raise ConfigError(f"{where}target_hidden_size is {width}; only the draft's own ({sizes['hidden_size']}) works.")
    layers = [layer - 1 for layer in field(raw, "aux_hidden_state_layer_ids", where)]
    tensors = {name: t for name, t in read_tensors(folder).items() if not name.startswith("verifier_")}
    vocab, reduced = sizes["vocab_size"], raw.get("draft_vocab_size") or sizes["vocab_size"]
    config = DrafterConfig.from_dict(
        {
            **sizes,
            "architectures": [ARCHITECTURE],
            "model_type": MODEL_TYPE,
            "block_size": field(raw, "block_size", where),
            "mask_token_id": field(raw, "mask_token_id", where),
            "target_layer_ids": layers,
            "num_target_layers": num_target_layers or max(layers) + 2,
            "markov_rank": raw.get("markov_rank", 0),
            "markov_head_type": raw.get("markov_head_type", "vanilla") if raw.get("markov_rank") else None,
            "enable_confidence_head": raw.get("enable_confidence_head", False),
            "confidence_head_with_markov": raw.get("confidence_head_with_markov", False),
            "draft_vocab_size": None if reduced == vocab else reduced,
        }
    )
    notes = _widen(tensors, config, folder, lm_head)
    return PortableDraft(config, tensors, tuple(notes)).check(folder)


def _check_anchor(raw: dict[str, Any], where: str, assumed: bool) -> None:
    stored = raw.get("sample_from_anchor")
    if stored is False:
        raise ConfigError(
            f"{where}sample_from_anchor is false: its blocks predict at the masks, not from the anchor on, which "
            "this format cannot say."
        )
    if stored is None and not assumed:
        raise ConfigError(
            f"{where}sample_from_anchor is missing; if the draft's first slot predicts the token behind the anchor, "
            "say so with --sample-from-anchor."
        )


def _widen(tensors: dict[str, Tensor], config: DrafterConfig, folder: Path, lm_head: Tensor | None) -> list[str]:
    """Turn a reduced vocabulary into ids and rows of the whole one; return what was left out."""
    notes: list[str] = []
    offsets, flags = tensors.pop("d2t", None), tensors.pop("t2d", None)
    head = tensors.pop("lm_head.weight", None)
    if config.draft_vocab_size is None:
        if head is not None:
            tensors["lm_head.weight"] = head
        return notes
    if offsets is None:
        raise CheckpointError(f"{folder} lacks d2t, which maps its {config.draft_vocab_size} draft ids to tokens.")
    ids = torch.arange(config.draft_vocab_size) + offsets.long()
    if bool((ids.diff() <= 0).any()):
        raise CheckpointError(f"d2t in {folder} does not give increasing token ids.")
    if flags is not None and not torch.equal(flags.bool().nonzero().flatten(), ids):
        raise CheckpointError(f"t2d and d2t in {folder} name different tokens.")
    tensors[VOCABULARY_TENSOR] = ids
    if _BIAS_OUT in tensors:
        rows = tensors[_BIAS_OUT]
        # Rows that are never proposed are never read.
        tensors[_BIAS_OUT] = rows.new_zeros((config.vocab_size, rows.shape[1]))
        tensors[_BIAS_OUT][ids] = rows
    if head is None:
        return notes
    if lm_head is None:
        raise CheckpointError(f"{folder} stores a head of its own; give --target, to compare it with the target's.")
    if not torch.equal(head.float(), lm_head[ids].to(head.dtype).float()):
        raise CheckpointError(f"lm_head.weight in {folder} is not the target's; a draft shares the target's head.")
    return ["lm_head.weight is left out: its rows are the target's"]


def write_speculators(draft: PortableDraft, folder: Path, verifier: str) -> None:
    """Write a draft; embedding and full head are left out, as the library does.

    Parameters
    ----------
    draft : PortableDraft
    folder : Path
        Made if missing.
    verifier : str
        Name or path of the target, for ``speculators_config``.
    """
    config, ids = draft.config, draft.vocabulary
    tensors = {n: t.contiguous() for n, t in draft.tensors.items() if n not in (*SHARED_TENSORS, VOCABULARY_TENSOR)}
    if ids is not None:
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool)
        tensors["t2d"][ids] = True
        if _BIAS_OUT in tensors:
            tensors[_BIAS_OUT] = tensors[_BIAS_OUT][ids].contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    save_weights(tensors, folder / WEIGHTS_FILE)
    text = json.dumps(_config(config, ids, verifier, _dtype(tensors)), indent=2)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def _dtype(tensors: dict[str, Tensor]) -> str:
    return str(tensors["fc.weight"].dtype).removeprefix("torch.")


def _config(config: DrafterConfig, ids: Tensor | None, verifier: str, dtype: str) -> dict[str, Any]:
    flat = config.to_dict()
    own = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "head_dim", "vocab_size", "rms_norm_eps", "max_position_embeddings", "rope_parameters", "attention_bias",
        "hidden_act", "layer_types",
    )  # fmt: skip
    return {
        "architectures": ["DSparkSpeculator"],
        "speculators_model_type": "dspark",
        "dtype": dtype,
        "transformer_layer_config": {"model_type": MODEL_TYPE, **{name: flat[name] for name in own}},
        "draft_vocab_size": config.vocab_size if ids is None else len(ids),
        "block_size": config.gamma,
        "sample_from_anchor": True,
        "aux_hidden_state_layer_ids": [layer + 1 for layer in config.target_layer_ids],
        "mask_token_id": config.mask_token_id,
        "markov_rank": config.markov_rank,
        "markov_head_type": config.markov_head_type or "vanilla",
        "enable_confidence_head": config.enable_confidence_head,
        "confidence_head_with_markov": config.confidence_head_with_markov,
        "speculators_config": {
            "algorithm": "dspark",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": config.gamma}],
            "verifier": {"name_or_path": verifier},
        },
    }
