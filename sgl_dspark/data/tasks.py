"""Maths and logic tasks from reasoning-gym, worded so that a small chat model explains itself."""

from __future__ import annotations

import random
from collections.abc import Iterator

from sgl_dspark.data.split import Draw, Drawn

# Without gsm_symbolic: its tasks are those of GSM8K, an evaluation set of the paper.
TASK_SHARES = {
    "leg_counting": 8,
    "chain_sum": 7,
    "simple_equations": 8,
    "syllogism": 8,
    "simple_geometry": 6,
    "calendar_arithmetic": 5,
    "fraction_simplification": 4,
    "time_intervals": 5,
    "products": 4,
    "family_relationships": 5,
    "aiw": 6,
    "polynomial_multiplication": 4,
    "gcd": 2,
    "lcm": 2,
    "prime_factorization": 2,
    "number_sorting": 3,
    "decimal_arithmetic": 3,
    "count_primes": 2,
    "dice": 1,
}
_TERSE = (
    "Give the result as your final answer. Do not include units.",
    "Give only the result as your final answer.",
    "Give only the simplified fraction as your final answer.",
    "Return only the angle as your answer.Do not give the units in your answer.",
    "Respond only with the word that describes their relationship.",
    "Reply with just the weekday name.",
    "Write out the full weekday name.",
    "Give only the result as a whole number.",
)
_STYLES = (
    "", "", " Explain your reasoning step by step.", " Show your work.",
    "\nPlease reason step by step, and put your final answer within \\boxed{}.",
)  # fmt: skip


def task_prompts(kind: str) -> Draw:
    """Return a source of the tasks of one reasoning-gym dataset."""

    def draw(rng: random.Random) -> Iterator[Drawn]:
        import reasoning_gym

        tasks = reasoning_gym.create_dataset(kind, seed=rng.randrange(1 << 30), size=1_000_000)
        for task in tasks:
            text = str(task["question"])
            for ending in _TERSE:
                text = text.replace(ending, "")
            yield Drawn(text.strip() + rng.choice(_STYLES), text.strip())

    return draw
