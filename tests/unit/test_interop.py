"""Drafts survive the way into another layout and back; what a layout cannot say is refused by field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("transformers")

from sgl_dspark.errors import CheckpointError, ConfigError, DsparkError, TargetMismatchError
from sgl_dspark.interop import command
from sgl_dspark.interop.convert import convert, cut_block, limit_vocabulary, read_draft
from sgl_dspark.model.checkpoint import load_drafter
from sgl_dspark.model.drafter import Drafter
from sgl_dspark.model.provenance import read_provenance, write_provenance
from sgl_dspark.model.target import load_embeddings
from tests.support.conversions import IDS, THERE, edit, options, rewrite, run, saved
from tests.support.drafts import HEAD_KINDS
from tests.support.tiny_target import write_tiny_target


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_speculators_and_back(tmp_path: Path, kind: str, reduced: bool) -> None:
    source = saved(tmp_path / "source", kind, reduced=reduced)
    there = run(source, tmp_path / "there", "--to", "speculators", "--verifier", "org/target")
    raw = json.loads((there / "config.json").read_text())
    assert raw["speculators_model_type"] == "dspark"
    assert raw["sample_from_anchor"] is True
    assert raw["aux_hidden_state_layer_ids"] == [0, 2, 3]
    assert raw["draft_vocab_size"] == (len(IDS) if reduced else 40)
    assert raw["speculators_config"]["verifier"]["name_or_path"] == "org/target"
    tensors = load_file(there / "model.safetensors")
    assert ("d2t" in tensors) == reduced
    if reduced:
        assert torch.equal(torch.arange(len(IDS)) + tensors["d2t"], IDS)
        assert tensors["markov_head.markov_w2.weight"].shape[0] == len(IDS)
    back = run(there, tmp_path / "back")
    first, second = (read_draft(folder, 5, None) for folder in (source, back))
    # The depth of the target is not in the other layout; the lowest that fits is assumed.
    assert second.config.num_target_layers == 4
    for name, tensor in first.tensors.items():
        if reduced and name == "markov_head.markov_w2.weight":
            assert torch.equal(second.tensors[name][IDS], tensor[IDS])
        else:
            assert torch.equal(second.tensors[name], tensor), name
    assert second.tensors.keys() == first.tensors.keys()


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_modelopt_is_read_under_both_spellings(tmp_path: Path, kind: str) -> None:
    source = saved(tmp_path / "source", kind)
    wanted = read_draft(source, 5, None)
    flat = {
        "markov_head.markov_w1.": "markov_w1.", "markov_head.markov_w2.": "markov_w2.",
        "markov_head.gate_proj.": "gate_proj.", "markov_head.joint_proj.": "joint_proj.",
        "confidence_head.proj.": "confidence_proj.",
    }  # fmt: skip

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            for released, short in flat.items():
                if name.startswith(released):
                    tensors[short + name[len(released) :]] = tensors.pop(name)

    def exported(raw: dict[str, Any]) -> None:
        section = {n: raw.pop(n) for n in ("mask_token_id", "target_layer_ids", "markov_rank", "markov_head_type")}
        raw["dflash_config"] = {
            **section, "projector_type": "dspark", "shift_label": True, "use_confidence_head": True,
        }  # fmt: skip
        for name in ("enable_confidence_head", "confidence_head_with_markov"):
            raw.pop(name)
        raw["architectures"] = ["DFlashDraftModel"]

    def trained(raw: dict[str, Any]) -> None:
        section = raw.pop("dflash_config")
        raw["dflash_block_size"] = raw.pop("block_size")
        raw["dflash_mask_token_id"] = section.pop("mask_token_id")
        raw["dflash_architecture_config"] = section

    rewrite(source, rename)
    edit(source, exported)
    for change in (exported, trained):
        if change is trained:
            edit(source, trained)
        found = read_draft(source, None, None)
        assert found.config == wanted.config
        assert found.tensors.keys() == wanted.tensors.keys()
        assert all(torch.equal(found.tensors[name], tensor) for name, tensor in wanted.tensors.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sample_from_anchor": False}, "sample_from_anchor is false"),
        ({"sample_from_anchor": None}, "--sample-from-anchor"),
        ({"speculators_model_type": "eagle3"}, "'eagle3'"),
        ({"target_hidden_size": 99}, "target_hidden_size"),
        ({"aux_hidden_state_layer_ids": None}, "aux_hidden_state_layer_ids is missing"),
        ({"mask_token_id": None}, "mask_token_id is missing"),
        ({"markov_head_type": "lstm"}, "'lstm'"),
    ],
)
def test_speculators_that_cannot_be_said_are_refused_by_field(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    there = run(saved(tmp_path / "source"), tmp_path / "there", *THERE)
    edit(there, lambda raw: raw.update(change))
    with pytest.raises(ConfigError, match=message):
        read_draft(there, None, None)
    if message == "--sample-from-anchor":
        assert read_draft(there, None, None, sample_from_anchor=True).config.gamma == 4


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"projector_type": "domino"}, "projector_type is 'domino'"),
        ({"projector_type": None}, "projector_type is None"),
        ({"shift_label": False}, "shift_label"),
        ({"causal": True}, "causal"),
        ({"markov_rank": 0}, "weights hold a Markov head"),
    ],
)
def test_modelopt_drafts_that_cannot_be_said_are_refused_by_field(
    tmp_path: Path, section: dict[str, Any], message: str
) -> None:
    source = saved(tmp_path / "source")
    base = {"projector_type": "dspark", "shift_label": True, "use_confidence_head": False}

    def change(raw: dict[str, Any]) -> None:
        raw["dflash_config"] = {**base, **section}
        for name in ("enable_confidence_head", "confidence_head_with_markov"):
            raw.pop(name)
        if "markov_rank" in section:
            raw.pop("markov_rank")

    edit(source, change)
    with pytest.raises(DsparkError, match=message):
        read_draft(source, None, None)


def test_offsets_must_name_tokens(tmp_path: Path) -> None:
    there = run(saved(tmp_path / "source", reduced=True), tmp_path / "there", *THERE)
    rewrite(there, lambda tensors: tensors["t2d"].__setitem__(0, True))
    with pytest.raises(CheckpointError, match="different tokens"):
        read_draft(there, None, None)
    rewrite(there, lambda tensors: tensors.pop("d2t"))
    with pytest.raises(CheckpointError, match="lacks d2t"):
        read_draft(there, None, None)


def test_a_stored_head_must_be_the_targets(tmp_path: Path) -> None:
    there = run(saved(tmp_path / "source", reduced=True), tmp_path / "there", *THERE)
    head = torch.randn(40, 16).bfloat16()
    rewrite(there, lambda tensors: tensors.update({"lm_head.weight": head[IDS].clone()}))
    with pytest.raises(CheckpointError, match="give --target"):
        read_draft(there, None, None)
    found = read_draft(there, None, head.float())
    assert "lm_head.weight" not in found.tensors
    assert found.notes
    with pytest.raises(CheckpointError, match="is not the target's"):
        read_draft(there, None, head.float() + 1)


def test_embeddings_are_stored_on_request(tmp_path: Path) -> None:
    target = tmp_path / "target"
    write_tiny_target(target)
    source = saved(
        tmp_path / "source", vocab_size=64, hidden_size=32, num_attention_heads=4, head_dim=8, num_target_layers=4
    )
    whole = run(source, tmp_path / "whole", "--target", str(target), "--with-embeddings")
    loaded = load_drafter(whole, dtype=torch.bfloat16, device="cpu")
    embed, head = load_embeddings(target, torch.bfloat16)
    assert torch.equal(loaded.embed_tokens.weight, embed)
    assert torch.equal(loaded.lm_head.weight, head)
    write_tiny_target(tmp_path / "other", seed=7)
    with pytest.raises(TargetMismatchError, match=r"embed_tokens\.weight"):
        run(whole, tmp_path / "out", "--target", str(tmp_path / "other"))
    wrong = saved(tmp_path / "wrong", num_target_layers=4)
    with pytest.raises(TargetMismatchError, match="hidden_size"):
        run(wrong, tmp_path / "out", "--target", str(target))


def test_fewer_slots_and_a_smaller_vocabulary(tmp_path: Path) -> None:
    draft = read_draft(saved(tmp_path / "source"), 5, None)
    assert cut_block(draft, 2).config.gamma == 2
    with pytest.raises(ConfigError, match="trained with 4"):
        cut_block(draft, 5)
    once = limit_vocabulary(draft, IDS)
    twice = limit_vocabulary(once, torch.tensor([4, 5, 30]))
    assert twice.vocabulary is not None
    assert twice.vocabulary.tolist() == [5, 30]
    assert twice.check(tmp_path).config.draft_vocab_size == 2


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    source = saved(tmp_path / "source")
    with pytest.raises(ConfigError, match="choose another"):
        run(source, source)
    with pytest.raises(ConfigError, match=r"holds another model already \(it differs in config\.json"):
        run(source, saved(tmp_path / "other", "rnn"))


def test_what_made_a_draft_comes_along_and_other_weights_are_told(tmp_path: Path) -> None:
    write_tiny_target(tmp_path / "target")
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "head_dim": 8, "num_target_layers": 4}
    source = saved(tmp_path / "source", **sizes)
    write_provenance(source, {"target": "elsewhere", "target_sha256": "0" * 64})
    lines: list[str] = []
    convert(options(source, tmp_path / "out", "--target", str(tmp_path / "target")), lines.append)
    assert read_provenance(tmp_path / "out")["target"] == "elsewhere"
    assert any("made for elsewhere" in line for line in lines)
    assert read_provenance(tmp_path) == {}


def test_wrong_combinations_are_named(tmp_path: Path) -> None:
    source = saved(tmp_path / "source")
    with pytest.raises(ConfigError, match="--target or --verifier"):
        run(source, tmp_path / "out", "--to", "speculators")
    for more in (("--with-embeddings",), ("--with-embeddings", "--target", str(tmp_path), "--to", "speculators")):
        with pytest.raises(ConfigError, match="--with-embeddings"):
            command.run(options(source, tmp_path / "out", *more))
    write_tiny_target(tmp_path / "target")
    with pytest.raises(ConfigError, match="no draft in a layout"):
        run(tmp_path / "target", tmp_path / "out")


def test_weights_are_as_readable_as_the_configuration(tmp_path: Path) -> None:
    source = saved(tmp_path / "source")
    for folder in (source, run(source, tmp_path / "out"), run(source, tmp_path / "there", *THERE)):
        modes = {(folder / name).stat().st_mode & 0o777 for name in ("config.json", "model.safetensors")}
        assert len(modes) == 1


def test_the_released_layout_is_copied_exactly(tmp_path: Path) -> None:
    source = saved(tmp_path / "source", "rnn")
    out = run(source, tmp_path / "out")
    assert json.loads((out / "config.json").read_text()) == json.loads((source / "config.json").read_text())
    one, other = (load_file(folder / "model.safetensors") for folder in (source, out))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert isinstance(load_drafter(out, dtype=torch.bfloat16, device="cpu", **_shared()), Drafter)


def _shared() -> dict[str, torch.Tensor]:
    return {"target_embed": torch.zeros(40, 16).bfloat16(), "target_lm_head": torch.zeros(40, 16).bfloat16()}
