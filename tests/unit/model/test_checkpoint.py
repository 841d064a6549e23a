from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sgl_dspark.config import DrafterConfig
from sgl_dspark.errors import CheckpointError, ConfigError, TargetMismatchError
from sgl_dspark.model.checkpoint import load_drafter, save_drafter, tensor_shapes
from sgl_dspark.model.drafter import Drafter
from tests.support.drafts import KINDS, tiny_config, tiny_drafter
from tests.unit.test_config import RELEASED_4B, changed

CPU32 = {"dtype": torch.float32, "device": "cpu"}


def edit(folder: Path, **tensors: torch.Tensor | None) -> None:
    state = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        state.pop(name.replace("__", "."), None)
        if tensor is not None:
            state[name.replace("__", ".")] = tensor
    save_file(state, folder / "model.safetensors")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_drafter(tiny_drafter("gated"), tmp_path, include_shared=True)
    return tmp_path


def test_released_names_and_shapes() -> None:
    shapes = tensor_shapes(DrafterConfig.from_dict(RELEASED_4B))
    assert len(shapes) == 64
    assert shapes["embed_tokens.weight"] == shapes["lm_head.weight"] == (151936, 2560)
    assert shapes["fc.weight"] == (2560, 12800)
    assert shapes["layers.4.self_attn.q_proj.weight"] == (4096, 2560)
    assert shapes["layers.0.self_attn.k_proj.weight"] == (1024, 2560)
    assert shapes["layers.0.self_attn.k_norm.weight"] == (128,)
    assert shapes["layers.2.mlp.down_proj.weight"] == (2560, 9728)
    assert shapes["markov_head.markov_w2.weight"] == (151936, 256)
    assert shapes["confidence_head.proj.weight"] == (1, 2816)
    assert shapes["confidence_head.proj.bias"] == (1,)


@pytest.mark.parametrize(
    ("changes", "parameters"),
    [
        ({}, 1_393_133_569),
        ({"hidden_size": 4096, "intermediate_size": 12288}, 2_371_081_729),
        (
            {
                "hidden_size": 5120,
                "intermediate_size": 17408,
                "num_attention_heads": 40,
                "num_target_layers": 40,
                "target_layer_ids": [1, 10, 19, 28, 37],
            },
            3_416_263_169,
        ),
    ],
    ids=["4B", "8B", "14B"],
)
def test_released_parameter_counts(changes: dict[str, object], parameters: int) -> None:
    shapes = tensor_shapes(DrafterConfig.from_dict(changed(**changes)))
    assert sum(math.prod(shape) for shape in shapes.values()) == parameters


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({}, 2_786_273_970),
        (
            {
                "markov_rank": 0,
                "markov_head_type": ...,
                "enable_confidence_head": False,
                "confidence_head_with_markov": ...,
            },
            2_630_685_488,
        ),
    ],
    ids=["DSpark", "DFlash"],
)
def test_released_file_size(changes: dict[str, object], size: int) -> None:
    assert file_size(tensor_shapes(DrafterConfig.from_dict(changed(**changes))), "BF16", 2) == size


@pytest.mark.parametrize("kind", KINDS)
def test_saved_file_has_the_size_that_its_shapes_give(kind: str, tmp_path: Path) -> None:
    save_drafter(tiny_drafter(kind), tmp_path, include_shared=True)
    assert (tmp_path / "model.safetensors").stat().st_size == file_size(tensor_shapes(tiny_config(kind)), "F32", 4)


def file_size(shapes: dict[str, tuple[int, ...]], dtype: str, width: int) -> int:
    """Length of a safetensors file: 8 bytes, a JSON header padded to 8, then the tensors in order of name."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in sorted(shapes):
        end = offset + width * math.prod(shapes[name])
        header[name] = {"dtype": dtype, "shape": list(shapes[name]), "data_offsets": [offset, end]}
        offset = end
    length = len(json.dumps(header, separators=(",", ":")))
    return 8 + (length + 7) // 8 * 8 + offset


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    drafter = tiny_drafter(kind, dtype=dtype)
    save_drafter(drafter, tmp_path, include_shared=True)
    loaded = load_drafter(tmp_path, dtype=dtype, device="cpu")
    assert loaded.config == drafter.config
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    assert loaded.state_dict().keys() == drafter.state_dict().keys()
    for name, tensor in drafter.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_a_fused_drafter_saves_what_it_was_fused_from(tmp_path: Path) -> None:
    drafter = tiny_drafter()
    before = {name: tensor.clone() for name, tensor in drafter.state_dict().items()}
    drafter.fuse_for_serving()
    save_drafter(drafter, tmp_path, include_shared=True)
    after = load_file(tmp_path / "model.safetensors")
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_shared_tensors_come_from_the_target_without_a_copy(tmp_path: Path) -> None:
    drafter = tiny_drafter()
    save_drafter(drafter, tmp_path, include_shared=False)
    assert not {"embed_tokens.weight", "lm_head.weight"} & load_file(tmp_path / "model.safetensors").keys()
    weight = torch.randn(40, 16)
    loaded = load_drafter(tmp_path, **CPU32, target_embed=weight, target_lm_head=weight)
    assert loaded.embed_tokens.weight.data_ptr() == weight.data_ptr() == loaded.lm_head.weight.data_ptr()
    assert torch.equal(loaded.fc.weight, drafter.fc.weight)


def test_missing_shared_tensor_names_it_and_the_remedy(tmp_path: Path) -> None:
    save_drafter(tiny_drafter(), tmp_path, include_shared=False)
    with pytest.raises(CheckpointError, match=r"embed_tokens\.weight is missing .* load it beside its target"):
        load_drafter(tmp_path, **CPU32)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        load_drafter(tmp_path, **CPU32, target_embed=torch.zeros(40, 16))


def test_target_of_another_shape_is_refused(saved: Path) -> None:
    with pytest.raises(
        TargetMismatchError, match=r"lm_head\.weight has shape \[41, 16\] but the draft expects \[40, 16\]"
    ):
        load_drafter(saved, **CPU32, target_embed=torch.zeros(40, 16), target_lm_head=torch.zeros(41, 16))


def test_target_of_another_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="embed_tokens.weight of the target is torch.float64"):
        tiny_drafter().share_embeddings(torch.zeros(40, 16).double(), torch.zeros(40, 16))


def test_missing_tensor_is_named(saved: Path) -> None:
    edit(saved, layers__1__mlp__up_proj__weight=None)
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.up_proj\.weight is missing"):
        load_drafter(saved, **CPU32)


def test_unknown_tensor_is_named(saved: Path) -> None:
    edit(saved, markov_head__joint_proj__weight=torch.zeros(2, 2))
    with pytest.raises(CheckpointError, match=r"holds markov_head\.joint_proj\.weight"):
        load_drafter(saved, **CPU32)


def test_wrong_shape_is_named(saved: Path) -> None:
    edit(saved, fc__weight=torch.zeros(16, 32))
    with pytest.raises(CheckpointError, match=r"fc\.weight .* has shape \[16, 32\]; .* asks for \[16, 48\]"):
        load_drafter(saved, **CPU32)


def test_unknown_head_type_is_named(saved: Path) -> None:
    raw = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(raw | {"markov_head_type": "lstm"}))
    with pytest.raises(ConfigError, match="markov_head_type is 'lstm'; the supported types are vanilla, gated, rnn"):
        load_drafter(saved, **CPU32)


def test_unreadable_weights(saved: Path) -> None:
    (saved / "model.safetensors").write_bytes(b"not a tensor file")
    with pytest.raises(CheckpointError, match="cannot read"):
        load_drafter(saved, **CPU32)
    (saved / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="cannot read"):
        load_drafter(saved, **CPU32)


def test_loading_keeps_what_trains_trainable(saved: Path) -> None:
    loaded = load_drafter(saved, **CPU32)
    frozen = {name for name, parameter in loaded.named_parameters() if not parameter.requires_grad}
    assert frozen == {"embed_tokens.weight", "lm_head.weight"}


def test_initialisation_is_the_papers() -> None:
    drafter = Drafter(tiny_config("rnn", vocab_size=2000))
    assert drafter.markov_head is not None
    assert drafter.markov_head.markov_w1.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert drafter.fc.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert torch.equal(drafter.norm.weight, torch.ones(16))
    biases = [p for name, p in drafter.named_parameters() if name.endswith("bias")]
    assert len(biases) == 2
    assert all(not bias.any() for bias in biases)


def test_a_draft_vocabulary_survives_saving_in_any_dtype(tmp_path: Path) -> None:
    save_drafter(tiny_drafter("vanilla").limit_vocabulary(torch.tensor([1, 39])), tmp_path, include_shared=True)
    loaded = load_drafter(tmp_path, dtype=torch.bfloat16, device="cpu")
    assert loaded.draft_vocab_ids is not None
    assert loaded.draft_vocab_ids.tolist() == [1, 39]
    assert loaded.fc.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("ids", [[1, 40], [-1, 3], [3, 3], [5, 2]])
def test_a_draft_vocabulary_that_names_no_tokens_is_refused(tmp_path: Path, ids: list[int]) -> None:
    save_drafter(tiny_drafter("vanilla").limit_vocabulary(torch.tensor([1, 39])), tmp_path, include_shared=True)
    edit(tmp_path, draft_vocab_ids=torch.tensor(ids))
    with pytest.raises(CheckpointError, match="draft_vocab_ids .* increasing int64 token ids below vocab_size"):
        load_drafter(tmp_path, **CPU32)


@pytest.mark.parametrize("size", [0, 41])
def test_a_draft_vocabulary_of_an_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=f"draft_vocab_size is {size}"):
        tiny_config("vanilla", draft_vocab_size=size)
