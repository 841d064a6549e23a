"""Maths and logic tasks from reasoning-gym, worded so that a small chat model explains itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

TASK_SHARES = {
    "gsm_symbolic": 30,
    "leg_counting": 6,
    "chain_sum": 5,
    "simple_equations": 6,
    "syllogism": 6,
    "simple_geometry": 4,
    "calendar_arithmetic": 4,
    "fraction_simplification": 3,
    "time_intervals": 3,
    "products": 3,
    "family_relationships": 3,
    "aiw": 3,
    "polynomial_multiplication": 3,
    "gcd": 2,
    "lcm": 2,
    "prime_factorization": 2,
    "number_sorting": 2,
    "decimal_arithmetic": 2,
    "count_primes": 2,
    "dice": 2,
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


def task_prompts(kind: str) -> Callable[[random.Random], Iterator[str]]:
    """Return a source of the tasks of one reasoning-gym dataset."""

    def draw(rng: random.Random) -> Iterator[str]:
        import reasoning_gym

        tasks = reasoning_gym.create_dataset(kind, seed=rng.randrange(1 << 30), size=1_000_000)
        for task in tasks:
            text = str(task["question"])
            for ending in _TERSE:
                text = text.replace(ending, "")
            yield text.strip() + rng.choice(_STYLES)

    return draw
