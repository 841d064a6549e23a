"""A tiny target and a cache of its states, for tests of whole runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sgl_dspark.data.cache import CacheWriter, weights_sha256
from sgl_dspark.data.decode import BatchGenerator, Prompt
from sgl_dspark.data.direct import DirectWriter, generate_directly
from sgl_dspark.model.target import TargetModel
from tests.support.tiny_target import write_tiny_target

LAYERS = [0, 1, 2]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a target folder and a cache of its responses."""
    target, data = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("data")
    write_tiny_target(target)
    model = TargetModel.from_dir(target, torch.float32)
    prompts = [Prompt((1, 9, 4, 20 + i), temperature=1.0, id=f"p{i}") for i in range(24)]
    source = {"feature_layers": LAYERS, "target_sha256": weights_sha256(target)}
    writer = DirectWriter(CacheWriter(data, source), shard_tokens=100)
    generator = BatchGenerator(model, LAYERS, rows=8, max_positions=40, max_new_tokens=20)
    generate_directly(generator, prompts, writer, lambda line: None)
    return target, data
