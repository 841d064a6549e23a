"""API keys from files: what is wrong with one ends the start, since a server without its key serves everybody."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspark_sglang.key_files import FLAGS, hide_keys, key_flags
from sgl_dspark.errors import ConfigError


@pytest.mark.parametrize("flag", FLAGS)
def test_a_key_is_read_without_the_line_end(flag: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("it's $HOME\r\n")
    assert key_flags(["--port", "5"], {flag: str(file)}) == [f"{flag}=it's $HOME"]
    assert key_flags(["--port", "5"], dict.fromkeys(FLAGS)) == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty; nothing is served"),
        (b" \n", "is empty; nothing is served"),
        (b"a\nb\n", "more than one line"),
        (b"\xff", r"cannot be read \(not UTF-8\)"),
    ],
)
def test_what_is_no_key_is_refused(content: bytes, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"--api-key-file: {file} .*{expected}|--api-key-file: {file} {expected}"):
        key_flags([], {"--api-key": str(file)})


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for file in (tmp_path / "nothing", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            key_flags([], {"--api-key": str(file)})


def test_one_key_is_given_once(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a")
    with pytest.raises(ConfigError, match="--api-key and --api-key-file are both given"):
        key_flags(["--api-key=b"], {"--api-key": str(tmp_path / "key")})


@pytest.mark.parametrize("module", ["engine", "http_server"])
def test_settings_are_shown_without_keys(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sglang")
    from sglang.srt.entrypoints import engine, http_server

    for one in (engine, http_server):
        monkeypatch.setattr(one, "redact_watermark_secrets", one.redact_watermark_secrets)
    hide_keys()
    keys = {"api_key": "a.b", "admin_api_key": "hush"}
    command = "--api-key=a.b --admin-api-key hush --model-path a.b --port 5"
    shown = {"engine": engine, "http_server": http_server}[module].redact_watermark_secrets(
        {**keys, "port": 5, "internal_states": [keys, {"api_key": None}], "launch_command": command}
    )
    hidden = dict.fromkeys(keys, "(hidden)")
    assert shown == {
        **hidden,
        "port": 5,
        "internal_states": [hidden, {"api_key": None}],
        "launch_command": "--api-key=(hidden) --admin-api-key (hidden) --model-path a.b --port 5",
    }
    assert keys["api_key"] == "a.b"
