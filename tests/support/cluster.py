"""SGLang's model gateway in front of replicas, and what each side of it has counted."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from prometheus_client.parser import text_string_to_metric_families

from tests.support.server import ServerProcess, free_port

START_S, SEEN_S = 60.0, 60.0
# Small loads: spread over replicas as soon as one is two requests ahead, or everything that begins alike goes to one.
SPREAD = ("--balance-abs-threshold", "2", "--balance-rel-threshold", "1.1")
# `/ready` costs nothing and turns at once when a replica drains; `/health`, the gateway's default, generates a token.
PROBES = (
    *("--health-check-endpoint", "/ready", "--health-check-interval-secs", "1"),
    *("--health-failure-threshold", "1", "--health-success-threshold", "1"),
)
CHAT = "/v1/chat/completions"


class Gateway:
    """One gateway with cache-aware routing; `start` it, `stop` it.

    Parameters
    ----------
    workers : sequence of str
        Base URLs of the replicas.
    log_path : Path
    """

    def __init__(self, workers: Sequence[str], log_path: Path) -> None:
        self.workers, self.log_path = list(workers), log_path
        self.port, self.metrics_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """Give its command line."""
        where = ("--host", "127.0.0.1", "--port", str(self.port))
        metrics = ("--prometheus-host", "127.0.0.1", "--prometheus-port", str(self.metrics_port))
        found = ("--worker-urls", *self.workers, "--worker-startup-check-interval", "1")
        # Replicas tokenize; the gateway would look for a tokenizer of its own otherwise.
        policy = ("--policy", "cache_aware", "--disable-tokenizer-autoload")
        return [sys.executable, "-m", "smg", "launch", *where, *metrics, *found, *policy, *SPREAD, *PROBES]

    def start(self) -> None:
        """Start it and wait until every replica is routable; on failure end it and raise with the end of its log."""
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(self.command(), stdout=log, stderr=subprocess.STDOUT)
        try:
            self.wait_until_ready(set(self.workers), START_S)
        except AssertionError as error:
            self.stop()
            raise RuntimeError(f"the gateway did not start:\n{self.log_path.read_text()[-3000:]}") from error

    def stop(self) -> None:
        """End it at once: it keeps nothing, and when asked it takes five seconds to settle."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def ready(self) -> set[str]:
        """Give the replicas that it sends requests to."""
        try:
            listed = requests.get(f"{self.url}/workers", timeout=10).json()["workers"]
        except (requests.ConnectionError, requests.Timeout):  # A busy machine is asked again until the deadline.
            return set()
        return {worker["url"] for worker in listed if worker["is_healthy"]}

    def wait_until_ready(self, wanted: set[str], deadline_s: float = SEEN_S) -> None:
        """Poll until exactly ``wanted`` are routable; raise at the deadline, or if the gateway has ended."""
        deadline = time.monotonic() + deadline_s
        while (ready := self.ready()) != wanted:
            assert self._process is not None
            assert self._process.poll() is None, "the gateway has ended"
            assert time.monotonic() < deadline, ready
            time.sleep(0.1)


@dataclass(frozen=True)
class Counts:
    """Totals at one moment.

    Attributes
    ----------
    routed : dict
        Requests that the gateway has sent to each replica, second attempts included.
    answered : float
        Chat requests that the gateway has answered with status 200, streams that broke later included.
    broken : float
        Those of them, and refusals, that the gateway counts as errors.
    retries : float
        Second attempts.
    served, passed_on : dict of dict
        SGLang's counters of each replica: as it gives them, and as the gateway hands them on.
    """

    routed: dict[str, float]
    answered: float
    broken: float
    retries: float
    served: dict[str, dict[str, float]]
    passed_on: dict[str, dict[str, float]]


COUNTERS = ("num_requests_total", "generation_tokens_total", "prompt_tokens_total")


def read_counts(gateway: Gateway, replicas: Sequence[str]) -> Counts:
    """Read the gateway, and those ``replicas`` that are to be alive."""
    routed: dict[str, float] = {}
    answered = broken = retries = 0.0
    for sample in samples(f"http://127.0.0.1:{gateway.metrics_port}/metrics"):
        labels = sample.labels
        if sample.name == "smg_worker_requests_total":
            routed[labels["worker"]] = routed.get(labels["worker"], 0) + sample.value
        elif sample.name == "smg_http_responses_total" and labels["path"] == CHAT and labels["status_code"] == "200":
            answered += sample.value
        elif sample.name == "smg_router_request_errors_total" and labels["endpoint"] == "chat":
            broken += sample.value
        elif sample.name == "smg_worker_retries_total" and labels["endpoint"] == "chat":
            retries += sample.value
    served = {url: _of_worker(samples(f"{url}/metrics"), None) for url in replicas}
    handed = samples(f"{gateway.url}/engine_metrics")
    return Counts(routed, answered, broken, retries, served, {url: _of_worker(handed, url) for url in replicas})


def samples(url: str) -> list[Any]:
    """Read one page of metrics."""
    page = requests.get(url, timeout=30)
    page.raise_for_status()
    return [s for family in text_string_to_metric_families(page.text) for s in family.samples]


def _of_worker(found: Sequence[Any], worker: str | None) -> dict[str, float]:
    values = dict.fromkeys(COUNTERS, 0.0)
    for sample in found:
        name = sample.name.removeprefix("sglang:")
        if name in values and (worker is None or sample.labels.get("worker_addr") == worker):
            values[name] += sample.value
    return values


def start_together(servers: Sequence[ServerProcess]) -> None:
    """Start several servers at once; if one fails, end all and raise."""
    with ThreadPoolExecutor(len(servers)) as pool:
        started = [pool.submit(server.start) for server in servers]
    failed = [future.exception() for future in started if future.exception() is not None]
    if failed:
        for server, future in zip(servers, started, strict=True):
            if future.exception() is None:
                server.kill()
        raise failed[0]
