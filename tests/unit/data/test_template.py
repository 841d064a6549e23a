"""Loss masks from chat templates: answers through their end of turn, ids as serving sees them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from sgl_dspark.data.responses import Exchange
from sgl_dspark.data.template import ChatEncoder
from sgl_dspark.errors import DataError
from sgl_dspark.model.target_config import TargetConfig

TARGET = Path(__file__).parents[2] / "fixtures" / "pair" / "target"
REWRITING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last %}earlier{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def encoder() -> ChatEncoder:
    return ChatEncoder(TARGET, TargetConfig.from_dir(TARGET).eos_token_ids)


def exchange(*texts: str, reasons: list[str] | None = None) -> Exchange:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return Exchange("x", "", messages, reasons or ["stop"] * (len(texts) // 2))


def supervised(encoder: ChatEncoder, found: Exchange) -> list[list[str]]:
    """Decode the supervised stretches of every sequence."""
    stretches = []
    for sequence in encoder.encode(found):
        runs: list[list[int]] = []
        for before, (token, on) in zip(
            (False, *sequence.supervised), zip(sequence.ids, sequence.supervised, strict=True), strict=False
        ):
            if on and not before:
                runs.append([])
            if on:
                runs[-1].append(token)
        stretches.append([encoder._tokenizer.decode(run) for run in runs])
    return stretches


def test_the_mask_covers_the_answer_and_its_end_of_turn(encoder: ChatEncoder) -> None:
    end = encoder._eos_texts[0]
    assert supervised(encoder, exchange("Add 1 and 2.", "It is 3.")) == [["It is 3." + end]]


@pytest.mark.parametrize("sampling", [{"stop": ["3."]}, {"stop_token_ids": [9]}, {"stop_regex": "3"}])
def test_an_answer_that_a_stop_of_the_request_may_have_ended_has_no_end_of_turn(
    encoder: ChatEncoder, sampling: dict[str, object]
) -> None:
    found = replace(exchange("Add 1 and 2.", "It is 3.", "And 4?", "It is 7."), sampling=sampling)
    assert supervised(encoder, found) == [["It is 3.", "It is 7."]]
    end = encoder._eos_texts[0]
    assert supervised(encoder, replace(found, sampling={"stop": None}))[0][0] == "It is 3." + end


def test_ids_are_the_served_prompt_with_the_answer_behind_it(encoder: ChatEncoder) -> None:
    found = exchange("Add 1 and 2.", " It is 3.\n")
    (sequence,) = encoder.encode(found)
    prompt = encoder.prompt_ids(found.messages[:1])
    assert sequence.ids[: len(prompt)] == prompt
    assert not any(sequence.supervised[: len(prompt)])
    assert all(sequence.supervised[len(prompt) :])
    # The answer as it was emitted, blanks included.
    assert encoder._tokenizer.decode(sequence.ids[len(prompt) : -1]) == " It is 3.\n"
    assert sequence.ids[-1] in encoder._eos


def test_an_answer_that_was_cut_off_has_no_supervised_end_of_turn(encoder: ChatEncoder) -> None:
    assert supervised(encoder, exchange("Add 1 and 2.", "It is", reasons=["length"])) == [["It is"]]


def test_turns_share_one_sequence_where_the_template_lets_them(encoder: ChatEncoder) -> None:
    end = encoder._eos_texts[0]
    found = exchange("Add 1 and 2.", "It is 3.", "And 4?", "It is 7.")
    assert supervised(encoder, found) == [["It is 3." + end, "It is 7." + end]]
    (sequence,) = encoder.encode(found)
    served = encoder.prompt_ids(found.messages[:3])
    assert encoder._tokenizer.decode(sequence.ids[: len(served)]) == encoder._tokenizer.decode(served)


def test_a_template_that_rewrites_history_gives_one_sequence_a_turn() -> None:
    encoder = ChatEncoder(TARGET, TargetConfig.from_dir(TARGET).eos_token_ids)
    encoder._tokenizer.chat_template = REWRITING
    end = encoder._eos_texts[0]
    found = exchange("Add 1 and 2.", "It is 3.", "And 4?", "It is 7.")
    assert supervised(encoder, found) == [["It is 3." + end], ["It is 7." + end]]
    second = encoder.encode(found)[1]
    assert "earlier" in encoder._tokenizer.decode(second.ids)
    assert "It is 3." not in encoder._tokenizer.decode(second.ids)


def test_a_template_that_hides_answers_is_refused() -> None:
    encoder = ChatEncoder(TARGET, TargetConfig.from_dir(TARGET).eos_token_ids)
    encoder._tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}<|im_end|>{% endfor %}{% if add_generation_prompt %}go{% endif %}"
    )
    with pytest.raises(DataError, match="chat-template-kwargs"):
        encoder.encode(exchange("a", "b"))


def test_a_target_without_a_template_is_refused(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "config.json"):
        (tmp_path / name).write_bytes((TARGET / name).read_bytes())
    with pytest.raises(DataError, match="no chat template"):
        ChatEncoder(tmp_path, (2,))


def test_a_target_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    for name in ("chat_template.jinja", "config.json"):
        (tmp_path / name).write_bytes((TARGET / name).read_bytes())
    with pytest.raises(DataError, match="tokenizer"):
        ChatEncoder(tmp_path, (2,))
