"""Conversions that are run again, as the commands that make a draft are when they are continued."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")

from sgl_dspark.errors import ConfigError
from sgl_dspark.interop.convert import convert
from sgl_dspark.model.provenance import write_provenance
from tests.support.conversions import THERE, options, rewrite, run, saved


def _files(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}


def test_the_same_conversion_again_leaves_its_output_as_it_is(tmp_path: Path) -> None:
    source = saved(tmp_path / "source")
    write_provenance(source, {"target": "here", "target_sha256": "0" * 64})
    for out, more in ((tmp_path / "out", ("--block-size", "3")), (tmp_path / "there", THERE)):
        run(source, out, *more)
        (out / "calibration.json").write_text("{}")
        before = _files(out)
        lines: list[str] = []
        convert(options(source, out, *more), lines.append)
        assert _files(out) == before
        assert any("left as it is" in line for line in lines)
    # Other options, other weights and a damaged file are another model.
    with pytest.raises(ConfigError, match=r"differs in config\.json"):
        run(source, tmp_path / "out", "--block-size", "2")
    before = _files(tmp_path / "out")
    rewrite(source, lambda tensors: tensors["fc.weight"].add_(1))
    with pytest.raises(ConfigError, match=r"differs in model\.safetensors"):
        run(source, tmp_path / "out", "--block-size", "3")
    assert _files(tmp_path / "out") == before
    assert {path.name for path in tmp_path.iterdir()} == {"source", "out", "there"}


def test_what_a_killed_conversion_left_is_filled(tmp_path: Path) -> None:
    source, out = saved(tmp_path / "source"), tmp_path / "out"
    out.mkdir()
    (out / "model.safetensors").write_bytes(b"half")
    whole = run(source, tmp_path / "whole")
    run(source, out)
    assert {n: c for n, (c, _) in _files(out).items()} == {n: c for n, (c, _) in _files(whole).items()}
