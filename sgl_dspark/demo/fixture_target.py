"""Train the fixture's target: a small Qwen3-style chat model over worked reasoning-gym answers."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from sgl_dspark.demo.fixture_text import conversations

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
END_OF_TEXT, IM_START, IM_END, MASK_ID = range(4)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
VOCAB_SIZE, MAX_POSITIONS = 2048, 2048
# Prompt tokens count a little, so that the model also learns the words it is asked about.
PROMPT_LOSS_WEIGHT = 0.2


@dataclass(frozen=True)
class TargetRecipe:
    """How long and on what the fixture target trains."""

    seed: int = 7
    steps: int = 2000
    tokens_per_step: int = 1536
    conversations: int = 40_000
    learning_rate: float = 3e-3
    warmup_steps: int = 80


def chat_text(question: str, answer: str | None) -> str:
    """One turn in the fixture's chat form; without an answer it ends where the assistant begins."""
    head = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return head if answer is None else f"{head}{answer}<|im_end|>\n"


def train_tokenizer(seed: int, samples: int = 6000) -> Any:
    """Byte-level BPE of 2048 entries; digits stand alone so that numbers are spelled, not memorised."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (f"{question}\n{answer}\n" for question, answer in conversations(seed, samples))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def build_model(seed: int) -> Any:
    """Twelve narrow Qwen3 layers, so that a one-layer draft is cheap beside them."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=12,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=IM_END,
        pad_token_id=END_OF_TEXT,
    )
    return Qwen3ForCausalLM(config)


def _batches(rows: list[tuple[list[int], int]], recipe: TargetRecipe) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (ids, loss weights), both [B, T]: rows of like length together, right-padded, about ``tokens_per_step``."""
    rng = random.Random(recipe.seed)
    while True:
        rng.shuffle(rows)
        groups = []
        for start in range(0, len(rows), 1024):
            pool = sorted(rows[start : start + 1024], key=lambda row: len(row[0]))
            group: list[tuple[list[int], int]] = []
            for row in pool:
                if group and (len(group) + 1) * len(row[0]) > recipe.tokens_per_step:
                    groups.append(group)
                    group = []
                group.append(row)
            groups.append(group)
        rng.shuffle(groups)
        for group in groups:
            width = max(len(ids) for ids, _ in group)
            ids_BT = torch.zeros(len(group), width, dtype=torch.long)
            weights_BT = torch.zeros(len(group), width)
            for i, (ids, prompt_len) in enumerate(group):
                ids_BT[i, : len(ids)] = torch.tensor(ids)
                weights_BT[i, :prompt_len] = PROMPT_LOSS_WEIGHT
                weights_BT[i, prompt_len : len(ids)] = 1.0
            yield ids_BT, weights_BT


def train_target(recipe: TargetRecipe, tokenizer: Any, log: Callable[[str], None]) -> Any:
    """Train for ``recipe.steps`` optimiser steps and return the model with weights rounded to bf16 values."""
    rows = []
    for question, answer in conversations(recipe.seed, recipe.conversations):
        prompt = tokenizer.encode(chat_text(question, None)).ids
        rows.append((tokenizer.encode(chat_text(question, answer)).ids, len(prompt)))
    model = build_model(recipe.seed).train()
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
        lr=recipe.learning_rate,
        betas=(0.9, 0.95),
    )
    started, mean_loss, tokens = time.perf_counter(), math.nan, 0
    for step, (ids, weights) in zip(range(recipe.steps), _batches(rows, recipe), strict=False):
        ramp = min(1.0, (step + 1) / recipe.warmup_steps)
        fall = 0.5 * (1 + math.cos(math.pi * step / recipe.steps))
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * ramp * (0.02 + 0.98 * fall)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(ids[:, :-1]).logits
        losses = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        weight = weights[:, 1:].flatten()
        loss = (losses * weight).sum() / weight.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        tokens += ids.numel()
        answer_loss = losses[weight == 1.0].mean().item()
        mean_loss = answer_loss if math.isnan(mean_loss) else 0.98 * mean_loss + 0.02 * answer_loss
        if step % 50 == 0 or step + 1 == recipe.steps:
            rate = tokens / (time.perf_counter() - started)
            log(f"target step {step}/{recipe.steps} answer perplexity {math.exp(mean_loss):.3f} ({rate:.0f} tok/s)")
    return model.eval().to(torch.bfloat16)


def save_target(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write config, bf16 weights, tokenizer, chat template and generation settings."""
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config.eos_token_id = IM_END
    model.generation_config.pad_token_id = END_OF_TEXT
    model.save_pretrained(folder)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL_TOKENS[IM_END],
        "pad_token": SPECIAL_TOKENS[END_OF_TEXT],
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
