"""Shell scripts and YAML of the whole repository are linted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.deploy import DEPLOY, run, tracked

YAMLLINT = ("yamllint", "--strict", "-c", DEPLOY / "checks" / "yamllint.yaml")


def test_shell_scripts_lint() -> None:
    scripts = tracked("*.sh", ".ci/run")
    assert {path.name for path in scripts} >= {"entrypoint.sh", "install.sh", "get_deploy_tools.sh", "run"}
    result = run("shellcheck", *scripts)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("line", ["rm -r $folder/x", 'if [ "$1" == 2 ]; then', "read quota period < file"])
def test_a_mistake_in_a_script_is_found(line: str, tmp_path: Path) -> None:
    script = tmp_path / "entrypoint.sh"
    script.write_text((DEPLOY / "docker" / "entrypoint.sh").read_text() + line + "\n")
    assert run("shellcheck", script).returncode != 0


def test_yaml_lints() -> None:
    # What Helm has yet to fill in is no YAML.
    files = [path for path in tracked("*.yaml", "*.yml") if "templates" not in path.parts]
    assert len(files) > 15
    result = run(*YAMLLINT, *files)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("line", ["replicas: 2\nreplicas: 3", "a: yes", "a:  {b: c }", "a: [b", "\tb: c"])
def test_a_mistake_in_yaml_is_found(line: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(f"image: {{tag: a}}\n{line}\n")
    assert run(*YAMLLINT, file).returncode != 0
