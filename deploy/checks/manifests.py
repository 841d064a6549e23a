"""Check Kubernetes manifests strictly: unknown fields, wrong types and missing ones, custom resources included.

``manifests.py [FILE ...]`` (standard input without a file); run by deploy-python of tools/get_deploy_tools.sh.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

# The releases at both ends of what the chart is meant for.
RELEASES = ("1.27", "1.37")
CUSTOM = ("monitoring.coreos.com/", "keda.sh/")
LEADER_WORKER_SET = "leaderworkerset.x-k8s.io/v1"
HERE = Path(__file__).resolve().parent


def main(files: list[str]) -> int:
    """Print every problem; 1 if there is one, or nothing to check."""
    texts = [Path(file).read_text() for file in files] or [sys.stdin.read()]
    documents = [document for text in texts for document in yaml.safe_load_all(text) if document is not None]
    problems = check(documents) if documents else ["there is no manifest"]
    for problem in problems:
        print(f"manifests: {problem}", file=sys.stderr)
    print(f"manifests: {len(documents)} checked, {len(problems)} problems")
    return int(bool(problems))


def check(documents: list[dict[str, Any]]) -> list[str]:
    """Return one line per problem."""
    problems, custom, names = [], [], set()
    for document in documents:
        group = str(document.get("apiVersion"))
        identity = (document.get("kind"), document.get("metadata", {}).get("name"))
        if identity in names:
            problems.append(f"{identity[0]} {identity[1]}: there is a second one")
        names.add(identity)
        if group.startswith(CUSTOM):
            custom.append(document)
        elif group == LEADER_WORKER_SET:
            problems += leader_worker_set(document)
        else:
            problems += built_in(document)
    return problems + (custom_resources(custom) if custom else [])


def built_in(document: dict[str, Any], releases: tuple[str, ...] = RELEASES) -> list[str]:
    """Check a kind that Kubernetes itself defines, against each release."""
    name = f"{document.get('kind')} {document.get('metadata', {}).get('name')}"
    for release in releases:
        try:
            kubernetes_validate.validate(document, release, strict=True)
        except kubernetes_validate.ValidationError as error:
            return [f"{name}: {'.'.join(map(str, error.path))}: {error.message} (Kubernetes {release})"]
        except (kubernetes_validate.SchemaNotFoundError, KeyError) as error:
            return [f"{name}: {getattr(error, 'message', error)}"]
    return []


def leader_worker_set(document: dict[str, Any]) -> list[str]:
    """Check a LeaderWorkerSet: its own fields by the schema beside this file, its pods as those of a StatefulSet."""
    name = f"LeaderWorkerSet {document.get('metadata', {}).get('name')}"
    schema = json.loads((HERE / "leaderworkerset.schema.json").read_text())
    errors = jsonschema.Draft202012Validator(schema).iter_errors(document)
    problems = [f"{name}: {'.'.join(map(str, error.path))}: {error.message}" for error in errors]
    if problems:
        return problems
    for template in ("leaderTemplate", "workerTemplate"):
        pod = document["spec"]["leaderWorkerTemplate"].get(template)
        if pod is not None:
            problems += [f"{name}: {template}: {problem}" for problem in built_in(as_stateful_set(name, pod))]
    return problems


def as_stateful_set(name: str, pod: dict[str, Any]) -> dict[str, Any]:
    """Put a pod template into the least StatefulSet around it."""
    labels = copy.deepcopy(pod.get("metadata", {}).get("labels", {}))
    spec = {"selector": {"matchLabels": labels}, "serviceName": "x", "template": pod}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": spec}


def custom_resources(documents: list[dict[str, Any]]) -> list[str]:
    """Check resources of the Prometheus operator and of KEDA against the schemas of their definitions."""
    # The environment that runs this lies beside the modules.
    modules = Path(sys.prefix).parent
    command = ["node", str(HERE / "crds.mjs"), str(modules)]
    result = subprocess.run(command, input=json.dumps(documents), capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return [f"crds.mjs failed: {result.stderr.strip()[-500:]}"]
    return result.stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
