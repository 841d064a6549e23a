"""The worker's configuration: block length, draft folder, shortlist."""

from __future__ import annotations

import pytest

pytest.importorskip("sglang")

from dspark_sglang.config import WorkerConfig, local_folder, shortlist_from_environment
from sgl_dspark.errors import ConfigError


def test_a_verify_width_of_another_block_length_is_refused_with_the_flags_to_drop() -> None:
    config = WorkerConfig("draft", None, verify_width=6)
    config.check_gamma(5)
    with pytest.raises(ConfigError, match="proposes 7 tokens, but SGLang was told 5.*--speculative-dspark-block-size"):
        config.check_gamma(7)


def test_a_folder_is_used_as_it_is(tmp_path) -> None:
    assert local_folder(str(tmp_path), None) == str(tmp_path)


@pytest.mark.parametrize(("text", "size"), [("", None), (" ", None), ("0", None), ("64", 64), (" 8 ", 8)])
def test_shortlist_size_from_the_environment(monkeypatch: pytest.MonkeyPatch, text: str, size: int | None) -> None:
    monkeypatch.setenv("SGL_DSPARK_SHORTLIST", text)
    assert shortlist_from_environment() == size


@pytest.mark.parametrize("text", ["-1", "many", "1.5"])
def test_a_shortlist_that_is_no_count_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SGL_DSPARK_SHORTLIST", text)
    with pytest.raises(ConfigError, match="SGL_DSPARK_SHORTLIST"):
        shortlist_from_environment()
