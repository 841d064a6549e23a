"""The dspark command: discovery, errors in one line, exit statuses, pass-through of unknown options."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import pytest

from sgl_dspark import cli
from sgl_dspark.errors import DsparkError


def _module(run, **attributes):
    module = types.ModuleType("fake_command", "Do a fake thing.\n\nSecond paragraph.")
    module.HELP = "do a fake thing"
    module.add_arguments = lambda parser: parser.add_argument("--level", type=int, default=1)
    module.run = run
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


@pytest.fixture
def install(monkeypatch):
    """Make `cli` see exactly the given command modules."""

    def install(**modules):
        monkeypatch.setattr(cli, "find_commands", lambda: {name: f"fake.{name}" for name in modules})

        def load(dotted):
            loaded.append(dotted)
            module = modules[dotted.removeprefix("fake.")]
            if isinstance(module, Exception):
                raise module
            return module

        loaded = []
        monkeypatch.setattr(cli, "import_module", load)
        return loaded

    return install


def test_runs_the_command_with_its_arguments_and_returns_its_status(install):
    seen = []
    install(fake=_module(lambda args: seen.append(args.level) or 7))
    assert cli.main(["fake", "--level", "3"]) == 7
    assert seen == [3]


def test_overview_lists_commands_by_section_and_names_what_is_missing(install, capsys):
    module = _module(lambda args: 0)
    install(serve=module, extra=module, train=ModuleNotFoundError("no", name="torch"))
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert out.index("Serve:") < out.index("  serve     do a fake thing") < out.index("Train:") < out.index("Other:")
    assert "train     (not available: no module named torch)" in out
    assert "Measure and verify:" not in out
    assert "Examples:" in out


def test_no_argument_shows_the_overview(install, capsys):
    install(serve=_module(lambda args: 0))
    assert cli.main([]) == 0
    assert capsys.readouterr().out.startswith("usage: dspark <command>")


def test_command_help_imports_only_that_command(install, capsys):
    loaded = install(fake=_module(lambda args: 0), other=_module(lambda args: 0))
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["fake", "--help"])
    assert exit_info.value.code == 0
    assert loaded == ["fake.fake"]
    out = capsys.readouterr().out
    assert "usage: dspark fake" in out
    assert "Second paragraph." in out


def test_command_help_keeps_line_breaks_and_wraps_what_is_too_wide(install, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    install(fake=_module(lambda args: 0, __doc__="Use ``it``.\n\n" + "wide " * 30, EPILOG="examples:\n  one\n  two"))
    with pytest.raises(SystemExit):
        cli.main(["fake", "--help"])
    out = capsys.readouterr().out
    assert "Use it.\n" in out
    assert out.endswith("examples:\n  one\n  two\n")
    assert max(map(len, out.splitlines())) <= 60


@pytest.mark.parametrize(
    ("typed", "hint"),
    [("sevre", "did you mean 'serve'?"), ("zzz", "commands are: bench, serve.")],
)
def test_unknown_command_is_one_sentence(install, capsys, typed, hint):
    install(serve=_module(lambda args: 0), bench=_module(lambda args: 0))
    assert cli.main([typed]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"dspark: error: unknown command '{typed}'; {hint}\n"
    assert captured.out == ""


def test_dspark_error_is_one_line_and_status_2(install, capsys):
    def run(args):
        raise DsparkError("the port is busy; choose another with --port.")

    install(fake=_module(run))
    assert cli.main(["fake"]) == 2
    assert capsys.readouterr().err == "dspark: error: the port is busy; choose another with --port.\n"


def test_programming_errors_keep_their_traceback(install):
    def run(args):
        raise ZeroDivisionError

    install(fake=_module(run))
    with pytest.raises(ZeroDivisionError):
        cli.main(["fake"])


def test_missing_package_names_the_extra(install, capsys):
    install(train=ModuleNotFoundError("no", name="transformers"))
    assert cli.main(["train"]) == 2
    err = capsys.readouterr().err
    assert "needs the module transformers" in err
    assert "sgl-dspark[train]" in err


def test_interrupt_returns_130(install):
    def run(args):
        raise KeyboardInterrupt

    install(fake=_module(run))
    assert cli.main(["fake"]) == 130


def test_undeclared_options_reach_a_pass_through_command_in_order(install):
    seen = []
    install(fake=_module(lambda args: seen.append((args.level, args.rest)) or 0, PASS_THROUGH=True))
    argv = ["fake", "--lev", "9", "--mem-fraction-static", "0.5", "--level=4", "--json", '{"a": -1}', "--flag"]
    assert cli.main(argv) == 0
    assert seen == [(4, ["--lev", "9", "--mem-fraction-static", "0.5", "--json", '{"a": -1}', "--flag"])]


def test_undeclared_option_is_refused_without_pass_through(install, capsys):
    install(fake=_module(lambda args: 0))
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["fake", "--colour"])
    assert exit_info.value.code == 2
    assert "unrecognized arguments: --colour" in capsys.readouterr().err


def test_broken_pipe_is_silent():
    script = "import sys; from sgl_dspark import cli; cli.INTRO = 'x' * 10_000_000; sys.exit(cli.main(['--help']))"
    # Unbuffered standard output drops the rest of a short write instead of meeting the closed pipe.
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 141
    process.stderr.close()


def test_the_command_line_imports_nothing_heavy():
    script = (
        "import sys; from sgl_dspark import cli; cli.main(['--version']); "
        "sys.exit(bool({'torch', 'sglang', 'numpy'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False, capture_output=True).returncode == 0
