"""Prompt sets for the demo draft: tasks, short questions, chat and code, training and evaluation disjoint.

reasoning-gym (Apache-2.0) generates tasks from seeds; chatterbot-corpus (BSD) holds short English questions. Which
half of a split a question falls into depends on its text alone, so the halves never share one.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from importlib import resources
from typing import Any

from sgl_dspark.demo.chat_prompts import chat_prompt, code_prompt

SPLITS = ("train", "held-out")
HELD_OUT_PERCENT = 8

# Share of each kind; worded so that a small chat model explains itself rather than emitting one number.
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
}
QUESTION_SHARE, CHAT_SHARE, CODE_SHARE = 16, 56, 24
QUESTION_TOPICS = (
    "ai", "coding", "computers", "food", "health", "history", "literature", "money", "movies", "politics",
    "psychology", "science", "sports", "tech_support", "trivia",
)  # fmt: skip
_TERSE = (
    "Give the result as your final answer. Do not include units.",
    "Give only the result as your final answer.",
    "Give only the simplified fraction as your final answer.",
    "Return only the angle as your answer.Do not give the units in your answer.",
    "Respond only with the word that describes their relationship.",
    "Reply with just the weekday name.",
    "Write out the full weekday name.",
)
_STYLES = ("", "", " Explain your reasoning step by step.", " Show your work.")


def split_of(text: str) -> str:
    """Which half a question belongs to, by a hash of its text."""
    bucket = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 100
    return "held-out" if bucket < HELD_OUT_PERCENT else "train"


def corpus_questions(split: str) -> list[str]:
    """List the opening lines of the chatterbot conversations that fall into ``split``."""
    import yaml

    found: set[str] = set()
    folder = resources.files("chatterbot_corpus") / "data" / "english"
    for topic in QUESTION_TOPICS:
        text = (folder / f"{topic}.yml").read_text(encoding="utf-8")
        for dialogue in yaml.safe_load(text)["conversations"]:
            question = str(dialogue[0]).strip()
            if len(question) > 8 and split_of(question) == split:
                found.add(question)
    return sorted(found)


def _without_terse_endings(question: str) -> str:
    for ending in _TERSE:
        question = question.replace(ending, "")
    return question.strip()


def prompts(split: str, seed: int) -> Iterator[dict[str, Any]]:
    """Yield ``{"kind", "turns"}`` records without end, the kinds mixed by their shares.

    Parameters
    ----------
    split : {"train", "held-out"}
        Half of the prompt space.
    seed : int
        Seed of the mixing and of the task generators.
    """
    import reasoning_gym

    if split not in SPLITS:
        raise ValueError(f"split must be one of {SPLITS}, not {split!r}")
    rng = random.Random(f"{split}-{seed}")
    questions = corpus_questions(split)
    simple = {
        "question": (QUESTION_SHARE, lambda: rng.choice(questions)),
        "chat": (CHAT_SHARE, lambda: chat_prompt(rng)),
        "code": (CODE_SHARE, lambda: code_prompt(rng)),
    }
    kinds = [*TASK_SHARES, *simple]
    shares = [*TASK_SHARES.values(), *(share for share, _ in simple.values())]
    tasks = {
        kind: reasoning_gym.create_dataset(kind, seed=rng.randrange(1 << 30), size=1_000_000) for kind in TASK_SHARES
    }
    taken = dict.fromkeys(kinds, 0)
    while True:
        kind = rng.choices(kinds, shares)[0]
        # Retried within the kind: redrawing the kind would favour those whose list is already split.
        while True:
            if kind in simple:
                text = simple[kind][1]()
            else:
                text = _without_terse_endings(tasks[kind][taken[kind]]["question"]) + rng.choice(_STYLES)
                taken[kind] += 1
            if split_of(text) == split:
                break
        yield {"kind": kind, "turns": [text]}
