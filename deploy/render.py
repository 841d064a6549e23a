"""Make deploy/k8s, the manifests for clusters without Helm, from the chart; --check fails if they are stale.

Needs deploy-python of tools/get_deploy_tools.sh on the PATH; `make manifests` sees to that.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHART = HERE / "helm" / "sgl-dspark"
FOLDER = HERE / "k8s"
PLAIN = CHART / "ci" / "plain-values.yaml"
# File -> values that it is rendered with.
MANIFESTS = {"cpu": "values-cpu.yaml", "gpu": "values-gpu.yaml", "multi-node": "values-multi-node.yaml"}
HEAD = """# Made from deploy/helm/sgl-dspark with {values} by `make manifests`; never edited by hand.
# {apply}
"""
APPLY = {
    "cpu": "kubectl apply -f deploy/k8s/cpu.yaml",
    "gpu": "Change image, paths and volume of the models, then: kubectl apply -f deploy/k8s/gpu.yaml",
    "multi-node": "Needs LeaderWorkerSet (https://lws.sigs.k8s.io); change image, paths and volume of the models.",
}
# Who manages a release, which nobody does here.
DROPPED = ("app.kubernetes.io/managed-by:", "helm.sh/chart:")


def main() -> int:
    """Write the manifests; 1 with --check if any differs from its file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is stale")
    check = parser.parse_args().check
    stale = []
    for name in MANIFESTS:
        path, text = FOLDER / f"{name}.yaml", render(name)
        if not path.is_file() or path.read_text() != text:
            stale.append(path.name)
            if not check:
                path.write_text(text)
    if check and stale:
        print(f"deploy/k8s/{stale[0]} is stale; run: make manifests", file=sys.stderr)
    return int(check and bool(stale))


def render(name: str) -> str:
    """Return a manifest, without the chart's test, which kubectl would run at once."""
    values = MANIFESTS[name]
    command = ["deploy-python", str(HERE / "checks" / "chart.py"), "template", str(CHART), "--name", "dspark"]
    command += ["--values", str(CHART / values), "--values", str(PLAIN)]
    stream = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    kept = [piece for piece in stream.split("---\n") if piece.strip() and "helm.sh/hook" not in piece]
    lines = [
        line
        for piece in kept
        for line in ["---", *piece.rstrip().splitlines()]
        if not line.strip().startswith((*DROPPED, "# Source:"))
    ]
    return HEAD.format(values=values, apply=APPLY[name]) + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
