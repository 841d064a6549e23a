"""A real Prometheus that scrapes one server every second and evaluates the repository's rules."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests
import yaml

from tests.support import programs
from tests.support.server import ROOT, free_port

START_S, STOP_S = 60.0, 30.0
GRAFANA = ROOT / "grafana"
RULES = (GRAFANA / "rules.yaml", GRAFANA / "alerts.yaml")
METRIC_NAME = re.compile(r"(?<![\w:])((?:dspark|sglang):[a-z0-9_:]+|dspark_[a-z_]+|up)(?=[\s{\[)]|$)")


def require(program: str) -> str:
    """Find a program of Debian's package prometheus."""
    return programs.require(program, "tools/get_prometheus.sh fetches it", "CI_PROMETHEUS")


class Prometheus:
    """Start it with `start`; ask with `instant` and `series`; end it with `stop`.

    Parameters
    ----------
    folder : Path
        For its configuration and data.
    target : str
        Host and port of the server.
    """

    def __init__(self, folder: Path, target: str) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in RULES],
            "scrape_configs": [{"job_name": "dspark", "static_configs": [{"targets": [target]}]}],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it is ready; raise with the end of its log if it does not get there."""
        command = [
            require("prometheus"),
            f"--config.file={self.folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        log = self.folder / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        deadline = time.monotonic() + START_S
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"Prometheus did not start:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.1)

    def _ready(self) -> bool:
        try:
            return requests.get(f"{self.url}/-/ready", timeout=10).status_code == 200
        except (requests.ConnectionError, requests.Timeout):  # A busy machine is asked again until the deadline.
            return False

    def stop(self) -> None:
        """End it."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def get(self, path: str, **parameters: Any) -> Any:
        """Ask its API; an expression that it refuses fails the test with its message."""
        answer = requests.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=60).json()
        assert answer["status"] == "success", (parameters, answer.get("error"))
        return answer["data"]

    def instant(self, expr: str) -> list[dict[str, Any]]:
        """Evaluate an expression now."""
        return list(self.get("query", query=expr)["result"])

    def value(self, expr: str) -> float:
        """Evaluate an expression that has one series, or none (0)."""
        result = self.instant(expr)
        assert len(result) <= 1, (expr, result)
        return float(result[0]["value"][1]) if result else 0.0

    def has_data(self, expr: str, seconds: int = 60) -> bool:
        """Whether an expression had a number at any moment of the last ``seconds``."""
        now = time.time()
        data = self.get("query_range", query=expr, start=now - seconds, end=now, step=1)
        return any(not math.isnan(float(value)) for series in data["result"] for _, value in series["values"])

    def wait_for(self, expr: str, deadline_s: float = 60.0) -> None:
        """Poll until an expression returns anything; raise at the deadline."""
        deadline = time.monotonic() + deadline_s
        while not self.instant(expr):
            assert time.monotonic() < deadline, f"nothing within {deadline_s} s: {expr}"
            time.sleep(0.2)

    def wait_for_scrapes(self, count: int = 2) -> None:
        """Wait until the target has been scraped ``count`` more times."""
        before = self.value('scrape_samples_scraped * 0 + timestamp(up{job="dspark"})')
        self.wait_for(f'timestamp(up{{job="dspark"}}) >= {before} + {count}')


def dashboard_expressions() -> Iterator[tuple[str, str]]:
    """Yield panel and expression of every query of the dashboards that are checked in, variables filled in."""
    for path in sorted((GRAFANA / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                yield f"{path.stem}: {panel['title']}", filled(target["expr"])


def filled(expr: str) -> str:
    """Put values in the place of Grafana's variables."""
    for name, value in (("$__rate_interval", "20s"), ("$__range", "60s"), ("$datasource", "")):
        expr = expr.replace(name, value)
    return re.sub(r"\$(job|instance|model)\b", ".*", expr)


def rules() -> list[dict[str, str]]:
    """Read the recording rules and alerts."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def names_in(expr: str) -> set[str]:
    """Find the metric names of an expression."""
    return set(METRIC_NAME.findall(expr))
