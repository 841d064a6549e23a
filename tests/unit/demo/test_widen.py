"""A widened pair computes what the narrow one computes: logits, greedy answers, drafts and confidence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sgl_dspark.config import DrafterConfig
from sgl_dspark.demo.widen import shares, widen_draft, widen_target
from sgl_dspark.errors import CheckpointError
from sgl_dspark.evaluation.runner import Decoding, SpeculativeRunner
from sgl_dspark.evaluation.sides import BlockSide
from sgl_dspark.model.checkpoint import load_drafter, save_drafter
from sgl_dspark.model.drafter import Drafter
from sgl_dspark.model.target import KeyValueCache, TargetModel
from tests.support.pair import DRAFT, TARGET, prompts
from tests.support.tiny_target import HIDDEN, LAYERS, VOCAB, write_tiny_target

FACTOR = 3


def logits_of(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    model = TargetModel.from_dir(folder, torch.float32)
    cache = KeyValueCache.empty(model.config, 1, ids.shape[1], torch.float32)
    return model.logits(model.forward(ids, cache)[0])


def runner_of(target: Path, draft: Path) -> SpeculativeRunner:
    model = TargetModel.from_dir(target, torch.float32)
    shared = {"target_embed": model.embed, "target_lm_head": model.lm_head}
    return SpeculativeRunner(model, BlockSide(load_drafter(draft, dtype=torch.float32, device="cpu", **shared)))


def write_tiny_draft(folder: Path, head: str) -> None:
    config = DrafterConfig(
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=VOCAB,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        max_position_embeddings=256,
        gamma=4,
        mask_token_id=3,
        target_layer_ids=(-1, 0, 2),
        num_target_layers=LAYERS,
        markov_rank=6,
        markov_head_type=head,  # type: ignore[arg-type]
        enable_confidence_head=True,
        confidence_head_with_markov=True,
        draft_vocab_size=VOCAB - 8,
    )
    drafter = Drafter(config)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
    save_drafter(drafter, folder, include_shared=True)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wide")
    assert 20e6 < widen_target(TARGET, folder / "target", FACTOR) < 30e6
    widen_draft(DRAFT, folder / "draft", FACTOR)
    return folder


@pytest.mark.parametrize("factor", [1, 2, 3, 5])
def test_shares_add_up_to_one_exactly_in_bf16(factor: int) -> None:
    rounded = torch.tensor(shares(factor)).to(torch.bfloat16).double()
    assert rounded.tolist() == shares(factor)
    assert len(shares(factor)) == factor
    assert float(rounded.sum()) == 1.0


def test_the_wide_fixture_gives_the_same_logits(wide: Path) -> None:
    ids = torch.tensor([prompts(3)[0]])
    narrow, other = logits_of(TARGET, ids), logits_of(wide / "target", ids)
    assert float((narrow - other).abs().max()) < 1e-4
    assert float(narrow.std()) > 1


def test_the_wide_fixture_answers_and_accepts_as_the_narrow_one(wide: Path) -> None:
    narrow, other = runner_of(TARGET, DRAFT), runner_of(wide / "target", wide / "draft")
    for index, prompt in enumerate(prompts(3)):
        decoding = Decoding(temperature=0.0, max_new_tokens=48, seed=index)
        (expected,), (found,) = (r.run([prompt], decoding) for r in (narrow, other))
        assert found.tokens == expected.tokens
        assert [r.num_correct_drafts for r in found.rounds] == [r.num_correct_drafts for r in expected.rounds]


def test_the_weights_may_be_read_by_whoever_may_read_the_configuration(wide: Path) -> None:
    """By itself safetensors writes for the owner alone, and a server often runs as somebody else."""
    modes = {file.name: file.stat().st_mode & 0o777 for file in wide.rglob("*.*")}
    assert modes["model.safetensors"] == modes["config.json"]


def test_files_beside_the_weights_come_along(wide: Path) -> None:
    names = {file.name for file in TARGET.iterdir()}
    assert {file.name for file in (wide / "target").iterdir()} == names
    config = json.loads((wide / "target" / "config.json").read_text())
    assert (config["hidden_size"], config["head_dim"], config["tie_word_embeddings"]) == (384, 32, False)


@torch.no_grad()
@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
def test_every_kind_of_draft_gives_the_same_block(tmp_path: Path, head: str) -> None:
    write_tiny_draft(tmp_path / "narrow", head)
    widen_draft(tmp_path / "narrow", tmp_path / "wide", FACTOR)
    found = []
    for name, copies in (("narrow", 1), ("wide", FACTOR)):
        drafter = load_drafter(tmp_path / name, dtype=torch.float64, device="cpu")
        generator = torch.Generator().manual_seed(1)
        features = torch.randn(5, 3, HIDDEN, generator=generator, dtype=torch.float64).repeat(1, 1, copies).flatten(1)
        tokens = torch.randint(VOCAB, (5, 4), generator=generator)
        context = drafter.project_context(features)
        hidden = drafter.layers[0](0, context, *drafter.rotary.lookup(torch.arange(5), context.dtype), attend)
        hidden = drafter.norm(hidden)[:, None].expand(5, 4, -1)
        assert drafter.markov_head is not None
        latents = drafter.markov_head.teacher_forced(tokens, hidden)
        bias = drafter.markov_head.bias(latents)
        found.append((drafter.base_logits(hidden) + bias, drafter.confidence_logits(hidden, tokens)))
    for narrow, other in zip(*found, strict=True):
        torch.testing.assert_close(other, narrow, rtol=1e-6, atol=1e-6)
        assert float(narrow.std()) > 0


def attend(index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    out = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in (q, k, v)), enable_gqa=True
    )
    return out[0].transpose(0, 1)


def test_a_llama_target_is_widened_too(tmp_path: Path) -> None:
    write_tiny_target(tmp_path / "narrow", "llama")
    widen_target(tmp_path / "narrow", tmp_path / "wide", 2)
    ids = torch.arange(4, 20)[None]
    torch.testing.assert_close(
        logits_of(tmp_path / "wide", ids), logits_of(tmp_path / "narrow", ids), rtol=1e-4, atol=1e-4
    )


def test_noise_is_seeded_and_changes_the_features_projection_only(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    drafts = {}
    for name, options in (("clean", (0.0, 0)), ("a", (0.5, 0)), ("b", (0.5, 0)), ("c", (0.5, 1))):
        widen_draft(DRAFT, tmp_path / name, 1, noise=options[0], seed=options[1])
        drafts[name] = load_file(tmp_path / name / "model.safetensors")
    changed = {name for name, tensor in drafts["clean"].items() if not torch.equal(tensor, drafts["a"][name])}
    assert changed == {"fc.weight"}
    assert torch.equal(drafts["a"]["fc.weight"], drafts["b"]["fc.weight"])
    assert not torch.equal(drafts["a"]["fc.weight"], drafts["c"]["fc.weight"])
    clean, noisy = drafts["clean"]["fc.weight"].float(), drafts["a"]["fc.weight"].float()
    assert float((noisy - clean).std() / clean.std()) == pytest.approx(0.5, rel=0.02)


def test_what_cannot_be_widened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="factor must be at least 1"):
        widen_draft(DRAFT, tmp_path, 0)
    with pytest.raises(CheckpointError, match="cannot read .*nowhere"):
        widen_target(tmp_path / "nowhere", tmp_path, 2)
    with pytest.raises(CheckpointError, match=r"holds no fc\.weight"):
        widen_draft(TARGET, tmp_path, 2)
    biased = tmp_path / "biased"
    write_tiny_target(biased)
    from safetensors.torch import load_file, save_file

    tensors = load_file(biased / "model.safetensors")
    save_file(tensors | {"model.layers.0.self_attn.q_proj.bias": torch.ones(32)}, biased / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"q_proj\.bias in .* has no rule"):
        widen_target(biased, tmp_path / "out", 2)
