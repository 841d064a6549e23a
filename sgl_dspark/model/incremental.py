"""The cached inference path for one request: the reference for serving."""

from __future__ import annotations

import torch
from torch import Tensor

from sgl_dspark.model.context import ContextCache
from sgl_dspark.model.drafter import Drafter


class IncrementalDrafter:
    """Drafts block after block for one request, adding to the context only what was committed (Sec. 3.1).

    Parameters
    ----------
    drafter : Drafter
        Shared; this object only owns the request's context cache.
    """

    def __init__(self, drafter: Drafter) -> None:
        config, weight = drafter.config, drafter.fc.weight
        self.drafter = drafter
        self.cache = ContextCache(
            config.num_hidden_layers, config.num_key_value_heads, config.head_dim, weight.dtype, weight.device
        )

    def append(self, features: Tensor) -> None:
        """Commit target features [n, m*d] of the next n positions.

        The prompt first, then each round's old anchor and accepted drafts. The current anchor's own feature is not
        known yet and never among them.
        """
        start = self.cache.length
        positions = torch.arange(start, start + features.shape[0], device=features.device)
        self.cache.append(*self.drafter.context_kv(self.drafter.project_context(features), positions))

    def block_hidden(self, anchor_token: int) -> Tensor:
        """Return hidden states [gamma, d] of the block whose anchor sits right after the context."""
        device = self.drafter.fc.weight.device
        tokens = torch.tensor([anchor_token], device=device)
        positions = torch.tensor([self.cache.length], device=device)
        return self.drafter.block_hidden(tokens, positions, self.cache.attend)[0]
