"""``dspark convert``: from one layout to another, optionally with fewer slots or a smaller draft vocabulary."""

from __future__ import annotations

import hashlib
import json
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from sgl_dspark.config import ARCHITECTURE, DrafterConfig
from sgl_dspark.config_file import read_config_file
from sgl_dspark.data.cache import TargetCache, weights_sha256
from sgl_dspark.errors import ConfigError, DataError, TargetMismatchError
from sgl_dspark.interop.modelopt import is_modelopt, read_modelopt
from sgl_dspark.interop.portable import PortableDraft, read_tensors
from sgl_dspark.interop.speculators import is_speculators, read_speculators, write_speculators
from sgl_dspark.model.checkpoint import CONFIG_FILE, SHARED_TENSORS, VOCABULARY_TENSOR, WEIGHTS_FILE, save_weights
from sgl_dspark.model.provenance import other_target, read_provenance, write_provenance
from sgl_dspark.model.target import load_embeddings
from sgl_dspark.model.target_config import TargetConfig

Log = Callable[[str], None]


def convert(args: Namespace, log: Log) -> None:
    """Read ``args.source``, apply what the options ask for, write ``args.out``.

    An output that is there must be, file by file, what this conversion makes; then it is left as it is, so that the
    same command can be run again.

    Raises
    ------
    DsparkError
        If the draft cannot be read or represented, does not fit the target, or the output folder is the source or
        holds another model.
    """
    if args.out.resolve() == args.source.resolve():
        raise ConfigError("the output folder is the draft's own; choose another one")
    if args.to == "speculators" and args.target is None and not args.verifier:
        raise ConfigError("a speculators draft names its target; give --target or --verifier")
    target = None if args.target is None else TargetConfig.from_dir(args.target)
    embeddings = None if args.target is None else load_embeddings(args.target, torch.float32)
    depth = None if target is None else target.num_hidden_layers
    draft = read_draft(args.source, depth, embeddings and embeddings[1], sample_from_anchor=args.sample_from_anchor)
    if target is not None and embeddings is not None:
        _check_target(draft, target, embeddings)
    if args.block_size is not None:
        draft = cut_block(draft, args.block_size)
    if args.draft_vocabulary:
        draft = limit_vocabulary(draft, used_tokens(args.draft_vocabulary, draft.config.vocab_size, args.least))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    # Made beside it: a conversion that is killed leaves no half model under the name that was asked for.
    with TemporaryDirectory(prefix=f"{args.out.name}.partial-", dir=args.out.parent) as name:
        partial = Path(name)
        if args.to == "speculators":
            write_speculators(draft, partial, args.verifier or (args.target.name if args.target else ""))
        else:
            write_released(draft, partial, embeddings if args.with_embeddings else None)
        made = read_provenance(args.source)
        if made:
            write_provenance(partial, made)
        _install(partial, args.out, log)
    if args.target is not None:
        made_for = other_target(args.source, weights_sha256(args.target))
        if made_for is not None:
            log(f"warning: the draft was made for {made_for}, not for the weights in {args.target}")
    for note in draft.notes:
        log(note)
    proposes = draft.config.draft_vocab_size or draft.config.vocab_size
    log(f"{args.out}: {args.to} layout, blocks of {draft.config.gamma}, proposes {proposes} tokens")


def _install(partial: Path, out: Path, log: Log) -> None:
    """Move a whole conversion to where it was asked for, unless the same one is there."""
    files = sorted(partial.iterdir(), key=lambda file: file.name == CONFIG_FILE)
    if (out / CONFIG_FILE).exists():
        differing = sorted(file.name for file in files if _content(out / file.name) != _content(file))
        if differing:
            raise ConfigError(
                f"{out} holds another model already (it differs in {', '.join(differing)}); choose another folder, "
                "or remove it"
            )
        log(f"{out} holds what this conversion makes; it is left as it is")
        return
    out.mkdir(exist_ok=True)
    # The configuration last: a folder without it is no model, and is filled by the next attempt.
    for file in files:
        file.replace(out / file.name)


def _content(file: Path) -> str | None:
    """Hash a file; None where there is none."""
    if not file.is_file():
        return None
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_draft(
    folder: Path, num_target_layers: int | None, lm_head: Tensor | None, *, sample_from_anchor: bool = False
) -> PortableDraft:
    """Read a draft in whichever of the known layouts it is."""
    raw = read_config_file(folder)
    if is_speculators(raw):
        return read_speculators(folder, num_target_layers, lm_head, sample_from_anchor=sample_from_anchor)
    if is_modelopt(raw):
        return read_modelopt(folder, num_target_layers)
    if raw.get("architectures") != [ARCHITECTURE]:
        raise ConfigError(
            f"{folder} is no draft in a layout that is read (architectures {raw.get('architectures')!r}); "
            f"give a folder of {ARCHITECTURE}, of speculators or of ModelOpt."
        )
    return PortableDraft(DrafterConfig.from_dir(folder), read_tensors(folder)).check(folder)


def write_released(draft: PortableDraft, folder: Path, embeddings: tuple[Tensor, Tensor] | None) -> None:
    """Write the released layout, with the target's embedding and head where they are given."""
    tensors = {n: t.contiguous() for n, t in draft.tensors.items() if n not in SHARED_TENSORS}
    dtype = tensors["fc.weight"].dtype
    if embeddings is not None:
        # Copies: a file cannot hold one tensor under two names.
        tensors |= {name: t.to(dtype).clone() for name, t in zip(SHARED_TENSORS, embeddings, strict=True)}
    folder.mkdir(parents=True, exist_ok=True)
    save_weights(tensors, folder / WEIGHTS_FILE)
    raw = draft.config.to_dict() | {"dtype": str(dtype).removeprefix("torch.")}
    (folder / CONFIG_FILE).write_text(json.dumps(dict(sorted(raw.items())), indent=2) + "\n", encoding="utf-8")


def cut_block(draft: PortableDraft, gamma: int) -> PortableDraft:
    """Return the draft with ``gamma`` slots; raises `ConfigError` for more than it was trained with.

    Slots see each other both ways, so a draft drafts best with the length that it was trained with.
    """
    if not 1 <= gamma <= draft.config.gamma:
        raise ConfigError(f"--block-size is {gamma}; the draft was trained with {draft.config.gamma}")
    return replace(draft, config=replace(draft.config, gamma=gamma))


def used_tokens(caches: list[Path], vocab_size: int, least: int) -> Tensor:
    """Ids that the caches supervise at least ``least`` times, int64 ascending; raises `DataError` if there are none."""
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for cache in map(TargetCache.open, caches):
        for entry in cache.shards:
            for conversation in cache.read(entry):
                counts += torch.bincount(conversation.ids[conversation.loss_mask], minlength=vocab_size)
    ids = (counts >= least).nonzero().flatten()
    if not len(ids):
        raise DataError(f"no token occurs {least} times in the data; give a smaller --least")
    return ids


def limit_vocabulary(draft: PortableDraft, ids: Tensor) -> PortableDraft:
    """Return the draft proposing only ``ids`` (int64 ascending) of what it proposes now.

    A draft evaluates its head on every token that it may propose. Output stays exact: a token outside is emitted as
    often as the target says, and never drafted.
    """
    if draft.vocabulary is not None:
        ids = ids[torch.isin(ids, draft.vocabulary)]
    config = replace(draft.config, draft_vocab_size=len(ids))
    return replace(draft, config=config, tensors={**draft.tensors, VOCABULARY_TENSOR: ids})


def _check_target(draft: PortableDraft, target: TargetConfig, embeddings: tuple[Tensor, Tensor]) -> None:
    """Refuse a draft of another target, as far as sizes and stored copies of the target's tensors tell."""
    for name in ("hidden_size", "vocab_size"):
        own, wanted = getattr(draft.config, name), getattr(target, name)
        if own != wanted:
            raise TargetMismatchError(
                f"the draft's {name} is {own}, the target's {wanted}; use the target that it was trained for."
            )
    for name, wanted in zip(SHARED_TENSORS, embeddings, strict=True):
        stored = draft.tensors.get(name)
        if stored is not None and not torch.equal(stored.float(), wanted.to(stored.dtype).float()):
            raise TargetMismatchError(
                f"{name} in the draft is not the target's; use the target that it was trained for."
            )
