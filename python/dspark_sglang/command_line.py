"""SGLang's flags as a user gave them: reading them before SGLang does, and what we add."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sgl_dspark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


def flag_value(arguments: Sequence[str], *names: str) -> str | None:
    """Return the last value given to any of ``names``, as ``--flag value`` or ``--flag=value``."""
    found = None
    for index, argument in enumerate(arguments):
        for name in names:
            if argument == name and index + 1 < len(arguments):
                found = arguments[index + 1]
            elif argument.startswith(name + "="):
                found = argument[len(name) + 1 :]
    return found


def expand_config(arguments: Sequence[str]) -> list[str]:
    """Put the flags of a ``--config`` file in its place, so that everything else sees flags only.

    Raises
    ------
    ConfigError
        If SGLang cannot read the file.
    """
    file = flag_value(arguments, "--config")
    if file is None:
        return list(arguments)
    import argparse

    from sglang.srt.server_args import ServerArgs
    from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger

    separate: list[str] = []
    for argument in arguments:
        separate += ["--config", file] if argument.startswith("--config=") else [argument]
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    try:
        return list(ConfigArgumentMerger(parser).merge_config_with_args(separate))
    except (ValueError, OSError) as error:
        raise ConfigError(f"--config {file}: {error}") from error


def pace_flags(arguments: Sequence[str]) -> list[str]:
    """Give running streams a decode step after every chunk of a prompt, unless the user's flags say otherwise.

    SGLang by itself reads a long prompt to its end while they stand still.
    """
    flag = "--prefill-decode-interval"
    return [] if flag_value(arguments, flag) is not None else [flag, "1"]
