"""Recomputing every quantity of a golden folder and measuring the largest error of each."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from sgl_dspark.errors import GoldenError
from sgl_dspark.golden.folder import GoldenFolder, read_folder
from sgl_dspark.model.attention import block_mask
from sgl_dspark.model.checkpoint import WEIGHTS_FILE
from sgl_dspark.model.context import concat_features
from sgl_dspark.model.drafter import Drafter
from sgl_dspark.model.incremental import IncrementalDrafter
from sgl_dspark.sampling.block import sample_block
from sgl_dspark.training.anchors import BlockLabels, block_labels, candidate_anchors
from sgl_dspark.training.forward import blocks_hidden, draft_logits, head_latents
from sgl_dspark.training.fused import chunked_loss
from sgl_dspark.training.losses import LossWeights, slot_losses, slot_weights, weighted_sums

ABSOLUTE = 1e-4
RELATIVE = 1e-5


@dataclass(frozen=True)
class Comparison:
    """Largest error of one quantity.

    Attributes
    ----------
    quantity : str
        Tensor or scalar of the folder; a suffix names the code path where several give the same quantity.
    kind : {"absolute", "relative", "mismatches"}
        What ``error`` measures; the last counts elements that differ.
    error, tolerance : float
        An error that is not a number is infinite.
    """

    quantity: str
    kind: str
    error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the error is within tolerance."""
        return self.error <= self.tolerance


@torch.no_grad()
def replay(path: Path) -> list[Comparison]:
    """Recompute a folder's tensors and loss terms.

    Parameters
    ----------
    path : Path
        A folder in the format of ``tests/golden/README.md``.

    Returns
    -------
    list of Comparison
        Target, training path, incremental path, losses, in this order.

    Raises
    ------
    DsparkError
        If the folder, its draft or its target cannot be loaded.
    """
    folder = read_folder(path)
    labels = block_labels(
        folder.io["input_ids"],
        folder.io["loss_mask"],
        folder.io["anchors"],
        folder.io["block_keep"],
        folder.drafter.config.gamma,
    )
    fused = copy.deepcopy(folder.drafter)
    fused.fuse_for_serving()
    return [
        *_replay_target(folder),
        *_replay_labels(folder, labels),
        *_replay_training(folder, fused, labels),
        *_replay_incremental(folder, folder.drafter, ""),
        *_replay_incremental(folder, fused, " (fused)"),
        *_replay_losses(folder, labels),
    ]


def _replay_target(folder: GoldenFolder) -> list[Comparison]:
    try:
        from transformers import Qwen3Config, Qwen3ForCausalLM
    except ImportError as error:
        raise GoldenError("replaying the target needs transformers: pip install 'sgl-dspark[train]'.") from error
    io = folder.io
    try:
        target = Qwen3ForCausalLM(Qwen3Config.from_pretrained(folder.path / "target")).eval()
        target.load_state_dict(load_file(folder.path / "target" / WEIGHTS_FILE))
        out = target(input_ids=io["input_ids"], output_hidden_states=True)
    except (OSError, ValueError, RuntimeError, IndexError, SafetensorError) as error:
        raise GoldenError(f"cannot run the target in {folder.path / 'target'}: {error}.") from error
    features = concat_features(out.hidden_states, folder.drafter.config.target_layer_ids)
    return [
        _absolute("context_features", features, io["context_features"]),
        _absolute("target_last_hidden", out.hidden_states[-1], io["target_last_hidden"]),
        _absolute("target_logits", out.logits, io["target_logits"]),
    ]


def _replay_labels(folder: GoldenFolder, labels: BlockLabels) -> list[Comparison]:
    io, keep = folder.io, folder.io["block_keep"]
    mask = block_mask(io["anchors"], keep, io["input_ids"].shape[1], folder.drafter.config.gamma)
    allowed = candidate_anchors(io["loss_mask"]).gather(1, io["anchors"])
    return [
        _exact("anchors (are candidates)", allowed[keep], torch.ones_like(allowed[keep])),
        _exact("attention_mask", mask, io["attention_mask"]),
        _exact("target_ids", labels.target_ids[keep], io["target_ids"][keep]),
        _exact("slot_valid", labels.slot_valid, io["slot_valid"]),
    ]


def _replay_training(folder: GoldenFolder, fused: Drafter, labels: BlockLabels) -> list[Comparison]:
    io, drafter, keep = folder.io, folder.drafter, folder.io["block_keep"]
    inputs = (io["context_features"], io["input_ids"], io["anchors"], keep)
    h = blocks_hidden(drafter, *inputs, dense=True)
    logits = draft_logits(drafter, h, head_latents(drafter, h, labels.prev_tokens))
    confidence = drafter.confidence_logits(h, labels.prev_tokens)
    sequences = torch.arange(len(keep))[:, None, None]
    aligned = drafter.base_logits(io["target_last_hidden"])[sequences, labels.target_rows]
    wanted = io["block_hidden"][keep]
    return [
        _absolute("block_hidden", h[keep], wanted),
        _absolute("block_hidden (windowed)", blocks_hidden(drafter, *inputs)[keep], wanted),
        _absolute("block_hidden (fused)", blocks_hidden(fused, *inputs)[keep], wanted),
        _absolute("draft_logits", logits[keep], io["draft_logits"][keep]),
        _absolute("confidence_logits", confidence[keep], io["confidence_logits"][keep]),
        _absolute("aligned_target_logits", aligned[keep], io["aligned_target_logits"][keep]),
    ]


def _replay_incremental(folder: GoldenFolder, drafter: Drafter, suffix: str) -> list[Comparison]:
    io = folder.io
    request = IncrementalDrafter(drafter)
    hidden = []
    for anchor in io["incremental_anchors"].tolist():
        request.append(io["context_features"][0, request.cache.length : anchor])
        hidden.append(request.block_hidden(int(io["input_ids"][0, anchor])))
    h = torch.stack(hidden)
    anchors = io["input_ids"][0, io["incremental_anchors"]]
    tokens, logits, confidence = draft_greedily(drafter, h, anchors)
    block = sample_block(drafter, h, anchors, torch.zeros(len(h)))
    return [
        _absolute(f"incremental_hidden{suffix}", h, io["incremental_hidden"]),
        _exact(f"greedy_tokens{suffix}", tokens, io["greedy_tokens"]),
        _absolute(f"greedy_logits{suffix}", logits, io["greedy_logits"]),
        _absolute(f"greedy_confidence_logits{suffix}", confidence, io["greedy_confidence_logits"]),
        _exact(f"greedy_tokens (sampler){suffix}", block.tokens, io["greedy_tokens"]),
    ]


def draft_greedily(drafter: Drafter, h: Tensor, anchor_tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Draft each slot's most probable token, left to right, over the whole vocabulary.

    Parameters
    ----------
    drafter : Drafter
    h : [R, gamma, d]
    anchor_tokens : int64 [R]

    Returns
    -------
    tokens : int64 [R, gamma]
    logits : [R, gamma, V]
        With the sequential bias.
    confidence_logits : fp32 [R, gamma]
    """
    head = drafter.markov_head
    state = None if head is None else head.initial_state(len(h), h.device, h.dtype)
    prev, tokens, logits, confidence = anchor_tokens, [], [], []
    for slot in range(h.shape[1]):
        row = drafter.base_logits(h[:, slot])
        if head is not None:
            latent, state = head.step(prev, h[:, slot], state)
            row = row + head.bias(latent)
        confidence.append(drafter.confidence_logits(h[:, slot], prev))
        prev = row.argmax(-1)
        tokens.append(prev)
        logits.append(row)
    return torch.stack(tokens, 1), torch.stack(logits, 1), torch.stack(confidence, 1)


def _replay_losses(folder: GoldenFolder, labels: BlockLabels) -> list[Comparison]:
    io, drafter, wanted = folder.io, folder.drafter, folder.scalars
    weights = slot_weights(labels.slot_valid, wanted["loss_decay"])
    coefficients = LossWeights(*folder.alpha)
    h = blocks_hidden(drafter, io["context_features"], io["input_ids"], io["anchors"], io["block_keep"])
    latents = head_latents(drafter, h, labels.prev_tokens)
    valid = labels.slot_valid
    offsets = torch.arange(len(valid))[:, None, None] * io["input_ids"].shape[1]
    rows = (labels.target_rows + offsets)[valid]
    target_hidden = io["target_last_hidden"].flatten(0, 1)
    confidence = drafter.confidence_logits(h, labels.prev_tokens)[valid] if drafter.confidence_head else None
    kept_latents = None if latents is None else latents[valid]
    logits = draft_logits(drafter, h[valid], kept_latents)
    slots = slot_losses(logits, drafter.base_logits(target_hidden)[rows], labels.target_ids[valid], confidence)
    sums = weighted_sums(slots, weights[valid])
    chunked, _, _ = chunked_loss(
        drafter,
        h[valid],
        kept_latents,
        labels.prev_tokens[valid],
        labels.target_ids[valid],
        weights[valid],
        target_hidden,
        rows,
        coefficients=coefficients,
        chunk=16,
    )
    terms = {"ce_loss": sums.ce, "l1_loss": sums.tv, "confidence_loss": sums.confidence}
    found = [(f"{name}_num", value) for name, value in terms.items()]
    found += [(f"{name}_den", sums.weight) for name in terms]
    comparisons = [_relative(name, float(value), wanted[name]) for name, value in found]
    comparisons.append(_relative("loss", float(sums.total(coefficients)), wanted["loss"]))
    comparisons.append(_relative("loss (chunked)", float(chunked), wanted["loss"]))
    return comparisons


def _absolute(quantity: str, found: Tensor, wanted: Tensor) -> Comparison:
    error = float((found - wanted).abs().max()) if wanted.numel() else 0.0
    return Comparison(quantity, "absolute", error if error == error else float("inf"), ABSOLUTE)


def _relative(quantity: str, found: float, wanted: float) -> Comparison:
    error = abs(found - wanted) / max(abs(wanted), 1e-12)
    return Comparison(quantity, "relative", error if error == error else float("inf"), RELATIVE)


def _exact(quantity: str, found: Tensor, wanted: Tensor) -> Comparison:
    return Comparison(quantity, "mismatches", float((found != wanted).sum()), 0.0)
