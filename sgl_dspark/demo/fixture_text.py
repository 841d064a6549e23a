"""Worked answers to reasoning-gym tasks: the language of the test fixture's target.

Each conversation is one question from a reasoning-gym generator and one answer written out in steps here, from the
task's own metadata, so that a two-million-parameter model has a language it can learn in minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from functools import cache
from typing import Any

Entry = dict[str, Any]

_WORD_COUNT = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine", 10: "ten"}


def _chain_sum(entry: Entry) -> str:
    terms = entry["metadata"]["expression"].split(" ")
    total = int(terms[0])
    lines = [f"We work from left to right, starting with {total}."]
    for sign, term in zip(terms[1::2], terms[2::2], strict=True):
        after = total + int(term) if sign == "+" else total - int(term)
        verb = "Add" if sign == "+" else "Subtract"
        lines.append(f"{verb} {term}: {total} {sign} {term} = {after}.")
        total = after
    return "\n".join([*lines, f"The final answer is {total}."])


def _leg_counting(entry: Entry) -> str:
    total, lines = 0, ["Let's count the legs of each kind of animal."]
    from reasoning_gym.arithmetic.leg_counting import ANIMALS

    for name, count in entry["metadata"]["animals"].items():
        legs = ANIMALS[name]
        total += legs * count
        lines.append(f"- A {name} has {legs} legs, so {count} of them have {count} × {legs} = {legs * count} legs.")
    return "\n".join([*lines, f"Together they have {total} legs."])


def _gsm_symbolic(entry: Entry) -> str:
    return str(entry["metadata"]["answer_cot"]).strip() + f"\nThe final answer is {entry['answer']}."


def _simple_equations(entry: Entry) -> str:
    unknown, equation = entry["metadata"]["variable"], entry["metadata"]["equation"]
    left, right = equation.split(" = ")
    return (
        f"We want to find the value of {unknown} in the equation {left} = {right}.\n"
        f"First we collect the constants on the right side, then we divide both sides by the factor of {unknown}.\n"
        f"This gives {unknown} = {entry['answer']}."
    )


def _syllogism(entry: Entry) -> str:
    facts, answer = entry["metadata"], entry["answer"]
    verdict = "it does follow" if answer == "Yes" else "it does not follow"
    return (
        f"The first statement says: {facts['premise1']}.\nThe second statement says: {facts['premise2']}.\n"
        f"We ask whether this is true in every case: {facts['conclusion']}.\n"
        f"From the statements we see that {verdict}. The answer is {answer}."
    )


def _sorting(entry: Entry) -> str:
    facts = entry["metadata"]
    words, result = facts["original_words"], facts["sorted_words"]
    amount = _WORD_COUNT.get(len(words), str(len(words)))
    lines = [f"There are {amount} words to sort in {facts['direction']} order: {', '.join(words)}."]
    lines += [f"{i}. {word}" for i, word in enumerate(result, 1)]
    return "\n".join([*lines, f"The sorted list is: {', '.join(result)}"])


def _reversal(entry: Entry) -> str:
    words = list(entry["metadata"]["words"])
    return (
        f"The list has {_WORD_COUNT.get(len(words), str(len(words)))} words, and the last one is {words[-1]}.\n"
        f"Reading the list from the end to the start gives: {entry['answer']}"
    )


def _geometry(entry: Entry) -> str:
    facts = entry["metadata"]
    sides, known = facts["n_sides"], facts["known_angles"]
    total, partial = facts["total_interior_sum"], facts["sum_of_known_angles"]
    return (
        f"The interior angles of a polygon with {sides} sides add up to ({sides} - 2) × 180° = {total}°.\n"
        f"The known angles add up to {' + '.join(f'{a:g}' for a in known)} = {partial:g}°.\n"
        f"The remaining angle is {total}° - {partial:g}° = {entry['answer']}°."
    )


def _weekday(entry: Entry) -> str:
    facts = entry["metadata"]
    if facts.get("task") != "weekday_of_date":
        return f"We go through the calendar one step at a time, counting the days.\nThe answer is {entry['answer']}."
    day = date.fromisoformat(facts["target_date"])
    return (
        f"The date is day {day.day} of {day.strftime('%B')} in the year {day.year}.\n"
        f"Counting the days of the week up to that date, we find that it was a {entry['answer']}."
    )


WRITERS: dict[str, Callable[[Entry], str]] = {
    "gsm_symbolic": _gsm_symbolic,
    "chain_sum": _chain_sum,
    "leg_counting": _leg_counting,
    "simple_equations": _simple_equations,
    "syllogism": _syllogism,
    "word_sorting": _sorting,
    "word_sequence_reversal": _reversal,
    "simple_geometry": _geometry,
    "calendar_arithmetic": _weekday,
}


@cache
def _tasks(kind: str, seed: int, size: int) -> Any:
    import reasoning_gym

    options = {"tasks": ["weekday_of_date"]} if kind == "calendar_arithmetic" else {}
    return reasoning_gym.create_dataset(kind, seed=seed, size=size, **options)


def conversations(seed: int, count: int) -> Iterator[tuple[str, str]]:
    """Yield ``count`` (question, worked answer) pairs, the kinds in turn.

    Parameters
    ----------
    seed : int
        Seed of the generators. reasoning-gym seeds task i with ``seed + i``, so seeds give different tasks only when
        they lie further apart than ``count``; kinds with few tasks, syllogism above all, repeat some anyhow.
    count : int
        Number of pairs.
    """
    kinds = list(WRITERS)
    size = count // len(kinds) + 1
    for index in range(count):
        kind = kinds[index % len(kinds)]
        entry = _tasks(kind, seed, size)[index // len(kinds)]
        question = entry["question"].strip()
        if kind == "gsm_symbolic":
            question = question.removesuffix("Give the result as your final answer. Do not include units.").strip()
        yield question, WRITERS[kind](entry)
