"""API keys where others do not see them: read from files instead of a command line, and left out of the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dspark_sglang.command_line import flag_value
from sgl_dspark.errors import ConfigError

FLAGS = ("--api-key", "--admin-api-key")


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
    """Raise `ConfigError` if a key is given and empty, as from a variable that is not set."""
    for flag in FLAGS:
        value = flag_value(arguments, flag)
        if value is not None and not value.strip():
            raise ConfigError(f"{flag} is empty, which would serve everybody; give a key, or leave {flag} out")


def keep_out_of_log() -> None:
    """Have SGLang log its settings without the keys; call it once, before the launch."""
    from sglang.srt.entrypoints import engine

    # Upstream: 0.5.23 logs every setting at the start, keys as they are. Remove when it hides them.
    engine._server_args_for_logging = _without_keys(engine._server_args_for_logging)


def _without_keys(settings: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    def server_args_for_logging(server_args: Any) -> dict[str, Any]:
        names = {flag.removeprefix("--").replace("-", "_") for flag in FLAGS}
        return {name: "(hidden)" if name in names and value else value for name, value in settings(server_args).items()}

    return server_args_for_logging


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
