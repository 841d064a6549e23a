"""Answers so far of the requests that are penalised for them, on the device, anchor included.

SGLang counts output tokens one a step, which a step of several tokens is not; and it begins anew when a request is
retracted, whose answer goes on. This table does neither.

Shape legend: n requests, W columns of a step's output, L longest answer, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_NONE = -1
# Rows and columns are added in portions: a table for every slot and the longest context would be mostly empty.
_ROWS, _COLUMNS = 8, 256


class Answers:
    """Tokens of each answer in order, and how often each occurs.

    Parameters
    ----------
    num_slots : int
    vocab_size : int
    device : torch.device
    """

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self._row_of_slot = np.full(num_slots, _NONE, np.int64)
        self._occupant = np.full(num_slots, _NONE, np.int64)
        self._tokens = torch.zeros((0, _COLUMNS), dtype=torch.int64, device=device)
        self._counts = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)
        self._used = 0

    def begin(self, slot: int, generation: int, earlier: Sequence[int], first: Tensor) -> None:
        """Start an answer when its prompt has been read.

        Parameters
        ----------
        slot, generation : int
        earlier : sequence of int
            Tokens from before a retraction.
        first : int64 scalar
            The token that the prefill has sampled.
        """
        if self._row_of_slot[slot] == _NONE:
            self._row_of_slot[slot] = self._used
            self._used += 1
        self._occupant[slot] = generation
        row = int(self._row_of_slot[slot])
        self._grow(row + 1, len(earlier) + 1)
        # Whatever lies past the end of an answer must be a token of the answer; see `penalise_rows`.
        self._tokens[row] = first
        self._counts[row].zero_()
        if earlier:
            past = torch.tensor(earlier, dtype=torch.int64, device=self._tokens.device)
            self._tokens[row, : len(earlier)] = past
            self._counts[row].index_add_(0, past, torch.ones_like(past, dtype=torch.int32))
        self._counts[row].index_add_(0, first.view(1).long(), self._counts.new_ones(1))

    def knows(self, slots: np.ndarray, generations: np.ndarray) -> np.ndarray:
        """Tell of which occupants the table holds the answer, bool [n]."""
        known: np.ndarray = self._occupant[slots] == generations
        return known

    def rows(self, slots: np.ndarray) -> Tensor:
        """Return the table's rows of known slots, int64 [n]."""
        return torch.from_numpy(self._row_of_slot[slots]).to(self._tokens.device)

    def tokens(self, rows: Tensor, longest: int) -> Tensor:
        """Return answers, int64 [n, longest], padded with tokens of the same answer."""
        self._grow(0, longest)
        return self._tokens[rows, :longest]

    def counts(self, rows: Tensor) -> Tensor:
        """Return occurrences, int32 [n, V]."""
        return self._counts[rows]

    def counts_at(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """Return the occurrences of ``tokens`` (int64 [n, K])."""
        return self._counts[rows.unsqueeze(1), tokens]

    def append(self, rows: Tensor, ends: Tensor, tokens: Tensor, emitted: Tensor, longest: int) -> None:
        """Add what a step emitted.

        Parameters
        ----------
        rows : int64 [n]
            Distinct.
        ends : int64 [n]
            Length of each answer before.
        tokens : int64 [n, W]
        emitted : int64 [n]
            How many of them count, 1..W.
        longest : int
            At least every length afterwards.
        """
        width = tokens.shape[1]
        self._grow(0, longest + width)
        columns = torch.arange(width, device=tokens.device)
        kept = columns < emitted.unsqueeze(1)
        at = (rows.unsqueeze(1).expand(-1, width), tokens)
        self._counts.index_put_(at, kept.int(), accumulate=True)
        # Entries past the end repeat the last token, which is the answer's.
        last = tokens.gather(1, (emitted - 1).unsqueeze(1))
        self._tokens[rows.unsqueeze(1), ends.unsqueeze(1) + columns] = torch.where(kept, tokens, last)

    def _grow(self, rows: int, columns: int) -> None:
        have_rows, have_columns = self._tokens.shape
        if columns > have_columns:
            more = -(-columns // _COLUMNS) * _COLUMNS - have_columns
            # The last column is past every answer's end, or the end itself: its token is one of the answer.
            self._tokens = torch.cat([self._tokens, self._tokens[:, -1:].expand(-1, more)], dim=1)
        if rows > have_rows:
            more = max(_ROWS, rows - have_rows)
            self._tokens = torch.cat([self._tokens, self._tokens.new_zeros((more, self._tokens.shape[1]))])
            self._counts = torch.cat([self._counts, self._counts.new_zeros((more, self._counts.shape[1]))])
