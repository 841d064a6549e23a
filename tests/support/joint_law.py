"""First tokens of many answers to one prompt against their exact joint law."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from sgl_dspark.sampling.statistics import ChiSquare, chi_square
from tests.support import pair
from tests.support.exact_law import cell_of, partition
from tests.support.server import ServerProcess, concurrently

# The first token comes from prefill, the others from the first blocks.
SAMPLES, TOKENS, AT_ONCE = 800, 6, 50


def check(prompt: Sequence[int], answers: Sequence[Sequence[int]], alpha: float, **sampling: Any) -> ChiSquare:
    """Test ``SAMPLES`` answers of ``TOKENS`` tokens, at temperature 1 by itself."""
    law = partition(prompt, TOKENS, least=5 / SAMPLES, **sampling)
    seen = Counter(cell_of(answer, law) for answer in answers)
    return chi_square(
        np.array([seen[cell] for cell in law]), np.array(list(law.values())), effect_size=0.3, alpha=alpha
    )


def sampled(server: ServerProcess, prompt: list[int], alpha: float, **sampling: Any) -> ChiSquare:
    """Serve the answers and test them; ``sampling`` are filters and temperature."""
    settings = {"temperature": 1.0, **sampling}
    path, payload = pair.generate(prompt, **settings, max_new_tokens=TOKENS, n=AT_ONCE, ignore_eos=True)
    answers = concurrently(lambda _: server.ask(path, payload), range(SAMPLES // AT_ONCE), 4)
    return check(prompt, [one["output_ids"] for answer in answers for one in answer], alpha, **settings)
