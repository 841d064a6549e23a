"""The repository's own tools: each check finds what it is for, and nothing in sound input."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

import check_docs  # noqa: E402
import check_files  # noqa: E402
import setup_env  # noqa: E402


@pytest.fixture
def repository(tmp_path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "here.py").write_text("")
    (tmp_path / "Makefile").write_text("")
    return tmp_path


def problems(text, repository):
    return [problem for _, problem in check_docs.check_text(text, repository, repository, {"test"}, {"serve"})]


@pytest.mark.parametrize(
    "text",
    [
        "See `tools/here.py`, `tools/*.py`, `here.py` and `Makefile`.",
        'Run `make PORT=1 test ARGS="-x 8" test`, then `dspark serve --port 1`; `dspark <command>`.',
        "```\nmake test  # make nothing\n.venv/bin/dspark serve\n```",
        "[here](tools/here.py#top) [web](https://example.org/docs/gone.md)",
        "POST `/v1/docs/completions`; prose may say make sense or tools/gone.py.",
    ],
)
def test_documentation_that_names_what_exists_passes(text, repository):
    assert problems(text, repository) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`tools/gone.py`", "the path tools/gone.py does not exist."),
        ("`tools/gone*.py`", "the path tools/gone*.py does not exist."),
        ("`gone.py`", "the path gone.py does not exist."),
        ("`make rocket`", "`make rocket` is no target of the Makefile."),
        ("```\ncd x && make PORT=1 rocket\n```", "`make rocket` is no target of the Makefile."),
        ("```\ndspark fly --fast\n```", "`dspark fly` is no command."),
        ("[gone](docs/gone.md)", "the link docs/gone.md leads nowhere."),
    ],
)
def test_documentation_that_names_what_is_gone_is_reported(text, expected, repository):
    assert problems(text, repository) == [expected]


def test_long_files_long_functions_and_large_files_are_reported(tmp_path):
    (tmp_path / "long.py").write_text("x = 1\n" * 301)
    (tmp_path / "tall.py").write_text('def f():\n    """One.\n\n    Two.\n    """\n' + "    x = 1\n" * 50)
    (tmp_path / "large.bin").write_bytes(b"\0" * 500_001)
    assert check_files.find_problems(tmp_path, ["long.py", "tall.py", "large.bin"]) == [
        "long.py: 301 lines; at most 300.",
        "tall.py:1: f has 51 lines; at most 50.",
        "large.bin: 500001 bytes; at most 500000 outside the data folders.",
    ]


def test_the_docstring_does_not_make_a_function_long(tmp_path):
    (tmp_path / "ok.py").write_text('def f():\n    """One.\n\n    Two.\n    """\n' + "    x = 1\n" * 49)
    assert check_files.find_problems(tmp_path, ["ok.py"]) == []


def test_data_folders_have_a_budget_in_all(tmp_path):
    folder = tmp_path / "tests" / "golden"
    folder.mkdir(parents=True)
    for name in ("a.bin", "b.bin"):
        (folder / name).write_bytes(b"\0" * 2_000_001)
    names = ["tests/golden/a.bin", "tests/golden/b.bin"]
    assert check_files.find_problems(tmp_path, names[:1]) == []
    assert check_files.find_problems(tmp_path, names) == ["tests/golden/: 4000002 bytes in all; at most 4000000."]


def test_the_environment_is_keyed_by_dependencies_and_pins_only(tmp_path, monkeypatch):
    def key(requirement="numpy>=2.0", pin="numpy==2.3.5", comment="", script="dspark"):
        (tmp_path / "pyproject.toml").write_text(
            f'[project]\nrequires-python = ">=3.11"\ndependencies = ["{requirement}"]\noptional-dependencies = {{}}\n'
            f'scripts = {{ {script} = "a:b" }}\n'
        )
        (tmp_path / "constraints.txt").write_text(f"# {comment}\n{pin}\n")
        return setup_env.dependency_key()

    monkeypatch.setattr(setup_env, "ROOT", tmp_path)
    before = key()
    assert key(comment="other words", script="other") == before
    assert key(requirement="numpy>=2.1") != before
    assert key(pin="numpy==2.3.6") != before


def test_an_environment_with_matching_stamps_is_left_alone(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(setup_env, "pip", lambda venv, *arguments: calls.append(arguments))
    (tmp_path / ".dspark-packages").write_text(setup_env.dependency_key())
    assert setup_env.set_up(tmp_path) == 0
    assert len(calls) == 1, "a project that is not registered yet is, without its dependencies"
    assert "--no-deps" in calls[0]
    assert setup_env.set_up(tmp_path) == 0
    assert len(calls) == 1


def test_contain_ends_what_left_its_session_and_keeps_the_status(tmp_path):
    pid_file = tmp_path / "pid"
    script = f"setsid sleep 1000 & echo $! > {pid_file}; exit 3"
    result = subprocess.run(
        [sys.executable, str(TOOLS / "contain.py"), "bash", "-c", script], check=False, capture_output=True, text=True
    )
    assert result.returncode == 3
    pid = int(pid_file.read_text())
    assert f"left behind: {pid}" in result.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_contain_reaps_orphans_while_the_command_runs(tmp_path):
    """A test that waits for a server's orphaned children to be gone must not wait for the end of the run."""
    pid_file = tmp_path / "pid"
    script = f"(setsid true & echo $! > {pid_file}); while [ -e /proc/$(cat {pid_file}) ]; do :; done; exit 4"
    command = [sys.executable, str(TOOLS / "contain.py"), "bash", "-c", script]
    assert subprocess.run(command, check=False, timeout=60).returncode == 4


def test_the_gpu_suite_fails_when_nothing_ran(tmp_path):
    (tmp_path / "test_nothing.py").write_text(
        "import pytest\n@pytest.mark.gpu\ndef test_one():\n    pytest.skip('no device')\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    command = [sys.executable, str(TOOLS / "gpu_tests.py"), "-p", "no:cacheprovider", str(tmp_path)]
    result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 1
    assert "no GPU test ran" in result.stderr
