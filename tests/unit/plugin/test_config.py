"""The worker's configuration: block length, draft folder, shortlist."""

from __future__ import annotations

import pytest

pytest.importorskip("sglang")

from dspark_sglang.config import WorkerConfig, local_folder
from sgl_dspark.errors import ConfigError


def test_a_verify_width_of_another_block_length_is_refused_with_the_flags_to_drop() -> None:
    config = WorkerConfig("draft", None, verify_width=6)
    config.check_gamma(5)
    with pytest.raises(ConfigError, match="proposes 7 tokens, but SGLang was told 5.*--speculative-dspark-block-size"):
        config.check_gamma(7)


def test_a_folder_is_used_as_it_is(tmp_path) -> None:
    assert local_folder(str(tmp_path), None) == str(tmp_path)
