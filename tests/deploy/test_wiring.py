"""Flags, mounts, ports and names of deploy/ are those that their readers know; mistakes are planted and found."""

from __future__ import annotations

import configparser
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.chart_wiring import chart_problems
from tests.support.deploy import CHART, DEPLOY, VALUES, chart, documents, run
from tests.support.server import ROOT
from tests.support.wiring import (
    grafana_problems,
    parsed,
    prometheus_problems,
    server_problems,
    unit_problems,
)

pytest.importorskip("sglang")
COMPOSE, SYSTEMD = DEPLOY / "compose", DEPLOY / "systemd"
UNIT = SYSTEMD / "sgl-dspark.service"
KEYED = (
    "model: {demo: true}\nkeys: {apiKey: a, adminApiKey: b}\nimage: {tag: 0.1.0-cpu}\nnetworkPolicy: {enabled: true}\n"
)


def services(folder: Path, *names: str) -> dict[str, Any]:
    flags = [word for name in names for word in ("-f", str(folder / name))]
    environment = {"PATH": "/usr/bin:/bin", "DSPARK_MODELS_DIR": "/srv/models"}
    result = run("docker-compose", *flags, "config", "--format=json", env=environment)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)["services"]


def compose_problems(folder: Path) -> list[str]:
    loaded = {
        path.name: yaml.safe_load(path.read_text()) for path in folder.rglob("*.yaml") if path.parent.name != "keys"
    }
    cpu, gpu = services(folder, "compose.yaml"), services(folder, "compose.yaml", "compose.gpu.yaml")
    return [
        *server_problems(cpu["server"], "cpu"),
        *server_problems(gpu["server"], "cuda"),
        *prometheus_problems(cpu, loaded["prometheus.yaml"]),
        *grafana_problems(cpu["grafana"], loaded["datasources.yaml"], loaded["dashboards.yaml"]),
    ]


def test_compose_is_wired() -> None:
    assert compose_problems(COMPOSE) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("compose.yaml", "--speculative-draft-model-path=", "--speculative-draft-modelpath=", "unrecognized arguments"),
        (
            "compose.yaml",
            "--speculative-draft-model-path=/opt/",
            "--speculative-draft-model-path=/top/",
            "mounted nowhere",
        ),
        ("compose.yaml", ":/run/secrets/sgl-dspark:ro", ":/run/secrets/dspark:ro", "keys: nothing is mounted at"),
        ("compose.yaml", "- state:/var/lib/sgl-dspark", "- state:/var/lib/dspark", "state: nothing is mounted at"),
        ("compose.yaml", "/tmp:exec", "/tmp:noexec", "mount it exec"),
        ("compose.yaml", "/rules/alerts.yaml:ro", "/alerts.yaml:ro", "alerts.yaml is mounted where no rule_files look"),
        ("compose.yaml", "--config.file=/etc/prometheus/", "--config.file=/prometheus/", "--config.file is not where"),
        ("compose.yaml", "--storage.path=/alertmanager", "--storage.path=/alerts", "its data is on no volume"),
        ("compose.yaml", "provisioning/datasources/", "provisioning/datasource/", "datasources.yaml is not mounted"),
        ("compose.yaml", "provisioning/dashboards/", "provisioning/boards/", "dashboards.yaml is not mounted"),
        (
            "compose.yaml",
            "/dashboards:/var/lib/dashboards:",
            "/dashboards:/var/lib/boards:",
            "no dashboards are mounted",
        ),
        ("prometheus.yaml", "/rules/*.yaml", "/rules/*.yml", "is mounted where no rule_files look"),
        ("grafana/datasources.yaml", "type: prometheus", "type: promethus", "is no Prometheus"),
        ("grafana/datasources.yaml", "    url:", "    uri:", "uri is not known"),
        ("grafana/dashboards.yaml", "type: file", "type: folder", "is not file"),
        (
            "grafana/dashboards.yaml",
            "path: /var/lib/dashboards",
            "path: /var/lib/board",
            "no dashboards are mounted at",
        ),
        ("compose.gpu.yaml", ":/models:ro", ":/model:ro", "mounted nowhere"),
        ("compose.gpu.yaml", "--drain-timeout", "--drain-timeut", "unrecognized arguments"),
        ("compose.gpu.yaml", "target: cuda", "target: cpu", "are not cuda"),
    ],
)
def test_a_mistake_in_compose_is_found(name: str, old: str, new: str, expected: str, tmp_path: Path) -> None:
    folder = tmp_path / "compose"
    shutil.copytree(COMPOSE, folder)
    plant(folder / name, old, new)
    assert any(expected in problem for problem in compose_problems(folder)), compose_problems(folder)


def plant(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Paths that the installer writes."""
    root = tmp_path_factory.mktemp("root")
    command = [str(SYSTEMD / "install.sh")]
    subprocess.run(command, env={"PATH": "/usr/bin:/bin", "DESTDIR": str(root), "APPLY": "1"}, check=True)
    return {f"/{path.relative_to(root)}" for path in root.rglob("*") if path.is_file()}


def service_problems(unit: str, settings: str, installed: set[str]) -> list[str]:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read_string(unit)
    lines = [line for line in settings.splitlines() if line and not line.startswith("#")]
    return unit_problems(dict(parser["Service"]), dict(line.split("=", 1) for line in lines), installed)


def test_the_service_is_wired(installed: set[str]) -> None:
    settings = (SYSTEMD / "sgl-dspark.env").read_text()
    assert service_problems(UNIT.read_text(), settings, installed) == []
    (example,) = [line[1:] for line in settings.splitlines() if line.startswith("#DSPARK_ARGS=")]
    assert parsed(["serve", *example.partition("=")[2].split()])["max_running_requests"] == 64


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("--drain-timeout ", "--drain-timeut ", "unrecognized arguments"),
        ("${DSPARK_HOST}", "${DSPARK_HSOT}", "known settings"),
        ("--config %d/keys.yaml", "--config %d/key.yaml", "does not read %d/keys.yaml"),
        (":/etc/sgl-dspark/keys.yaml", ":/etc/sgl-dspark/sgl-keys.yaml", "is not what the installer writes"),
        ("=/etc/sgl-dspark/sgl-dspark.env", "=/etc/sgl-dspark/dspark.env", "is not what the installer writes"),
        ("/bin/dspark serve", "/bin/dspark server", "is not serve"),
    ],
)
def test_a_mistake_in_the_service_is_found(old: str, new: str, expected: str, installed: set[str]) -> None:
    text = UNIT.read_text()
    assert old in text
    problems = service_problems(text.replace(old, new), (SYSTEMD / "sgl-dspark.env").read_text(), installed)
    assert any(expected in problem for problem in problems), problems


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_the_chart_is_wired(values: Path) -> None:
    assert chart_problems(documents(values)) == []


@pytest.mark.parametrize("name", ["cpu", "gpu", "multi-node"])
def test_manifests_are_wired(name: str) -> None:
    found = [d for d in yaml.safe_load_all((DEPLOY / "k8s" / f"{name}.yaml").read_text()) if d]
    assert chart_problems(found) == []


@pytest.fixture
def mistaken(tmp_path: Path):
    """Render the chart after a mistake in one of its templates."""

    def render(name: str, old: str, new: str, values: str = KEYED) -> list[str]:
        folder = tmp_path / "sgl-dspark"
        shutil.copytree(CHART, folder)
        plant(folder / "templates" / name, old, new)
        (tmp_path / "values.yaml").write_text(values)
        result = chart("template", tmp_path / "values.yaml", folder=folder)
        assert result.returncode == 0, result.stderr
        return chart_problems([document for document in yaml.safe_load_all(result.stdout) if document])

    return render


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        (
            "_server.tpl",
            "mountPath: /run/secrets/sgl-dspark",
            "mountPath: /run/secrets/dspark",
            "keys are not mounted at",
        ),
        (
            "_server.tpl",
            "- --speculative-draft-model-path=",
            "- --speculative-draft-modelpath=",
            "unrecognized arguments",
        ),
        ("_server.tpl", "    fsGroup: 10001\n", "", "fsGroup"),
        ("_server.tpl", "mountPath: /var/lib/sgl-dspark}", "mountPath: /var/lib/dspark}", "cannot be written"),
        ("_server.tpl", "{name: SGL_DSPARK_KEYS, ", "{name: SGL_DSPARK_KEY, ", "keys that are meant must be required"),
        ("_server.tpl", "- --drain-timeout=", "- --drain-timeut=", "unrecognized arguments"),
        ("_server.tpl", "path: /ready, port: http", "path: /ready, port: htp", "probe of port htp"),
        ("_server.tpl", "- {name: keys, secret:", "- {name: key, secret:", "no volume keys"),
        ("networkpolicy.yaml", "{port: http, ", "{port: htpp, ", "NetworkPolicy: port htpp"),
        ("service.yaml", "targetPort: http", "targetPort: htp", "Service: targetPort htp"),
        ("secret.yaml", "  api-key: ", "  apikey: ", "Secret: entry apikey"),
        ("tests/smoke.yaml", "key: api-key", "key: apikey", "Pod: entry apikey"),
    ],
)
def test_a_mistake_in_the_chart_is_found(name: str, old: str, new: str, expected: str, mistaken) -> None:
    problems = mistaken(name, old, new)
    assert any(expected in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("kind", "expected"), [("ServiceMonitor", "no service has the port"), ("PodMonitor", "no port of")]
)
def test_a_monitor_of_no_port_is_found(kind: str, expected: str, mistaken) -> None:
    problems = mistaken("monitor.yaml", "port: http", "port: metrics", f"{KEYED}monitoring: {{kind: {kind}}}\n")
    assert any(expected in problem for problem in problems), problems


def test_a_cache_that_is_mounted_elsewhere_is_found(mistaken) -> None:
    values = f"{KEYED}cache: {{size: 9Gi}}\n"
    problems = mistaken("_server.tpl", "mountPath: /var/lib/sgl-dspark/cache", "mountPath: /var/cache", values)
    assert any("what is downloaded goes to" in problem for problem in problems), problems


def test_models_that_are_mounted_elsewhere_are_found(mistaken) -> None:
    values = (CHART / "values-gpu.yaml").read_text()
    problems = mistaken("_server.tpl", "mountPath: /models,", "mountPath: /model,", values)
    assert any("mounted nowhere" in problem for problem in problems), problems


def test_the_example_of_settings_names_what_compose_reads() -> None:
    read = {name for file in COMPOSE.glob("compose*.yaml") for name in _read(file.read_text())}
    given = {
        line.partition("=")[0] for line in (COMPOSE / ".env.example").read_text().splitlines() if line[:1] not in "# "
    }
    assert given <= read
    assert (ROOT / "deploy" / "compose" / "keys").is_dir()


def _read(text: str) -> list[str]:
    return [piece.split(":", 1)[0].split("}", 1)[0] for piece in text.split("${")[1:]]
