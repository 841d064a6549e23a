"""Serve with a Prometheus beside it: what `make observe` runs. Further arguments go to `dspark serve`.

Prometheus keeps its data in runs/observe and evaluates the rules and alerts of grafana/. Ctrl-C ends both.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "runs" / "observe"
CONFIG = """global:
  scrape_interval: 5s
  evaluation_interval: 5s
rule_files: [{rules}/rules.yaml, {rules}/alerts.yaml]
scrape_configs:
  - job_name: dspark
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def main() -> int:
    """Start both, wait for the server, end Prometheus; the server's exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=30000, help="of the server")
    parser.add_argument("--prometheus-port", type=int, default=9090)
    args, rest = parser.parse_known_args()
    if shutil.which("prometheus") is None:
        print("observe: error: prometheus is not on the PATH; run make observe, which fetches it.", file=sys.stderr)
        return 1
    if taken(args.prometheus_port):
        print(f"observe: error: port {args.prometheus_port} is taken; choose --prometheus-port.", file=sys.stderr)
        return 1
    WORK.mkdir(parents=True, exist_ok=True)
    config = WORK / "prometheus.yaml"
    config.write_text(CONFIG.format(rules=ROOT / "grafana", port=args.port))
    # Ctrl-C reaches both through the terminal; SIGTERM is passed on.
    server = subprocess.Popen([str(Path(sys.executable).parent / "dspark"), "serve", "--port", str(args.port), *rest])
    with (WORK / "prometheus.log").open("wb") as log:
        prometheus = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={WORK / 'data'}",
                f"--web.listen-address=127.0.0.1:{args.prometheus_port}",
            ],
            stdout=log,
            stderr=log,
        )
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    signal.signal(signal.SIGINT, lambda *_: None)
    print(
        f"observe: page        http://127.0.0.1:{args.port}/dspark/ui   (once the server is ready)\n"
        f"observe: metrics     http://127.0.0.1:{args.port}/metrics\n"
        f"observe: Prometheus  http://127.0.0.1:{args.prometheus_port}/graph   (log and data: {os.path.relpath(WORK)})",
        file=sys.stderr,
        flush=True,
    )
    try:
        return server.wait()
    finally:
        prometheus.terminate()
        prometheus.wait()


def taken(port: int) -> bool:
    """Whether something listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    sys.exit(main())
