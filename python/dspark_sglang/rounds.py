"""The latest verified rounds, kept for calibration: confidence logits, what was verified, what was accepted."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

CAPACITY = 65_536
# One reply stays below a few megabytes.
MAX_REPLY = 16_384


class RoundLog:
    """Ring of rounds, numbered from 0 since the server started.

    Parameters
    ----------
    gamma : int
    capacity : int
        Rounds kept.
    """

    def __init__(self, gamma: int, capacity: int = CAPACITY) -> None:
        self.gamma, self.capacity, self.count = gamma, capacity, 0
        self._logits = np.zeros((capacity, gamma), np.float32)
        self._verified = np.zeros(capacity, np.int8)
        self._accepted = np.zeros(capacity, np.int8)
        self._sampled = np.zeros(capacity, np.uint8)

    def append(self, logits: np.ndarray, verified: np.ndarray, accepted: np.ndarray, sampled: np.ndarray) -> None:
        """Add n rounds.

        Parameters
        ----------
        logits : float32 [n, gamma]
            Uncalibrated; rounds with one that is not finite are left out.
        verified, accepted : int [n]
            Drafts verified, and how many of these were correct.
        sampled : bool [n]
            False for greedy requests.
        """
        finite = np.isfinite(logits).all(axis=1)
        if not finite.all():
            # What a reader of records may not meet; the planner counts such confidences.
            logits, verified, accepted, sampled = logits[finite], verified[finite], accepted[finite], sampled[finite]
        where = np.arange(self.count, self.count + len(logits)) % self.capacity
        self._logits[where] = logits
        self._verified[where] = verified
        self._accepted[where] = accepted
        self._sampled[where] = sampled
        self.count += len(logits)

    def reply(self, after: int) -> dict[str, Any]:
        """Encode the rounds from number ``after`` on, as many as fit in a reply.

        Returns
        -------
        dict
            ``gamma``; ``first`` and ``count`` of the rounds in it (``first`` is above ``after`` when older ones have
            been overwritten); ``next``: pass it as ``after`` for the following ones; ``logits`` (float32, little
            endian, [count, gamma]), ``verified``, ``accepted`` (int8) and ``sampled`` (uint8) in base64.
        """
        first = min(max(after, self.count - self.capacity, 0), self.count)
        last = min(self.count, first + MAX_REPLY)
        where = np.arange(first, last) % self.capacity
        columns = {
            "logits": self._logits[where].astype("<f4"),
            "verified": self._verified[where],
            "accepted": self._accepted[where],
            "sampled": self._sampled[where],
        }
        encoded = {name: base64.b64encode(values.tobytes()).decode() for name, values in columns.items()}
        return {"gamma": self.gamma, "first": first, "next": last, "count": last - first, **encoded}
