"""Target features to drafter context (Eq. 2), and the reference cache of context keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def concat_features(hidden_states: Sequence[Tensor], target_layer_ids: Sequence[int]) -> Tensor:
    """Concatenate raw decoder-layer outputs in the order of ``target_layer_ids`` (Eq. 2).

    Parameters
    ----------
    hidden_states : sequence of [..., d]
        Embedding output first, then the output of every layer after its residual adds and before any later norm
        (``output_hidden_states`` of transformers, whose last entry, post-norm there, is never selected).
    target_layer_ids : sequence of int
        0-based layer ids; -1 is the embedding output.

    Returns
    -------
    [..., m*d]
    """
    return torch.cat([hidden_states[layer + 1] for layer in target_layer_ids], dim=-1)


class ContextCache:
    """Context KV of one request, one contiguous tensor per kind: the reference that serving pools are compared with.

    Holds keys (normed and rotated) and values of context positions 0..length-1 and nothing else: the block's own keys
    and values pass through :meth:`attend` without being stored.

    Parameters
    ----------
    num_layers, num_kv_heads, head_dim : int
        L, J and D.
    dtype, device
        Of the stored tensors.
    """

    def __init__(
        self, num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self._k = torch.empty((num_layers, 0, num_kv_heads, head_dim), dtype=dtype, device=device)
        self._v = self._k.clone()
        self.length = 0

    def append(self, k: Tensor, v: Tensor) -> None:
        """Add the context rows of positions ``length``, ``length + 1``, ...; k and v are [L, n, J, D]."""
        end = self.length + k.shape[1]
        if end > self._k.shape[1]:
            self._k, self._v = (self._grown(x, end) for x in (self._k, self._v))
        self._k[:, self.length : end] = k
        self._v[:, self.length : end] = v
        self.length = end

    def crop(self, length: int) -> None:
        """Forget every context position from ``length`` on.

        Raises
        ------
        ValueError
            If ``length`` exceeds what is held.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot crop a context of {self.length} positions to {length}")
        self.length = length

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Let one block see the whole context and all of its own slots (R = 1; see ``attention.Attend``)."""
        keys = torch.cat((self._k[layer, : self.length], k)).transpose(0, 1)
        values = torch.cat((self._v[layer, : self.length], v)).transpose(0, 1)
        out = F.scaled_dot_product_attention(q.transpose(0, 1)[None], keys[None], values[None], enable_gqa=True)
        return out[0].transpose(0, 1)

    def _grown(self, old: Tensor, needed: int) -> Tensor:
        capacity = max(needed, 2 * old.shape[1], 64)
        new = old.new_empty((old.shape[0], capacity, *old.shape[2:]))
        new[:, : self.length] = old[:, : self.length]
        return new
