"""Compose: the files are valid, what they mount is there, and Prometheus, Alertmanager and Grafana agree."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import prometheus
from tests.support.deploy import DEPLOY, run
from tests.support.server import ROOT

FOLDER = DEPLOY / "compose"
FILES = (FOLDER / "compose.yaml", FOLDER / "compose.gpu.yaml")
GPU = {"DSPARK_MODELS_DIR": "/srv/models"}


def config(*files: Path) -> subprocess.CompletedProcess[str]:
    flags = [word for file in files for word in ("-f", str(file))]
    return run("docker-compose", *flags, "config", "--format=json", env={"PATH": "/usr/bin:/bin", **GPU})


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    result = config(FILES[0])
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)["services"]


def test_both_ways_are_valid(services: dict[str, Any]) -> None:
    assert set(services) == {"server", "prometheus", "alertmanager", "grafana"}
    result = config(*FILES)
    assert result.returncode == 0, result.stderr
    server = json.loads(result.stdout)["services"]["server"]
    assert server["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    assert server["image"].endswith("-cuda")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    init: true", "    initt: true"),
        ("    read_only: true", "    read_only: perhaps"),
        ("      retries: 3", "      retries: [3]"),
        ("depends_on: [prometheus]", "depends_on: [promotheus]"),
        ("volumes:\n  state:", "volumes:\n  stage:"),
    ],
)
def test_a_mistake_is_found(old: str, new: str, tmp_path: Path) -> None:
    text = FILES[0].read_text()
    assert old in text
    (tmp_path / "compose.yaml").write_text(text.replace(old, new))
    assert config(tmp_path / "compose.yaml").returncode != 0


def test_what_is_mounted_is_there_and_read_only(services: dict[str, Any]) -> None:
    for service in services.values():
        for mount in service.get("volumes", []):
            if mount["type"] == "bind":
                assert Path(mount["source"]).exists(), mount
                assert mount["read_only"], mount
    mounted = {m["source"]: m["target"] for s in services.values() for m in s["volumes"] if m["type"] == "bind"}
    for name in ("rules.yaml", "alerts.yaml", "dashboards"):
        assert str(ROOT / "grafana" / name) in mounted


def test_drain_ends_before_docker_kills(services: dict[str, Any]) -> None:
    server = services["server"]
    (drain,) = (int(word.partition("=")[2]) for word in server["command"] if word.startswith("--drain-timeout="))
    minutes, seconds = re.fullmatch(r"(?:(\d+)m)?(\d+)s", server["stop_grace_period"]).groups()
    assert int(minutes or 0) * 60 + int(seconds) > drain
    assert all(port["host_ip"] == "127.0.0.1" for s in services.values() for port in s["ports"])


def test_grafana_gets_its_source_and_boards(services: dict[str, Any]) -> None:
    (source,) = yaml.safe_load((FOLDER / "grafana" / "datasources.yaml").read_text())["datasources"]
    assert source["uid"] == "dspark-prometheus"
    assert source["isDefault"]
    assert source["url"] == "http://prometheus:9090"
    scrape = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    assert source["jsonData"]["timeInterval"] == scrape["global"]["scrape_interval"]
    (provider,) = yaml.safe_load((FOLDER / "grafana" / "dashboards.yaml").read_text())["providers"]
    targets = {mount["target"] for mount in services["grafana"]["volumes"]}
    assert provider["options"]["path"] in targets
    home = Path(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) in targets
    assert (ROOT / "grafana" / "dashboards" / home.name).is_file()


def prometheus_config(folder: Path, text: str) -> int:
    """Check it with the rules where the container has them."""
    (folder / "rules").mkdir(exist_ok=True)
    for path in prometheus.RULES:
        (folder / "rules" / path.name).write_bytes(path.read_bytes())
    file = folder / "prometheus.yaml"
    file.write_text(text.replace("/etc/prometheus", str(folder)))
    command = [prometheus.require("promtool"), "check", "config", str(file)]
    return subprocess.run(command, capture_output=True).returncode


def test_prometheus_takes_its_configuration(tmp_path: Path, services: dict[str, Any]) -> None:
    text = (FOLDER / "prometheus.yaml").read_text()
    assert prometheus_config(tmp_path, text) == 0
    assert prometheus_config(tmp_path, text.replace("job_name", "jobname")) != 0
    assert prometheus_config(tmp_path, text.replace("scrape_interval: 10s", "scrape_interval: ten")) != 0
    loaded = yaml.safe_load(text)
    (job,) = loaded["scrape_configs"]
    assert job["job_name"] == "dspark"
    (target,) = job["static_configs"][0]["targets"]
    assert target.split(":")[0] in services
    assert f"--port={target.split(':')[1]}" in services["server"]["command"]
    (manager,) = loaded["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    assert manager.split(":")[0] in services


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("receiver: critical", "receiver: critcal"),
        ("group_wait: 30s", "group_wait: soon"),
        ("matchers: ['severity", "matcher: ['severity"),
        ("'severity=\"critical\"'", "'severity critical'"),
    ],
)
def test_a_mistake_in_alertmanager_is_found(old: str, new: str, tmp_path: Path) -> None:
    text = (FOLDER / "alertmanager.yaml").read_text()
    assert old in text
    (tmp_path / "alertmanager.yaml").write_text(text.replace(old, new))
    assert run("amtool", "check-config", tmp_path / "alertmanager.yaml").returncode != 0


@pytest.mark.parametrize(("severity", "receiver"), [("critical", "critical"), ("warning", "warnings")])
def test_alerts_find_their_receiver(severity: str, receiver: str) -> None:
    file = FOLDER / "alertmanager.yaml"
    assert run("amtool", "check-config", file).returncode == 0
    route = run("amtool", "config", "routes", "test", f"--config.file={file}", f"severity={severity}")
    assert route.stdout.split() == [receiver]
    assert severity in {rule["labels"]["severity"] for rule in prometheus.rules() if "alert" in rule}
