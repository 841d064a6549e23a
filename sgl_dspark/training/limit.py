"""``dspark train limit``: let a trained draft propose only the tokens that its data uses."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

import torch

from sgl_dspark.errors import DataError
from sgl_dspark.model.checkpoint import load_drafter, save_drafter
from sgl_dspark.training.data import cache_shards
from sgl_dspark.training.fit import core_vocabulary
from sgl_dspark.training.target import TargetModel


def limit(args: Namespace, log: Callable[[str], None]) -> None:
    """Write the draft with a draft vocabulary: ids that the data supervises at least ``least`` times.

    A draft evaluates its head on every token that it may propose; on the demo target's 49,152 that is half of its
    time. Output stays exact: a token outside is emitted as often as the target says, and never drafted.

    Parameters
    ----------
    args : Namespace
        ``target``, ``draft``, ``data`` (cache folders), ``least``, ``out``.
    log : callable
        Receives one line.

    Raises
    ------
    DataError
        If no id occurs that often.
    """
    target = TargetModel.from_dir(args.target, torch.float32)
    shards = [path for folder in args.data for path in cache_shards(folder)]
    ids = core_vocabulary(shards, target.config.vocab_size, args.least)
    if not ids.numel():
        raise DataError(f"no id occurs {args.least} times in the data; give a smaller --least")
    shared = {"target_embed": target.embed, "target_lm_head": target.lm_head}
    drafter = load_drafter(args.draft, dtype=torch.float32, device="cpu", **shared)
    # The limited draft is in the type that drafts are stored in.
    save_drafter(drafter.limit_vocabulary(ids).to(torch.bfloat16), args.out, include_shared=False)
    log(f"{args.out} proposes {ids.numel()} of {target.config.vocab_size} tokens")
