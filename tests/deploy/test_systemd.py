"""The systemd unit: valid, hardened, and stopped as the server wants to be; installing it is a dry run by default."""

from __future__ import annotations

import configparser
import os
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.deploy import DEPLOY, run
from tests.support.server import ROOT

FOLDER = DEPLOY / "systemd"
UNIT = FOLDER / "sgl-dspark.service"
PROGRAM = "/opt/sgl-dspark/venv/bin/dspark"
# Of 100; a unit without any protection has 96.
MOST_EXPOSED = 25


def verify(text: str, folder: Path) -> str:
    """Return what systemd says against a unit; nothing if it is sound. The program is one that this machine has."""
    assert PROGRAM in text
    file = folder / UNIT.name
    file.write_text(text.replace(PROGRAM, "/bin/true"))
    result = run("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", file)
    return result.stderr + result.stdout + ("failed" if result.returncode else "")


def setting(name: str) -> str:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read(UNIT)
    return parser["Service"][name]


def variables() -> dict[str, str]:
    lines = (FOLDER / "sgl-dspark.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_the_unit_is_sound(tmp_path: Path) -> None:
    assert verify(UNIT.read_text(), tmp_path) == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("KillMode=mixed", "KillMod=mixed"),
        ("Restart=on-failure", "Restart=sometimes"),
        ("SystemCallFilter=@system-service", "SystemCallFilter=@no-such-set"),
        ("TimeoutStopSec=330", "TimeoutStopSec=long"),
        ("Type=exec", "Type=execute"),
        ("[Service]", "[Sevice]"),
    ],
)
def test_a_mistake_is_found(old: str, new: str, tmp_path: Path) -> None:
    text = UNIT.read_text()
    assert old in text
    assert verify(text.replace(old, new), tmp_path) != ""


def exposure(text: str, folder: Path) -> int:
    file = folder / UNIT.name
    file.write_text(text)
    return run("systemd-analyze", "security", "--offline=yes", f"--threshold={MOST_EXPOSED}", file).returncode


def test_the_unit_is_hardened(tmp_path: Path) -> None:
    text = UNIT.read_text()
    assert exposure(text, tmp_path) == 0
    assert exposure(text.replace("CapabilityBoundingSet=\n", ""), tmp_path) != 0


def test_it_is_stopped_as_the_server_wants() -> None:
    # SIGTERM to every process would end the workers under the streams that drain.
    assert setting("KillMode") == "mixed"
    assert setting("KillSignal") == "SIGTERM"
    assert float(setting("TimeoutStopSec")) > float(variables()["DSPARK_DRAIN_S"])
    assert setting("Type") == "exec"


def test_the_command_line_has_what_it_names() -> None:
    words = setting("ExecStart").split()
    assert words[0] == PROGRAM
    for word in words:
        if word.startswith("$"):
            assert word.strip("${}") in variables()
    (credential,) = (word for word in words if word.startswith("%d/"))
    assert setting("LoadCredential").startswith(f"{credential.removeprefix('%d/')}:")


def test_keys_are_flags_of_the_server(tmp_path: Path) -> None:
    pytest.importorskip("sglang")
    from dspark_sglang.launch import expand_config

    text = (FOLDER / "keys.yaml").read_text()
    assert set(yaml.safe_load(text)) == {"log-level"}
    file = tmp_path / "keys.yaml"
    file.write_text(
        text.replace('# api-key: "..."', 'api-key: "it\'s"').replace('# admin-api-key: "..."', "admin-api-key: b")
    )
    flags = expand_config(["--port", "1", "--config", str(file)])
    assert flags[flags.index("--api-key") :][:2] == ["--api-key", "it's"]
    assert flags[flags.index("--admin-api-key") :][:2] == ["--admin-api-key", "b"]


def install(**settings: str) -> str:
    environment = {"PATH": os.environ["PATH"], **settings}
    result = subprocess.run(
        ["make", "--no-print-directory", "install-systemd"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_installing_only_says_what_it_would_do(tmp_path: Path) -> None:
    assert "Nothing was changed" in install(DESTDIR=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_installing_keeps_settings(tmp_path: Path) -> None:
    install(DESTDIR=str(tmp_path), APPLY="1")
    settings, keys = tmp_path / "etc/sgl-dspark/sgl-dspark.env", tmp_path / "etc/sgl-dspark/keys.yaml"
    assert (tmp_path / "etc/systemd/system/sgl-dspark.service").read_text() == UNIT.read_text()
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    settings.write_text("DSPARK_PORT=1\n")
    assert f"kept: {settings}" in install(DESTDIR=str(tmp_path), APPLY="1")
    assert settings.read_text() == "DSPARK_PORT=1\n"
