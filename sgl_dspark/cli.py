"""The ``dspark`` command: finds its subcommands through entry points and runs one.

A subcommand is a module named in the entry-point group ``sgl_dspark.commands``. It offers

``HELP``
    one line for the list of commands;
``add_arguments(parser)``
    declares its options;
``run(args) -> int``
    does the work and returns the exit status;
``PASS_THROUGH`` (optional)
    True to receive every option that it did not declare, in order, as ``args.rest``;
``EPILOG`` (optional)
    examples, shown below the options. The module's docstring is shown above them.

Only the module of the command that was asked for is imported, so that this file needs neither torch nor SGLang.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module, metadata
from types import ModuleType

from sgl_dspark.errors import DsparkError

GROUP = "sgl_dspark.commands"
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

# Headings of the command list; a command that is not named here is listed under OTHER.
SECTIONS = {
    "Serve": ("prepare", "serve", "doctor"),
    "Measure and verify": ("bench", "loadtest", "calibrate", "profile", "simulate", "golden"),
    "Train": ("data", "train", "evaluate", "convert"),
}
OTHER = "Other"

USAGE = "usage: dspark <command> [options]\n       dspark <command> --help"
INTRO = (
    "DSpark speculative decoding for SGLang: draft a block, verify it losslessly, emit what the target alone would say."
)
EXAMPLES = """Examples:
  dspark doctor                               versions, device, threads; what is missing and how to get it
  dspark prepare                              make the demo target, SmolLM2-135M-Instruct, once
  dspark serve --port 30000                   serve it with its draft; every SGLang flag is accepted
  dspark golden tests/golden/qwen3_vanilla    replay reference vectors, largest error per quantity"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one ``dspark`` command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program name; ``sys.argv[1:]`` when None.

    Returns
    -------
    int
        The command's own exit status; 2 for a usage error or a `DsparkError` (one line on standard error),
        130 after Ctrl-C, 141 when the reader of standard output went away.
    """
    try:
        status = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except DsparkError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes standard output once more at exit: let that flush go nowhere.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except OSError as error:
        # A folder that cannot be made, a full disk, a file where a folder should be: all named by the system.
        return _fail(str(error))
    return status


def find_commands() -> dict[str, str]:
    """Return the installed commands: name to the dotted name of the module that implements it."""
    return {entry.name: entry.module for entry in metadata.entry_points(group=GROUP)}


def _dispatch(argv: list[str]) -> int:
    commands = find_commands()
    if not argv or argv[0] in ("-h", "--help") or argv == ["help"]:
        sys.stdout.write(_overview(commands))
        return 0
    if argv[0] in ("-V", "--version"):
        sys.stdout.write(f"dspark {metadata.version('sgl-dspark')}\n")
        return 0
    if argv[0] == "help":
        argv = [argv[1], "--help"]
    name, *rest = argv
    if name not in commands:
        return _fail(_unknown(name, commands))
    try:
        module = import_module(commands[name])
    except ModuleNotFoundError as error:
        return _fail(_not_importable(name, error))
    return _run(name, module, rest)


def _run(name: str, module: ModuleType, argv: list[str]) -> int:
    # No abbreviations: `--mem` must reach SGLang as it stands, not turn into an option of ours.
    parser = argparse.ArgumentParser(
        prog=f"dspark {name}",
        description=(module.__doc__ or module.HELP).strip().replace("``", ""),
        epilog=getattr(module, "EPILOG", None),
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    if getattr(module, "PASS_THROUGH", False):
        args, rest = parser.parse_known_args(argv)
        args.rest = rest
    else:
        args = parser.parse_args(argv)
    status: int = module.run(args)
    return status


class _Formatter(argparse.HelpFormatter):
    """Keeps the line breaks of descriptions and examples, and wraps what is wider than the terminal."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = [textwrap.fill(line, width) if len(line) > width else line for line in text.splitlines()]
        return textwrap.indent("\n".join(lines), indent)


def _overview(commands: dict[str, str]) -> str:
    lines = [USAGE, "", INTRO]
    placed = {name for names in SECTIONS.values() for name in names}
    sections = {**SECTIONS, OTHER: tuple(sorted(set(commands) - placed))}
    for title, names in sections.items():
        rows = [f"  {name:<10}{_summary(commands[name])}" for name in names if name in commands]
        if rows:
            lines += ["", f"{title}:", *rows]
    if not commands:
        lines += ["", "No command is installed: run `make setup`, or `pip install -e .` in the repository."]
    return "\n".join([*lines, "", EXAMPLES, ""])


def _summary(module_name: str) -> str:
    try:
        summary: str = import_module(module_name).HELP
    except ModuleNotFoundError as error:
        return f"(not available: no module named {error.name})"
    return summary


def _unknown(name: str, commands: dict[str, str]) -> str:
    close = difflib.get_close_matches(name, commands, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"commands are: {', '.join(sorted(commands))}."
    return f"unknown command '{name}'; {hint}"


def _not_importable(name: str, error: ModuleNotFoundError) -> str:
    extra = "train" if name in SECTIONS["Train"] else "loadtest" if name == "loadtest" else "serve"
    return (
        f"'{name}' needs the module {error.name}, which is not installed; "
        f"run `make setup`, or `pip install 'sgl-dspark[{extra}]'`."
    )


def _fail(message: str) -> int:
    sys.stderr.write(f"dspark: error: {message}\n")
    return EXIT_ERROR


if __name__ == "__main__":
    sys.exit(main())
