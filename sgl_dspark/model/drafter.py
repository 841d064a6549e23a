"""The draft model: one round from anchors and context KV to hidden states, base logits and confidence.

Attribute names are the tensor names of the released checkpoints. Shape letters as in ``attention.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgl_dspark.config import DrafterConfig
from sgl_dspark.errors import TargetMismatchError
from sgl_dspark.model.attention import Attend, RotaryTable, rotate
from sgl_dspark.model.backbone import DraftLayer, RMSNorm
from sgl_dspark.model.heads import ConfidenceHead, SequentialHead, build_head
from sgl_dspark.model.packed import Linear, frozen_linear

INIT_STD = 0.02


class Drafter(nn.Module):
    """DSpark draft model (Sec. 3).

    A plain module over flat tensors: whoever calls :meth:`block_hidden` owns the context KV and the masking. A new
    object holds random weights as the paper trains from; ``checkpoint.load_drafter`` gives trained ones.

    Parameters
    ----------
    config : DrafterConfig
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, size)
        self.lm_head = nn.Linear(size, config.vocab_size, bias=False)
        self.fc = nn.Linear(config.num_features, size, bias=False)
        self.hidden_norm = RMSNorm(size, config.rms_norm_eps)
        self.layers = nn.ModuleList(DraftLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(size, config.rms_norm_eps)
        self.markov_head: SequentialHead | None = build_head(config)
        self.confidence_head: ConfidenceHead | None = None
        if config.enable_confidence_head:
            rank = config.markov_rank if config.confidence_head_with_markov else 0
            self.confidence_head = ConfidenceHead(size, rank)
        ids = None if config.draft_vocab_size is None else torch.arange(config.draft_vocab_size)
        self.register_buffer("draft_vocab_ids", ids)
        self.draft_vocab_ids: Tensor | None
        self.rotary = RotaryTable(config.head_dim, config.rope_theta, config.max_position_embeddings + config.gamma)
        self.register_buffer("context_kv_weight", None, persistent=False)
        self.register_buffer("context_k_scale", None, persistent=False)
        self.context_kv_weight: Tensor | None
        self.context_k_scale: Tensor | None
        self._context_kv: Linear | None = None
        self._project: Linear | None = None
        self._head: Linear | None = None
        self._proposal: Linear | None = None
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw every matrix from N(0, 0.02), zero biases, unit norms; embedding and head are frozen (Sec. 4.1)."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 1:
                nn.init.ones_(parameter)
            else:
                nn.init.normal_(parameter, std=INIT_STD, generator=generator)
        self.embed_tokens.weight.requires_grad_(False)
        self.lm_head.weight.requires_grad_(False)

    @property
    def vocab_size(self) -> int:
        """V, whatever part of it the draft proposes."""
        return self.config.vocab_size

    def project_context(self, features: Tensor) -> Tensor:
        """Turn target features [n, m*d] (or [..., m*d]) into drafter context [n, d] (Eq. 2)."""
        context: Tensor = self.hidden_norm((self._project or self.fc)(features))
        return context

    def context_kv(self, context: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Project context rows to the keys and values of every draft layer (Eq. 3).

        Parameters
        ----------
        context : [n, d]
            From :meth:`project_context`.
        positions : int64 [n]
            Absolute positions of the tokens that the features belong to.

        Returns
        -------
        k, v : [L, n, J, D]
            Keys normed and rotated. One GEMM for all layers after :meth:`fuse_for_serving`; then both are views of
            token-major memory.
        """
        config = self.config
        cos, signed_sin = self.rotary.lookup(positions, context.dtype)
        mixed = self.raw_context_kv(context)
        if mixed is None or self.context_k_scale is None:
            pairs = [cast(DraftLayer, layer).self_attn.context_kv(context, cos, signed_sin) for layer in self.layers]
            return torch.stack([k for k, _ in pairs]), torch.stack([v for _, v in pairs])
        heads = config.num_hidden_layers * config.num_key_value_heads
        k = F.rms_norm(mixed[:, :heads], (config.head_dim,), None, config.rms_norm_eps) * self.context_k_scale
        k = rotate(k, cos, signed_sin)
        shape = (-1, config.num_hidden_layers, config.num_key_value_heads, config.head_dim)
        return k.view(shape).transpose(0, 1), mixed[:, heads:].view(shape).transpose(0, 1)

    def raw_context_kv(self, context: Tensor) -> Tensor | None:
        """Project context rows to keys and values of every layer, the keys neither normed nor rotated.

        Parameters
        ----------
        context : [n, d]
            From :meth:`project_context`.

        Returns
        -------
        [n, 2 * L * J, D] or None
            The keys of all layers' heads, then the values; None before :meth:`fuse_for_serving`.
        """
        if self._context_kv is None:
            return None
        config = self.config
        heads = config.num_hidden_layers * config.num_key_value_heads
        return self._context_kv(context).view(-1, 2 * heads, config.head_dim)

    def block_hidden(self, anchor_tokens: Tensor, anchor_positions: Tensor, attend: Attend) -> Tensor:
        """Run the parallel backbone over one block per row (Sec. 3.1).

        Parameters
        ----------
        anchor_tokens : int64 [R]
            Committed token that each block starts from.
        anchor_positions : int64 [R]
            Its absolute position; slot j sits at anchor + j and predicts the token after.
        attend : Attend
            Called once per layer with request-major rows; must let every slot see its context and its whole block.

        Returns
        -------
        [R, gamma, d]
            Post-norm hidden states.
        """
        gamma = self.config.gamma
        tokens = anchor_tokens.new_full((anchor_tokens.shape[0], gamma), self.config.mask_token_id)
        tokens[:, 0] = anchor_tokens
        positions = anchor_positions[:, None] + torch.arange(gamma, device=anchor_positions.device)
        z = F.embedding(tokens.flatten(), self.embed_tokens.weight)
        cos, signed_sin = self.rotary.lookup(positions.flatten(), z.dtype)
        for index, layer in enumerate(self.layers):
            z = layer(index, z, cos, signed_sin, attend)
        hidden: Tensor = self.norm(z)
        return hidden.view(-1, gamma, self.config.hidden_size)

    def base_logits(self, h: Tensor) -> Tensor:
        """Return U = lm_head(h): [..., V] from post-norm hidden states [..., d], without the sequential bias."""
        logits: Tensor = (self._head or self.lm_head)(h)
        return logits

    def proposal_logits(self, h: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return base logits of the tokens that the draft proposes, and which these are.

        Parameters
        ----------
        h : [..., d]
            Post-norm hidden states.

        Returns
        -------
        logits : [..., V] or [..., draft_vocab_size]
        ids : int64 [draft_vocab_size] or None
            Vocabulary ids of the columns; None for all of them.
        """
        if self.draft_vocab_ids is None:
            return self.base_logits(h), None
        if self._proposal is not None:
            return self._proposal(h), self.draft_vocab_ids
        return F.linear(h, self.lm_head.weight[self.draft_vocab_ids]), self.draft_vocab_ids

    def limit_vocabulary(self, ids: Tensor) -> Drafter:
        """Return a draft with the same weights that proposes only the tokens ``ids``.

        Verification stays exact, since acceptance uses the law that was drawn from; a token outside is never
        drafted, so ``ids`` should hold what the draft's training data uses.

        Parameters
        ----------
        ids : int64 [n]
            Distinct token ids.
        """
        limited = Drafter(replace(self.config, draft_vocab_size=int(ids.numel())))
        limited.to(dtype=self.fc.weight.dtype, device=self.fc.weight.device)
        limited.load_state_dict(self.state_dict() | {"draft_vocab_ids": ids.sort().values.to(self.fc.weight.device)})
        return limited

    def confidence_logits(self, h: Tensor, prev_tokens: Tensor) -> Tensor:
        """Return fp32 logits [...] of acceptance given an accepted prefix (Eq. 7).

        Parameters
        ----------
        h : [..., d]
            Post-norm hidden states.
        prev_tokens : int64 [...]
            The token before each slot, never the one drafted at it.

        Returns
        -------
        fp32 [...]
            Zeros when the draft has no confidence head.
        """
        if self.confidence_head is None:
            return torch.zeros(prev_tokens.shape, dtype=torch.float32, device=h.device)
        with_markov = self.config.confidence_head_with_markov and self.markov_head is not None
        prev = cast(SequentialHead, self.markov_head).prev_embedding(prev_tokens) if with_markov else None
        logits: Tensor = self.confidence_head(h, prev)
        return logits

    def share_embeddings(self, embed_weight: Tensor, lm_head_weight: Tensor) -> None:
        """Use the target's embedding and head, without a copy.

        Parameters
        ----------
        embed_weight, lm_head_weight : [V, d]
            May be one tensor when the target ties them.

        Raises
        ------
        TargetMismatchError
            If either shape is not [vocab_size, hidden_size] of the draft.
        ValueError
            If either dtype is not the draft's.
        """
        wanted = (self.config.vocab_size, self.config.hidden_size)
        for name, weight in (("embed_tokens.weight", embed_weight), ("lm_head.weight", lm_head_weight)):
            if tuple(weight.shape) != wanted:
                raise TargetMismatchError(
                    f"the target's {name} has shape {list(weight.shape)} but the draft expects {list(wanted)}; "
                    "use a draft that was trained for this target."
                )
            if weight.dtype != self.fc.weight.dtype:
                raise ValueError(f"{name} of the target is {weight.dtype} but the draft is {self.fc.weight.dtype}")
        self.embed_tokens.weight = nn.Parameter(embed_weight.detach(), requires_grad=False)
        self.lm_head.weight = nn.Parameter(lm_head_weight.detach(), requires_grad=False)

    def reserve_positions(self, max_positions: int) -> None:
        """Allow anchors up to ``max_positions - 1`` where a host raises the target's context length."""
        self.rotary.reserve(max_positions + self.config.gamma)

    @torch.no_grad()
    def fuse_for_serving(self) -> None:
        """Freeze the weights and build fused ones: few, large GEMMs; results equal to rounding.

        Projections become views of the fused weights. The stacked context weight is a copy (2*L*J*D x d), as are all
        weights on a CPU in bf16 (see ``packed``), so weights must not change afterwards.
        """
        self.requires_grad_(False)
        layers = [cast(DraftLayer, layer) for layer in self.layers]
        for layer in layers:
            layer.fuse()
        keys = [layer.self_attn.k_proj.weight for layer in layers]
        values = [layer.self_attn.v_proj.weight for layer in layers]
        self.context_kv_weight = torch.cat(keys + values)
        self._context_kv = frozen_linear(self.context_kv_weight)
        self._project = frozen_linear(self.fc.weight.detach())
        head = self.lm_head.weight.detach()
        if self.draft_vocab_ids is None:
            self._head = frozen_linear(head)
        else:
            # Serving asks for proposals only, so the whole head needs no copy.
            self._proposal = frozen_linear(head[self.draft_vocab_ids])
        self.context_k_scale = torch.cat(
            [layer.self_attn.k_norm.weight.expand(self.config.num_key_value_heads, -1) for layer in layers]
        )
