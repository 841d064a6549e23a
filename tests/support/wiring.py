"""Whether files of deploy/ agree with what reads them: flags, mounts, ports and names, each as the reader knows it.

Every function returns problems, one sentence each; none is the good case. Schemas cannot see these: a flag is a string
to them, and a mount in a wrong place is a mount.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from tests.support.deploy import DEPLOY
from tests.support.server import ROOT

sys.path.insert(0, str(DEPLOY))
import dockerfile  # noqa: E402

KEYS = {"api-key", "admin-api-key"}
# What Grafana's image reads, and where; the kinds are those of its documentation.
PROVISIONING = {
    "datasources": "/etc/grafana/provisioning/datasources",
    "dashboards": "/etc/grafana/provisioning/dashboards",
}
PATH_FLAGS = ("model_path", "speculative_draft_model_path", "calibration")
# Of a LeaderWorkerSet's pods.
LWS = {"LWS_WORKER_INDEX": "1", "LWS_LEADER_ADDRESS": "leader"}


class _Strict(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


@functools.cache
def _parsers() -> tuple[_Strict, _Strict]:
    from sglang.srt.server_args import ServerArgs

    from dspark_sglang.commands import serve

    ours, theirs = (_Strict(allow_abbrev=False, add_help=False) for _ in range(2))
    serve.add_arguments(ours)
    ServerArgs.add_cli_args(theirs)
    return ours, theirs


def parsed(words: Sequence[str]) -> dict[str, Any]:
    """Parse ``serve ...`` as dspark and SGLang do, without abbreviations.

    Raises
    ------
    ValueError
        What a parser has against it.
    """
    command, *flags = words
    if command != "serve":
        raise ValueError(f"{command} is not serve")
    ours, theirs = _parsers()
    known, rest = ours.parse_known_args(flags)
    if not any(word.startswith("--model-path") for word in rest):
        # The demo target is named by dspark itself.
        rest = [*rest, "--model-path=demo"]
    return {**vars(theirs.parse_args(rest)), **vars(known)}


def command_problems(words: Sequence[str], places: Iterable[str], variables: dict[str, str] | None = None) -> list[str]:
    """Check a command line: every flag is one, and every path lies in one of the places that the container has."""
    expanded = []
    for word in words:
        unknown = [name for name in re.findall(r"\$\((\w+)\)", word) if name not in (variables or {})]
        if unknown:
            return [f"{word}: nothing sets {unknown[0]}"]
        expanded.append(re.sub(r"\$\((\w+)\)", lambda found: (variables or {})[found[1]], word))
    try:
        settings = parsed(expanded)
    except ValueError as error:
        return [f"command line: {error}"]
    problems = []
    for name in PATH_FLAGS:
        path = settings.get(name)
        if path and path.startswith("/") and not any(PurePosixPath(path).is_relative_to(place) for place in places):
            problems.append(f"{name} is {path}, which is mounted nowhere")
    if not settings["plain"] and not settings.get("speculative_draft_model_path"):
        problems.append("there is no draft")
    return problems


def image_variables(stage: str) -> dict[str, str]:
    """Return what ENV of a stage sets."""
    steps = dockerfile.read(ROOT / "Dockerfile")[stage].steps
    return {k: v for word, rest in steps if word == "ENV" for k, v in dockerfile.assignments(rest, {}).items()}


def image_places(stage: str) -> list[str]:
    """Return the folders that COPY brings into a stage."""
    steps = dockerfile.read(ROOT / "Dockerfile")[stage].steps
    return [rest.split()[-1] for word, rest in steps if word == "COPY" and "--from=" in rest]


def default_keys() -> str:
    """Where the entrypoint looks for keys if nothing else is said."""
    text = (DEPLOY / "docker" / "entrypoint.sh").read_text()
    return re.search(r"\$\{SGL_DSPARK_KEYS:-([^}]+)\}", text)[1]


def _targets(service: dict[str, Any]) -> dict[str, str]:
    return {mount["target"]: mount["source"] for mount in service.get("volumes", [])}


def server_problems(service: dict[str, Any], stage: str) -> list[str]:
    """Check compose's server against the stage of the image that it starts."""
    targets, variables = _targets(service), image_variables(stage)
    problems = command_problems(service["command"], [*targets, *image_places(stage)])
    if not service["image"].endswith(f"-{stage}") or service["build"]["target"] != stage:
        problems.append(f"image {service['image']} and stage {service['build']['target']} are not {stage}")
    environment = {**variables, **service.get("environment", {})}
    wanted = {"keys": environment.get("SGL_DSPARK_KEYS") or default_keys(), "state": environment["SGL_DSPARK_STATE"]}
    for name, place in wanted.items():
        if place not in targets:
            problems.append(f"{name}: nothing is mounted at {place}")
    writable = [target for target in targets if not _is_read_only(service, target)]
    if not any(PurePosixPath(environment["XDG_CACHE_HOME"]).is_relative_to(place) for place in writable):
        problems.append(f"caches in {environment['XDG_CACHE_HOME']} cannot be written")
    # Docker mounts it noexec, unless told otherwise; compiled kernels are loaded from there.
    if not any(entry.startswith("/tmp:") and "exec" in entry.split(":")[1].split(",") for entry in service["tmpfs"]):
        problems.append("what is compiled into /tmp cannot be loaded: mount it exec")
    return problems


def _is_read_only(service: dict[str, Any], target: str) -> bool:
    return any(mount["target"] == target and mount.get("read_only") for mount in service["volumes"])


def prometheus_problems(services: dict[str, Any], config: dict[str, Any]) -> list[str]:
    """Check that Prometheus and Alertmanager find their files, and rules are where ``rule_files`` looks."""
    problems = []
    for name in ("prometheus", "alertmanager"):
        targets = _targets(services[name])
        flags = dict(word.removeprefix("--").split("=", 1) for word in services[name]["command"])
        if not targets.get(flags.get("config.file", ""), "").endswith(f"/{name}.yaml"):
            problems.append(f"{name}: --config.file is not where {name}.yaml is mounted")
        data = flags.get("storage.tsdb.path" if name == "prometheus" else "storage.path")
        if data not in targets:
            problems.append(f"{name}: its data is on no volume")
    found = {Path(s).name for t, s in _targets(services["prometheus"]).items() if _any_match(t, config["rule_files"])}
    for name in ("rules.yaml", "alerts.yaml"):
        if name not in found:
            problems.append(f"{name} is mounted where no rule_files look")
    return problems


def _any_match(target: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(target, p) and target.count("/") == p.count("/") for p in patterns)


def grafana_problems(service: dict[str, Any], sources: dict[str, Any], boards: dict[str, Any]) -> list[str]:
    """Check Grafana's provisioning: where its files are mounted, and what they may say."""
    problems, targets = [], _targets(service)
    for name, folder in PROVISIONING.items():
        if not any(s.endswith(f"/{name}.yaml") and str(Path(t).parent) == folder for t, s in targets.items()):
            problems.append(f"{name}.yaml is not mounted in {folder}")
    for source in sources["datasources"]:
        known = {"name", "uid", "type", "access", "url", "isDefault", "editable", "jsonData"}
        problems += [f"data source: {key} is not known" for key in sorted(set(source) - known)]
        if (source["type"], source.get("access", "proxy")) != ("prometheus", "proxy"):
            problems.append(
                f"data source: type {source['type']} by {source.get('access')} is no Prometheus of a server"
            )
    for provider in boards["providers"]:
        known = {"name", "folder", "type", "allowUiUpdates", "options"}
        problems += [f"provider: {key} is not known" for key in sorted(set(provider) - known)]
        if provider["type"] != "file":
            problems.append(f"provider: type {provider['type']} is not file")
        path = provider["options"].get("path")
        if not targets.get(path, "").endswith("/dashboards"):
            problems.append(f"provider: no dashboards are mounted at {path}")
    if sources.get("apiVersion") != 1 or boards.get("apiVersion") != 1:
        problems.append("apiVersion is not 1")
    return problems


def unit_problems(unit: dict[str, str], variables: dict[str, str], installed: Iterable[str]) -> list[str]:
    """Check the service's command line with its settings, and that what it reads is what the installer writes."""
    line = unit["ExecStart"]
    for name, value in variables.items():
        line = line.replace(f"${{{name}}}", value).replace(f"${name}", value)
    program, *words = shlex.split(line)
    credential, _, source = unit["LoadCredential"].partition(":")
    problems = []
    if f"%d/{credential}" not in words:
        problems.append(f"the command line does not read %d/{credential}")
    for path in (source, unit["EnvironmentFile"]):
        if path not in installed:
            problems.append(f"{path} is not what the installer writes")
    if Path(program).name != "dspark" or "$" in line:
        problems.append(f"{line} is not dspark with known settings")
    return problems + command_problems([*words, "--plain"], [])
