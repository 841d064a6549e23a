"""In which arithmetic a run trains, by its recipe and by the processor."""

from __future__ import annotations

from pathlib import Path

import pytest

from sgl_dspark.model.provenance import read_provenance
from sgl_dspark.training import fit as fitting
from sgl_dspark.training.fit import fit
from tests.unit.training.test_fit import quiet, recipe


@pytest.mark.parametrize("has_bf16", [True, False])
def test_a_run_computes_in_bf16_only_where_the_processor_does(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_bf16: bool
) -> None:
    monkeypatch.setattr(fitting, "computes_bf16", lambda device: has_bf16)
    said: list[str] = []
    run = fit(recipe(made, tmp_path / "run", optim={"steps": 2, "bf16": True, "warmup_steps": 1}), said.append)
    assert read_provenance(run)["arithmetic"] == ("bf16" if has_bf16 else "fp32")
    assert any("fp32, as this processor has no bf16" in line for line in said) != has_bf16
    single = fit(recipe(made, tmp_path / "single", optim={"steps": 2, "bf16": False, "warmup_steps": 1}), quiet)
    same = (run / "model.safetensors").read_bytes() == (single / "model.safetensors").read_bytes()
    assert same != has_bf16
