"""The Helm chart: it lints, renders and fits the schemas with every values file, and says what it is meant to say."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.deploy import CHART, DEPLOY, VALUES, chart, check_manifests, documents, load, one, render, require
from tests.support.server import ROOT

CPU, GPU, MULTI = (CHART / f"values-{name}.yaml" for name in ("cpu", "gpu", "multi-node"))
SCRAPED = "monitoring: {kind: PodMonitor}\n"
EVERYTHING = CHART / "ci" / "everything-values.yaml"


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_lints_and_fits_the_schemas(values: Path) -> None:
    result = chart("lint", values)
    assert result.returncode == 0, result.stderr
    assert check_manifests(documents(values)) == []


def test_every_kind_of_manifest_is_checked_strictly() -> None:
    planted = documents(EVERYTHING) + [one(documents(MULTI), "LeaderWorkerSet")]
    kinds = {document["kind"] for document in planted}
    assert {"StatefulSet", "PodMonitor", "PrometheusRule", "ScaledObject", "NetworkPolicy"} <= kinds
    for document in planted:
        document["spec" if "spec" in document else "metadata"]["planted"] = "no such field"
    problems = check_manifests(planted)
    for document in planted:
        name = f"{document['kind']} {document['metadata']['name']}"
        assert any(name in problem and "planted" in problem for problem in problems), (name, problems)


def plant(document: dict[str, Any], path: str, value: Any) -> None:
    *folders, last = path.split(".")
    for step in folders:
        document = document[int(step) if step.isdigit() else step]
    document[last] = value


@pytest.mark.parametrize(
    ("values", "kind", "path", "value"),
    [
        (EVERYTHING, "StatefulSet", "spec.template.spec.containers.0.livenessProbe.timeoutSeconds", "thirty"),
        (EVERYTHING, "StatefulSet", "spec.template.spec.containers.0.readinessProbe.httpGet.pth", "/ready"),
        (EVERYTHING, "PodMonitor", "spec.podMetricsEndpoints.0.intervall", "5s"),
        (EVERYTHING, "PodMonitor", "spec.podMetricsEndpoints.0.relabelings.0.action", 5),
        (EVERYTHING, "PrometheusRule", "spec.groups.0.rules.0.expr", {"a": 1}),
        (EVERYTHING, "ScaledObject", "spec.triggers.0.metadata.threshold", 4),
        (EVERYTHING, "ScaledObject", "spec.advanced.horizontalPodAutoscalerConfig.behaviour", {}),
        (GPU, "ServiceMonitor", "spec.endpoints.0.port", 30000),
        (MULTI, "LeaderWorkerSet", "spec.leaderWorkerTemplate.restartPolicy", "Never"),
        (MULTI, "LeaderWorkerSet", "spec.leaderWorkerTemplate.workerTemplate.spec.containerz", []),
        (CPU, "PodDisruptionBudget", "apiVersion", "policy/v2"),
    ],
)
def test_a_mistake_deep_inside_is_found(values: Path, kind: str, path: str, value: Any) -> None:
    document = one(documents(values), kind)
    plant(document, path, value)
    assert check_manifests([document])


def test_the_same_name_twice_is_found() -> None:
    document = one(documents(CPU), "ServiceAccount")
    assert "second" in check_manifests([document, copy.deepcopy(document)])[0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("{}", "model.path is empty"),
        ("model: {path: /a}", "model.draftPath is empty"),
        ("model: {path: /a, draftPath: /b, plain: true}", "leave out model.draftPath"),
        ("model: {demo: true, path: /a}", "excludes"),
        ("model: {demo: true}\nreplica: 2", "replica"),
        ("model: {demo: true}\nreplicas: -1", "minimum"),
        ("model: {demo: true}\nserver: {port: 99999}", "port"),
        ("model: {demo: true}\nprobes: {liveness: {timeoutSeconds: 1}}", "above 20"),
        ("model: {demo: true}\nmonitoring: {kind: Service}", "kind"),
        ("model: {path: /a, plain: true}\nparallel: {tensor: 3}\nmultiNode: {enabled: true}", "does not divide"),
        (f"model: {{demo: true}}\n{SCRAPED}autoscaling: {{enabled: true, minReplicas: 9}}", "maxReplicas"),
        ("model: {demo: true}\nautoscaling: {enabled: true}", "autoscaling.scrapedElsewhere"),
        ("model: {path: meta/target, draftPath: /b}", "set cache.size above the size of target and draft"),
        ("model: {path: /a, draftPath: org/draft}", "model.draftPath is no folder"),
        ("model: {path: org/target, plain: true}", "model.path is no folder"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(values: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(values)
    result = chart("template", file)
    assert result.returncode == 1
    assert expected in result.stderr


def test_a_broken_template_does_not_lint(tmp_path: Path) -> None:
    folder = tmp_path / "sgl-dspark"
    shutil.copytree(CHART, folder)
    with (folder / "templates" / "service.yaml").open("a") as file:
        file.write("{{ .Values.nothing.below }}\n")
    assert chart("lint", CPU, folder=folder).returncode == 1


@pytest.mark.parametrize("values", [CPU, GPU, EVERYTHING], ids=lambda path: path.stem)
def test_probes_and_drain(values: Path) -> None:
    pod = one(documents(values), "StatefulSet")["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    for probe, path in (("startup", "/health_generate"), ("liveness", "/health"), ("readiness", "/ready")):
        assert server[f"{probe}Probe"]["httpGet"] == {"path": path, "port": "http"}
    # SGLang gives up on generating its token after 20 s.
    assert server["livenessProbe"]["timeoutSeconds"] > 20
    assert server["startupProbe"]["timeoutSeconds"] > 20
    (drain,) = (float(a.partition("=")[2]) for a in server["args"] if a.startswith("--drain-timeout="))
    pause = float(server["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > drain + pause
    assert pause > server["readinessProbe"]["periodSeconds"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert server["securityContext"]["readOnlyRootFilesystem"]


def test_selectors_select_what_they_are_for() -> None:
    for values in (GPU, EVERYTHING, MULTI):
        found = documents(values)
        sets = {d["kind"]: d for d in found}
        if "StatefulSet" in sets:
            pods = sets["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
        else:
            template = sets["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
            pods = {**template["metadata"]["labels"], "leaderworkerset.sigs.k8s.io/worker-index": "0"}
        services = [d for d in found if d["kind"] == "Service"]
        for service in services:
            assert service["spec"]["selector"].items() <= pods.items()
        assert sets["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= pods.items()
        if "PodMonitor" in sets:
            assert sets["PodMonitor"]["spec"]["selector"]["matchLabels"].items() <= pods.items()
        else:
            wanted = sets["ServiceMonitor"]["spec"]["selector"]["matchLabels"].items()
            assert len([s for s in services if wanted <= s["metadata"]["labels"].items()]) == 1
        test = one(found, "Pod")["metadata"]["labels"]
        assert not any(service["spec"]["selector"].items() <= test.items() for service in services)


def test_state_is_kept_by_what_it_was_measured_with(tmp_path: Path) -> None:
    folders = set()
    for image in ("0.1.0-cpu", "0.2.0-cpu"):
        file = tmp_path / f"{image}.yaml"
        file.write_text(f"image: {{tag: {image}}}\nmodel: {{demo: true}}\n")
        spec = one(documents(file), "StatefulSet")["spec"]
        (server,) = spec["template"]["spec"]["containers"]
        folder = next(e["value"] for e in server["env"] if e["name"] == "SGL_DSPARK_STATE")
        assert f"--step-time-profile={folder}/step-times.json" in server["args"]
        assert {"name": "state", "mountPath": "/var/lib/sgl-dspark"} in server["volumeMounts"]
        assert spec["volumeClaimTemplates"][0]["metadata"]["name"] == "state"
        folders.add(folder)
    assert len(folders) == 2


HUB = "model: {path: org/target, draftPath: org/draft}\ncache: {size: 60Gi}\n"


def test_models_of_a_hub_get_a_volume_that_holds_them(tmp_path: Path) -> None:
    spec = one(render(HUB, tmp_path), "StatefulSet")["spec"]
    sizes = {c["metadata"]["name"]: c["spec"]["resources"]["requests"]["storage"] for c in spec["volumeClaimTemplates"]}
    assert sizes == {"state": "1Gi", "cache": "60Gi"}
    (server,) = spec["template"]["spec"]["containers"]
    assert {"name": "cache", "mountPath": "/var/lib/sgl-dspark/cache"} in server["volumeMounts"]
    spec = one(render(f"{HUB}state: {{persistent: false}}\n", tmp_path), "StatefulSet")["spec"]
    volumes = {volume["name"]: volume for volume in spec["template"]["spec"]["volumes"]}
    assert "volumeClaimTemplates" not in spec
    assert volumes["cache"]["emptyDir"] == {"sizeLimit": "60Gi"}


@pytest.mark.parametrize(("more", "stage"), [("", "cpu"), ("gpu: {enabled: true}\n", "cuda")])
def test_the_image_without_a_tag_is_one_that_is_built(more: str, stage: str, tmp_path: Path) -> None:
    (server,) = one(render(HUB + more, tmp_path), "StatefulSet")["spec"]["template"]["spec"]["containers"]
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert server["image"] == f"sgl-dspark:{version}-{stage}"
    assert f"--tag {server['image']} " in (ROOT / "Dockerfile").read_text()


def test_parallel_sizes_are_gpus() -> None:
    server = one(documents(EVERYTHING), "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    assert server["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert {"--tp-size=2", "--dp-size=2"} <= set(server["args"])
    leader = one(documents(MULTI), "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    assert leader["leaderTemplate"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert "readinessProbe" not in leader["workerTemplate"]["spec"]["containers"][0]


def test_manifests_for_clusters_without_helm_are_fresh() -> None:
    require("deploy-python")
    module = load(DEPLOY / "render.py")
    for name in module.MANIFESTS:
        text = module.render(name)
        assert (DEPLOY / "k8s" / f"{name}.yaml").read_text() == text, "run: make manifests"
        assert "helm" not in text.replace("deploy/helm", "").lower()
        assert check_manifests([d for d in yaml.safe_load_all(text) if d]) == []


def test_a_stale_manifest_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    require("deploy-python")
    module = load(DEPLOY / "render.py")
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    monkeypatch.setattr(module, "MANIFESTS", {"cpu": "values-cpu.yaml"})
    monkeypatch.setattr("sys.argv", ["render.py", "--check"])
    assert module.main() == 1
    assert "cpu.yaml is stale" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["render.py"])
    assert module.main() == 0
    assert (tmp_path / "cpu.yaml").read_text() == (DEPLOY / "k8s" / "cpu.yaml").read_text()


def test_keys_are_read_from_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    for keys, own in (("apiKey: a", True), ("existingSecret: theirs\n  apiKey: a", False)):
        file.write_text(f"model: {{demo: true}}\nkeys:\n  {keys}\n")
        result = chart("template", file)
        found = [d for d in yaml.safe_load_all(result.stdout) if d]
        assert any(d["kind"] == "Secret" for d in found) == own
        pod = one(found, "StatefulSet")["spec"]["template"]["spec"]
        (volume,) = (v for v in pod["volumes"] if v["name"] == "keys")
        assert volume["secret"]["secretName"] == ("dspark-keys" if own else "theirs")
        assert {"name": "SGL_DSPARK_KEYS", "value": "/run/secrets/sgl-dspark"} in pod["containers"][0]["env"]
    # Without a secret no key is required.
    assert "SGL_DSPARK_KEYS" not in str(documents(CPU))
    assert "another 'key'" in one(documents(EVERYTHING), "Secret")["stringData"]["admin-api-key"]
