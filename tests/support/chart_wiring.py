"""Whether the chart's manifests agree with each other and with what the image reads; see `tests.support.wiring`."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from tests.support.wiring import KEYS, LWS, command_problems, image_places, image_variables

Document = dict[str, Any]
KEYS_FOLDER, STATE_FOLDER = "SGL_DSPARK_KEYS", "SGL_DSPARK_STATE"


def chart_problems(found: list[Document]) -> list[str]:
    """Check all manifests of one release."""
    pods = [pod for document in found for pod in _pods(document)]
    serving = next(pod for pod in pods if pod["containers"][0].get("ports"))
    ports = {port["name"] for port in serving["containers"][0]["ports"]}
    problems = [problem for pod in pods for problem in pod_problems(pod)]
    for document in found:
        check = _CHECKS.get(document["kind"])
        if check is not None:
            problems += [f"{document['kind']}: {problem}" for problem in check(document, ports)]
    services = {port["name"] for d in found if d["kind"] == "Service" for port in d["spec"]["ports"]}
    for document in found:
        if document["kind"] == "ServiceMonitor":
            asked = {endpoint["port"] for endpoint in document["spec"]["endpoints"]}
            problems += [f"ServiceMonitor: no service has the port {name}" for name in asked - services]
    return problems


def _pods(document: Document) -> list[Document]:
    if document["kind"] == "StatefulSet":
        spec = document["spec"]["template"]["spec"]
        claims = [{"name": claim["metadata"]["name"]} for claim in document["spec"].get("volumeClaimTemplates", [])]
        return [{**spec, "volumes": spec["volumes"] + claims}]
    if document["kind"] == "LeaderWorkerSet":
        template = document["spec"]["leaderWorkerTemplate"]
        return [{**template[name]["spec"], "lws": True} for name in ("leaderTemplate", "workerTemplate")]
    return []


def pod_problems(pod: Document) -> list[str]:
    """Check the server's container against the pod and the image."""
    (server,) = pod["containers"]
    stage = server["image"].rpartition("-")[2]
    variables = {**image_variables(stage), **{e["name"]: e.get("value", "") for e in server["env"]}}
    mounts = {mount["mountPath"]: mount for mount in server["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    problems = [f"no volume {m['name']}" for m in mounts.values() if m["name"] not in volumes]
    problems += command_problems(server["args"], [*mounts, *image_places(stage)], LWS if "lws" in pod else {})
    secret = next((name for name, volume in volumes.items() if name == "keys" and "secret" in volume), None)
    folder = next((e["value"] for e in server["env"] if e["name"] == KEYS_FOLDER), None)
    if (secret is None) != (folder is None):
        problems.append(f"{KEYS_FOLDER} is {folder} where the secret is {secret}: keys that are meant must be required")
    if secret is not None and mounts.get(folder or "", {}).get("name") != secret:
        problems.append(f"keys are not mounted at {folder}, where the entrypoint looks")
    writable = [path for path, mount in mounts.items() if not mount.get("readOnly")]
    for place in (variables[STATE_FOLDER], variables["XDG_CACHE_HOME"], *_written(server["args"])):
        if not any(PurePosixPath(place).is_relative_to(path) for path in writable):
            problems.append(f"{place} cannot be written")
    if {path for path, mount in mounts.items() if mount["name"] == "cache"} - {variables["XDG_CACHE_HOME"]}:
        problems.append(f"cache: what is downloaded goes to {variables['XDG_CACHE_HOME']}")
    context = pod["securityContext"]
    if not context.get("fsGroup") or context["fsGroup"] != context["runAsGroup"]:
        problems.append("fsGroup: the user can write to no volume and read no secret")
    return problems


def _written(args: list[str]) -> list[str]:
    return [word.partition("=")[2] for word in args if word.startswith("--step-time-profile=")]


def _service(document: Document, ports: set[str]) -> list[str]:
    wanted = {port["targetPort"] for port in document["spec"]["ports"]}
    return [f"targetPort {name} is no port of the container" for name in sorted(wanted - ports)]


def _policy(document: Document, ports: set[str]) -> list[str]:
    wanted = {port["port"] for rule in document["spec"]["ingress"] for port in rule.get("ports", [])}
    return [f"port {name} is no port of the container" for name in sorted(wanted - ports)]


def _monitor(document: Document, ports: set[str]) -> list[str]:
    wanted = {endpoint["port"] for endpoint in document["spec"]["podMetricsEndpoints"]}
    return [f"port {name} is no port of the container" for name in sorted(wanted - ports)]


def _secret(document: Document, _: set[str]) -> list[str]:
    return [f"entry {name} is read by nobody" for name in sorted(set(document["stringData"]) - KEYS)]


def _test(document: Document, _: set[str]) -> list[str]:
    (container,) = document["spec"]["containers"]
    asked = [e["valueFrom"]["secretKeyRef"]["key"] for e in container["env"] if "valueFrom" in e]
    return [f"entry {name} of the secret is written by nobody" for name in asked if name not in KEYS]


def _stateful(document: Document, ports: set[str]) -> list[str]:
    problems = []
    for pod in _pods(document):
        (server,) = pod["containers"]
        probed = {server[f"{name}Probe"]["httpGet"]["port"] for name in ("startup", "liveness", "readiness")}
        problems += [f"probe of port {name}, which the container lacks" for name in sorted(probed - ports)]
    return problems


_CHECKS = {
    "Service": _service,
    "NetworkPolicy": _policy,
    "PodMonitor": _monitor,
    "Secret": _secret,
    "Pod": _test,
    "StatefulSet": _stateful,
}
