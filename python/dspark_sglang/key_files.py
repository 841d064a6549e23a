"""API keys where others do not see them: read from files, and hidden where SGLang shows its settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dspark_sglang.command_line import flag_value
from sgl_dspark.errors import ConfigError

FLAGS = ("--api-key", "--admin-api-key")
HIDDEN = "(hidden)"
_FIELDS = ("api_key", "admin_api_key")


def key_flags(arguments: Sequence[str], files: dict[str, str | None]) -> list[str]:
    """Read keys and return SGLang's flags with them, for this process only.

    Parameters
    ----------
    arguments : sequence of str
        What the user gave to SGLang.
    files : dict of str to str or None
        File of each of `FLAGS`; None where none was given.

    Raises
    ------
    ConfigError
        If a file cannot be read or holds no key: SGLang takes an empty key for none, and serves everybody. Also if a
        key is given in a file and on the command line.
    """
    flags = []
    for flag, file in files.items():
        if file is None:
            continue
        if flag_value(arguments, flag) is not None:
            raise ConfigError(f"{flag} and {flag}-file are both given; leave out one")
        # One word: a key that begins with a dash is no flag.
        flags.append(f"{flag}={_read(flag, Path(file))}")
    return flags


def refuse_empty_keys(arguments: Sequence[str]) -> None:
    """Raise `ConfigError` if a key is given and empty, as from a variable that is not set.

    A configuration file's ``api-key:`` without a value becomes the text None, a key that everybody can guess.
    """
    for flag in FLAGS:
        value = flag_value(arguments, flag)
        if value is not None and value.strip() in ("", "None"):
            raise ConfigError(f"{flag} is empty, which would serve everybody; give a key, or leave {flag} out")


def hide_keys() -> None:
    """Have SGLang show its settings without the keys, in its log and at ``/server_info``; call it before the launch."""
    from sglang.srt.entrypoints import engine, http_server

    # Upstream: 0.5.23 logs every setting at the start, and tells all to whoever has the API key, the admin key too.
    # Remove when it hides both keys as it hides those of watermarks.
    for module in (engine, http_server):
        module.redact_watermark_secrets = _without_keys(module.redact_watermark_secrets)


def _without_keys(redact: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def redact_secrets(value: Any) -> Any:
        return _hidden(redact(value))

    return redact_secrets


def _hidden(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_hidden(one) for one in value]
    if not isinstance(value, dict):
        return value
    shown = {name: HIDDEN if name in _FIELDS and one else _hidden(one) for name, one in value.items()}
    command = shown.get("launch_command")
    if isinstance(command, str):
        for key in (value[name] for name in _FIELDS if value.get(name)):
            command = re.sub(rf"(--(?:admin-)?api-key[= ]){re.escape(key)}(?= |$)", rf"\1{HIDDEN}", command)
        shown["launch_command"] = command
    return shown


def _read(flag: str, file: Path) -> str:
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(
            f"{flag}-file: {file} cannot be read ({reason}); nothing is served without its key"
        ) from error
    if not key:
        raise ConfigError(f"{flag}-file: {file} is empty; nothing is served without its key")
    if len(key.splitlines()) > 1:
        raise ConfigError(f"{flag}-file: {file} has more than one line; a key is one")
    return key
