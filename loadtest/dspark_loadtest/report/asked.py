"""What a report says about the questions: how answers end, how lengths were changed, what prompts are about.

Whoever compares figures of speculation needs this before the figures: acceptance depends on all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FORCED = (
    "Every answer is forced to the length that the trace says (ignore_eos). Text that a model is made to write past "
    "its own end is not natural; a small model repeats itself there, drafts of repetitions are accepted, and arms that "
    "speculate gain more than they would on answers that end by themselves (--natural-stop)."
)
NATURAL = "Answers end by themselves, at the length that the trace says at the latest (--natural-stop)."


def asked(data: Mapping[str, Any]) -> str:
    """Return sentences from a report's ``request``, ``fit``, ``categories``, ``mix`` and ``prompts``.

    ``categories`` has the number of requests of each. What an older file does not say is left out.
    """
    request = data["request"]
    temperature = request["temperature"]
    parts = [f"Temperature {temperature:g}{'' if temperature else ', greedy'}."]
    parts.append(FORCED if request["ignore_eos"] else NATURAL)
    if request.get("extra"):
        parts.append(f"Further fields of each request: {', '.join(sorted(request['extra']))}.")
    parts += [_lengths(data["fit"])] if "fit" in data else []
    parts += [_texts(data)] if data.get("categories") else []
    return " ".join(parts)


def _lengths(fit: Mapping[str, Any]) -> str:
    text = f"Lengths are the trace's, prompts times {fit['prompt_scale']:g} and answers times {fit['output_scale']:g}"
    if fit["max_output"] is not None:
        text += f", answers at most {fit['max_output']} tokens"
    return f"{text}; prompts are cut to what the context leaves."


def _texts(data: Mapping[str, Any]) -> str:
    counts = data["categories"]
    whole = sum(counts.values())
    shares = ", ".join(f"{name} {100 * count / whole:.0f} %" for name, count in sorted(counts.items()))
    source = ", ".join(data.get("prompts") or ("built in",))
    weights = f", by weights {data['mix']}" if data.get("mix") else ""
    return f"Prompts ({source}{weights}): {shares} of the requests that were answered."
