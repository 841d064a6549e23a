"""The draft's side of offline decoding: what it keeps of each request, and how it drafts for many at once.

Shape letters: R requests that draft, n committed rows, L layers, B places for requests, S positions, J key/value heads,
D head dim, G = gamma, V vocabulary, m*d features.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from sgl_dspark.errors import ConfigError
from sgl_dspark.model.checkpoint import load_drafter
from sgl_dspark.model.drafter import Drafter
from sgl_dspark.model.eagle3 import Eagle3Drafter, is_eagle3, load_eagle3
from sgl_dspark.model.target import TargetModel
from sgl_dspark.sampling.block import DraftBlock, sample_block
from sgl_dspark.sampling.draw import draw
from sgl_dspark.sampling.warp import Greediness


class DraftSide(Protocol):
    """A draft and what it keeps of up to B requests."""

    gamma: int
    feature_layers: tuple[int, ...]
    has_confidence: bool

    def reserve(self, places: int, positions: int) -> None:
        """Make room for ``places`` requests of up to ``positions`` tokens each; forgets everything."""

    def commit(self, places: Tensor, positions: Tensor, features: Tensor, next_tokens: Tensor) -> None:
        """Take the target's features of committed tokens.

        Parameters
        ----------
        places, positions : int64 [n]
            Request and position of each row; each request's positions without a gap.
        features : [n, m*d]
        next_tokens : int64 [n]
            The token behind each row; behind a request's last row that is its anchor.
        """

    def draft(
        self, places: Tensor, lengths: Tensor, anchors: Tensor, temperature: float, uniforms: Tensor
    ) -> DraftBlock:
        """Draft one block per request.

        Parameters
        ----------
        places, lengths, anchors : int64 [R]
            Request, its committed rows, and the token behind them.
        temperature : float
            0 is greedy.
        uniforms : fp64 [R, G]
        """


def load_side(folder: Path, target: TargetModel, shortlist: int | None = None) -> DraftSide:
    """Load a draft of any kind beside its target.

    Parameters
    ----------
    folder : Path
    target : TargetModel
    shortlist : int, optional
        Draw each slot from so many of its largest base logits; block drafts only.
    """
    if is_eagle3(folder):
        if shortlist is not None:
            raise ConfigError("a shortlist needs a block draft; the autoregressive baseline has none")
        return ChainSide(load_eagle3(folder, dtype=target.dtype, embed=target.embed, lm_head=target.lm_head))
    drafter = load_drafter(
        folder, dtype=target.dtype, device=target.device, target_embed=target.embed, target_lm_head=target.lm_head
    )
    drafter.fuse_for_serving()
    return BlockSide(drafter, shortlist)


class BlockSide:
    """A block draft (DSpark, DFlash) with its context keys and values.

    Parameters
    ----------
    drafter : Drafter
        In the target's dtype, sharing its embedding and head.
    shortlist : int, optional
        Candidates per slot; the whole (draft) vocabulary by default.
    """

    def __init__(self, drafter: Drafter, shortlist: int | None = None) -> None:
        self.drafter, self.config, self._shortlist = drafter, drafter.config, shortlist
        self.has_confidence = drafter.confidence_head is not None
        self.gamma, self.feature_layers = drafter.config.gamma, drafter.config.target_layer_ids
        self.reserve(1, 1)

    def reserve(self, places: int, positions: int) -> None:
        """See `DraftSide.reserve`."""
        config, weight = self.config, self.drafter.fc.weight
        shape = (config.num_hidden_layers, places, positions, config.num_key_value_heads, config.head_dim)
        self._k, self._v = (torch.zeros(shape, dtype=weight.dtype, device=weight.device) for _ in range(2))

    def commit(self, places: Tensor, positions: Tensor, features: Tensor, next_tokens: Tensor) -> None:
        """See `DraftSide.commit`."""
        k, v = self.drafter.context_kv(self.drafter.project_context(features), positions)
        self._k[:, places, positions] = k
        self._v[:, places, positions] = v

    def draft(
        self, places: Tensor, lengths: Tensor, anchors: Tensor, temperature: float, uniforms: Tensor
    ) -> DraftBlock:
        """See `DraftSide.draft`."""
        used = int(lengths.max())
        visible = torch.arange(used, device=lengths.device) < lengths[:, None]
        mask = F.pad(visible, (0, self.gamma), value=True)[:, None, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            own_k, own_v = (x.unflatten(0, (-1, self.gamma)) for x in (k, v))
            keys = torch.cat((self._k[layer, places, :used], own_k), 1).transpose(1, 2)
            values = torch.cat((self._v[layer, places, :used], own_v), 1).transpose(1, 2)
            queries = q.unflatten(0, (-1, self.gamma)).transpose(1, 2)
            out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)
            return out.transpose(1, 2).reshape(q.shape)

        h = self.drafter.block_hidden(anchors, lengths, attend)
        temperatures = torch.full((len(anchors),), temperature, device=h.device)
        greedy: Greediness = "none" if temperature > 0 else "all"
        return sample_block(
            self.drafter, h, anchors, temperatures, shortlist=self._shortlist, uniforms=uniforms, greedy=greedy
        )


class ChainSide:
    """An autoregressive draft with the keys and values of committed (feature, next token) rows.

    Parameters
    ----------
    drafter : Eagle3Drafter
    """

    has_confidence = False

    def __init__(self, drafter: Eagle3Drafter) -> None:
        self.drafter, self.config = drafter, drafter.config
        self.gamma, self.feature_layers = drafter.config.gamma, drafter.config.target_layer_ids
        self.reserve(1, 1)

    def reserve(self, places: int, positions: int) -> None:
        """See `DraftSide.reserve`."""
        config, weight = self.config, self.drafter.fc.weight
        shape = (places, positions, config.num_key_value_heads, config.head_dim)
        self._k, self._v = (torch.zeros(shape, dtype=weight.dtype, device=weight.device) for _ in range(2))
        self._last = torch.zeros((places, config.hidden_size), dtype=weight.dtype, device=weight.device)

    def commit(self, places: Tensor, positions: Tensor, features: Tensor, next_tokens: Tensor) -> None:
        """See `DraftSide.commit`."""
        stream = self.drafter.project_features(features)
        k, v = self.drafter.context_kv(stream, next_tokens, positions)
        self._k[places, positions] = k
        self._v[places, positions] = v
        # Rows of a request come in order, so that its last one stays.
        for row, place in enumerate(places.tolist()):
            self._last[place] = stream[row]

    def draft(
        self, places: Tensor, lengths: Tensor, anchors: Tensor, temperature: float, uniforms: Tensor
    ) -> DraftBlock:
        """See `DraftSide.draft`."""
        stream, previous = self._last[places], anchors
        memory = _ChainMemory(self._k[places], self._v[places], lengths - 1)
        tokens, laws = [], []
        for step in range(self.gamma):
            stream = self.drafter.step(stream, previous, lengths - 1 + step, memory.attend)
            logits = F.linear(self.drafter.norm(stream), self.drafter.lm_head.weight).float()
            if temperature > 0:
                laws.append((logits / temperature).softmax(-1))
                previous = draw(laws[-1], uniforms[:, step])
            else:
                previous = logits.argmax(-1)
            tokens.append(previous)
        drawn = torch.stack(tokens, 1)
        zeros = torch.zeros(drawn.shape, device=drawn.device)
        if not laws:
            return DraftBlock(drawn, zeros)
        probs = torch.stack(laws, 1)
        return DraftBlock(drawn, zeros, None, probs, probs.gather(2, drawn[..., None])[..., 0])


class _ChainMemory:
    """Rows before each chain's start, and the chain's own steps."""

    def __init__(self, k: Tensor, v: Tensor, visible: Tensor) -> None:
        used = max(1, int(visible.max()))
        self._k, self._v = k[:, :used], v[:, :used]
        seen = torch.arange(used, device=k.device) < visible[:, None]
        self._bias = torch.where(seen, 0.0, -torch.inf)[:, None, None]
        self._own: list[tuple[Tensor, Tensor]] = []

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend one step of every chain; see ``eagle3.ChainAttend``."""
        self._own.append((k, v))
        own_k, own_v = (torch.stack(parts, 1) for parts in zip(*self._own, strict=True))
        queries = (q * q.shape[-1] ** -0.5).view(len(q), k.shape[1], -1, q.shape[-1])
        context = torch.einsum("njgd,nsjd->njgs", queries, self._k).float() + self._bias
        own = torch.einsum("njgd,ntjd->njgt", queries, own_k).float()
        probs = torch.cat((context, own), -1).softmax(-1).to(v.dtype)
        out = torch.einsum("njgs,nsjd->njgd", probs[..., : self._k.shape[1]], self._v)
        return (out + torch.einsum("njgt,ntjd->njgd", probs[..., self._k.shape[1] :], own_v)).reshape(q.shape)
