"""On-policy responses: many prompts decoded by the target at once, its hidden states kept on the way (Sec. 4.1).

The hidden states that training needs are by-products of decoding, so a response costs one forward per token and no
second pass. Rows are refilled as they finish; the prompts' common prefix (a system prompt, say) is computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sgl_dspark.model.target import TargetModel
from sgl_dspark.sampling.draw import draw, uniforms

# Prompts are prefilled together while the longest is at most so many times the shortest, or has so few tokens.
_LEAST_PADDED, _SHORT = 1.3, 24


@dataclass(frozen=True)
class Prompt:
    """One conversation start, ready for the target.

    Attributes
    ----------
    ids : tuple of int
        Chat-formatted prompt, generation prompt included.
    temperature : float
        Of the response; 0 is greedy.
    kind : str
        Label carried through to statistics.
    id : str
        Of the prompt record.
    """

    ids: tuple[int, ...]
    temperature: float
    kind: str = ""
    id: str = ""


@dataclass(frozen=True)
class Response:
    """A finished conversation with what the target computed on it.

    Attributes
    ----------
    ids : int64 [S]
        Prompt and response, end-of-turn token included when the target emitted it.
    prompt_len : int
        Leading tokens that are not supervised.
    features : [S-1, m*d]
        Feature-layer outputs of every token but the last, which no training example reads.
    hidden : [S-1, d]
        Final-norm outputs of the same tokens.
    prompt : Prompt
        What it answers.
    """

    ids: Tensor
    prompt_len: int
    features: Tensor
    hidden: Tensor
    prompt: Prompt


def common_prefix(prompts: Sequence[Prompt]) -> int:
    """Length of the longest common prefix of all prompts, at least one token short of the shortest."""
    first, last = min(p.ids for p in prompts), max(p.ids for p in prompts)
    length = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return min(length, min(len(p.ids) for p in prompts) - 1)


class BatchGenerator:
    """Continuous batching over a fixed number of rows.

    Parameters
    ----------
    model : TargetModel
        The target.
    feature_layers : sequence of int
        Layers whose outputs are kept (``target_layer_ids`` of the draft).
    rows : int
        Rows decoded together.
    max_positions : int
        Prompt and response tokens per row; longer prompts are skipped.
    max_new_tokens : int
        Cap on the response.
    seed : int
        Of the sampling generator.
    """

    def __init__(
        self,
        model: TargetModel,
        feature_layers: Sequence[int],
        *,
        rows: int = 64,
        max_positions: int = 512,
        max_new_tokens: int = 256,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.feature_layers = tuple(feature_layers)
        self.max_new_tokens = max_new_tokens
        self.max_positions = max_positions
        width, device = model.config.hidden_size, model.device
        self._cache = model.empty_cache(rows, max_positions)
        self._ids = torch.zeros(rows, max_positions + 1, dtype=torch.long, device=device)
        widths = (len(self.feature_layers) * width, width)
        self._features, self._hidden = (
            torch.zeros(rows, max_positions, n, dtype=model.dtype, device=device) for n in widths
        )
        self._prompts: list[Prompt | None] = [None] * rows
        self._random = torch.Generator(device).manual_seed(seed)

    def run(self, prompts: Sequence[Prompt]) -> Iterator[Response]:
        """Yield the responses in the order in which they finish."""
        usable = [p for p in prompts if len(p.ids) < self.max_positions]
        if not usable:
            return
        prefix = self._load_prefix(usable)
        queue = iter(usable)
        exhausted = False
        while True:
            free = [row for row, prompt in enumerate(self._prompts) if prompt is None]
            busy = len(self._prompts) - len(free)
            if free and not exhausted and (len(free) >= max(1, len(self._prompts) // 8) or busy == 0):
                arrivals = [p for _, p in zip(free, queue, strict=False)]
                exhausted = len(arrivals) < len(free)
                if arrivals:
                    self._admit(free[: len(arrivals)], arrivals, prefix)
                    yield from self._collect(free[: len(arrivals)])
            active = [row for row, prompt in enumerate(self._prompts) if prompt is not None]
            if not active:
                if exhausted:
                    return
                continue
            self._step(active)
            yield from self._collect(active)

    def _load_prefix(self, prompts: Sequence[Prompt]) -> int:
        """Compute the prompts' common prefix once and copy its state into every row; return its length."""
        prefix = common_prefix(prompts)
        if prefix:
            row = torch.zeros(1, dtype=torch.long, device=self.model.device)
            self._cache.lengths.zero_()
            ids = torch.tensor([prompts[0].ids[:prefix]], device=self.model.device)
            hidden, features = self.model.forward(ids, self._cache, self.feature_layers, row)
            for pool in (self._cache.k, self._cache.v):
                pool[:, :, :prefix] = pool[:, :1, :prefix]
            self._hidden[:, :prefix] = hidden
            if features is not None:
                self._features[:, :prefix] = features
        return prefix

    def _admit(self, rows: list[int], prompts: list[Prompt], prefix: int) -> None:
        """Prefill new prompts behind the shared prefix, those of like length together; sample each first token."""
        pairs = sorted(zip(rows, prompts, strict=True), key=lambda pair: len(pair[1].ids))
        while pairs:
            longest = _LEAST_PADDED * (len(pairs[0][1].ids) - prefix)
            count = sum(len(prompt.ids) - prefix <= max(longest, _SHORT) for _, prompt in pairs)
            self._prefill(pairs[:count], prefix)
            pairs = pairs[count:]

    def _prefill(self, pairs: list[tuple[int, Prompt]], prefix: int) -> None:
        rows, prompts = [row for row, _ in pairs], [prompt for _, prompt in pairs]
        tails = [torch.tensor(p.ids[prefix:]) for p in prompts]
        ids = torch.nn.utils.rnn.pad_sequence(tails, batch_first=True).to(self.model.device)
        index = self._index(rows)
        self._cache.lengths[index] = prefix
        hidden, features = self.model.forward(ids, self._cache, self.feature_layers, index)
        for i, (row, prompt) in enumerate(pairs):
            length = len(prompt.ids)
            self._prompts[row] = prompt
            self._ids[row, :length] = torch.tensor(prompt.ids)
            self._keep(row, slice(prefix, length), hidden[i, : length - prefix], features, i)
            self._cache.lengths[row] = length
        last = torch.stack([hidden[i, len(p.ids) - prefix - 1] for i, p in enumerate(prompts)])
        self._sample(rows, last)

    def _step(self, rows: list[int]) -> None:
        """Run the newest token of each active row and sample the next."""
        # Selecting rows copies their keys, so idle rows ride along until fewer than half are busy.
        ride_along = 2 * len(rows) > len(self._prompts)
        taking_part = self._index(range(len(self._prompts)) if ride_along else rows)
        positions = self._cache.lengths[taking_part]
        ids = self._ids[taking_part, positions][:, None]
        selection = None if ride_along else taking_part
        hidden, features = self.model.forward(ids, self._cache, self.feature_layers, selection)
        self._hidden[taking_part, positions] = hidden[:, 0]
        if features is not None:
            self._features[taking_part, positions] = features[:, 0]
        active = self._index(rows)
        self._cache.lengths[active] += 1
        self._sample(rows, hidden[active, 0] if ride_along else hidden[:, 0])

    def _keep(self, row: int, where: slice, hidden: Tensor, features: Tensor | None, source: int) -> None:
        self._hidden[row, where] = hidden
        if features is not None:
            self._features[row, where] = features[source, : hidden.shape[0]]

    def _index(self, rows: Iterable[int]) -> Tensor:
        return torch.tensor(list(rows), device=self.model.device)

    def _sample(self, rows: list[int], hidden: Tensor) -> None:
        """Put each row's next token behind its committed tokens; greedy rows take the argmax."""
        logits = self.model.logits(hidden).float()
        temperatures = [p.temperature for row in rows if (p := self._prompts[row]) is not None]
        tokens = logits.argmax(-1)
        warm = [i for i, temperature in enumerate(temperatures) if temperature > 0]
        if warm:
            at = self._index(warm)
            divisors = torch.tensor([temperatures[i] for i in warm], device=logits.device)[:, None]
            law = (logits[at] / divisors).softmax(-1)
            tokens[at] = draw(law, uniforms(len(warm), device=logits.device, generator=self._random))
        index = self._index(rows)
        self._ids[index, self._cache.lengths[index]] = tokens

    def _collect(self, rows: Iterable[int]) -> Iterator[Response]:
        """Free and yield the rows that emitted an end-of-turn token or ran out of room."""
        # Sync: whether a row has ended decides what runs next.
        lengths = (self._cache.lengths + 1).tolist()
        newest = self._ids.gather(1, self._cache.lengths[:, None]).flatten().tolist()
        for row in rows:
            prompt = self._prompts[row]
            if prompt is None:
                continue
            length = lengths[row]
            new = length - len(prompt.ids)
            ended = newest[row] in self.model.config.eos_token_ids
            if not ended and new < self.max_new_tokens and length <= self.max_positions - 1:
                continue
            self._prompts[row] = None
            yield Response(
                ids=self._ids[row, :length].to("cpu", copy=True),
                prompt_len=len(prompt.ids),
                features=self._features[row, : length - 1].to("cpu", copy=True),
                hidden=self._hidden[row, : length - 1].to("cpu", copy=True),
                prompt=prompt,
            )
