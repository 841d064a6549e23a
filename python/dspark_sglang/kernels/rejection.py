"""Verify drafted blocks: two kernels on a CUDA device, else ``sgl_dspark.sampling.rejection``.

Shapes: R requests, G = gamma draft slots, V vocabulary, T flat target rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dspark_sglang.kernels.choice import kernels_run_on
from sgl_dspark.sampling import rejection as reference
from sgl_dspark.sampling.draw import uniforms as fresh_uniforms
from sgl_dspark.sampling.rejection import Verdict
from sgl_dspark.sampling.warp import greediness

if TYPE_CHECKING:
    from torch import Tensor

    from sgl_dspark.sampling.block import DraftBlock
    from sgl_dspark.sampling.warp import Greediness

MAX_SHORTLIST = 1024
"""Candidates that tiles of the vocabulary are compared with."""


@torch.no_grad()
def verify(
    block: DraftBlock,
    verify_lens: Tensor,
    *,
    target_argmax: Tensor | None = None,
    target_probs: Tensor | None = None,
    greedy_rows: Tensor | None = None,
    greedy: Greediness | None = None,
    uniforms: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Verdict:
    """Accept a prefix of every block and emit one token more, so that the output has the target's law (Sec. 2.1).

    The kernel takes the residual in the same fp32 as the reference and sums it in fp64, so that the same uniforms give
    the same tokens but where a uniform falls into the rounding. With ``greedy`` given it reads nothing back.

    Parameters
    ----------
    verify_lens : int [R]
        In 1..G+1, anchor included. To the kernel, 0 marks a row that only pads a captured batch: it owns no target
        row and emits nothing (``accept_lens`` 0). The reference does not know such rows.
    block, target_argmax, target_probs, greedy_rows, greedy, uniforms, generator
        As in ``sgl_dspark.sampling.rejection.verify``.

    Returns
    -------
    Verdict

    Raises
    ------
    ValueError
        If what the requests of one kind need is missing.
    """
    if not _kernel_serves(block, target_probs):
        return reference.verify(
            block,
            verify_lens,
            target_argmax=target_argmax,
            target_probs=target_probs,
            greedy_rows=greedy_rows,
            greedy=greedy,
            uniforms=uniforms,
            generator=generator,
        )
    if greedy is None:
        default: Greediness = "all" if target_probs is None else "none"
        greedy = greediness(greedy_rows) if greedy_rows is not None else default
    reference.check_given(block, greedy, target_argmax, target_probs, greedy_rows)
    if greedy != "all" and uniforms is None:
        rows, width = block.tokens.shape[0], block.tokens.shape[1] + 1
        uniforms = fresh_uniforms(rows, width, device=verify_lens.device, generator=generator)
    argmax = None if greedy == "none" else target_argmax
    probs = None if greedy == "all" else target_probs
    return _launch(block, verify_lens, probs, argmax, greedy_rows if greedy == "some" else None, uniforms)


def _launch(
    block: DraftBlock,
    verify_lens: Tensor,
    target_probs: Tensor | None,
    target_argmax: Tensor | None,
    greedy_rows: Tensor | None,
    uniforms: Tensor | None,
) -> Verdict:
    """Run the kernels; see ``triton_ops.rejection.launch`` for what may be None."""
    from dspark_sglang.kernels.triton_ops.rejection import launch

    law = None
    if target_probs is not None and block.probs is not None and block.token_probs is not None:
        law = block.candidates, block.probs, block.token_probs
    accept_lens, out_tokens, fallbacks = launch(
        block.tokens, law, verify_lens, target_probs, target_argmax, greedy_rows, uniforms
    )
    return Verdict(accept_lens, out_tokens, fallbacks.sum())


def _kernel_serves(block: DraftBlock, target_probs: Tensor | None) -> bool:
    """Tell whether the kernel takes such a block: laws in fp32, and few candidates or none listed."""
    if not kernels_run_on(block.tokens.device):
        return False
    if target_probs is None or block.probs is None:
        return True
    listed = block.candidates
    exact = target_probs.dtype == block.probs.dtype == torch.float32 and block.probs.stride(2) == 1
    return exact and (listed is None or (listed.shape[2] <= MAX_SHORTLIST and listed.stride(2) == 1))
