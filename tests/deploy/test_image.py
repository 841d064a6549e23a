"""The image: its Dockerfile lints and holds what it should, and what runs inside behaves.

``deploy/check_image_steps.py`` runs every step of the cpu stage in a plain Debian; it needs root and minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from tests.support.deploy import CHART, DEPLOY, load, run
from tests.support.server import ROOT

sys.path.insert(0, str(DEPLOY))
import dockerfile  # noqa: E402

DOCKERFILE = ROOT / "Dockerfile"
DOCKER = DEPLOY / "docker"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FINAL = ("cpu", "cuda")


def test_lints() -> None:
    result = run("hadolint", DOCKERFILE)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("USER 10001:10001", "USER root", "DL3002"),
        ('ENTRYPOINT ["/opt/sgl-dspark/entrypoint.sh"]', "ENTRYPOINT /opt/sgl-dspark/entrypoint.sh", "DL3025"),
        (" --no-install-recommends", "", "DL3015"),
        ("WORKDIR /src", "WORKDIR src", "DL3000"),
        ("EXPOSE 30000", "EXPOSE 300000", "DL3011"),
        ("STOPSIGNAL SIGTERM", "STOPSIGNL SIGTERM", "unexpected"),
    ],
)
def test_a_mistake_is_found(old: str, new: str, code: str, tmp_path: Path) -> None:
    text = DOCKERFILE.read_text()
    assert old in text
    (tmp_path / "Dockerfile").write_text(text.replace(old, new))
    result = run("hadolint", "--no-color", tmp_path / "Dockerfile")
    assert result.returncode != 0
    assert code in result.stdout + result.stderr


@pytest.mark.parametrize("name", FINAL)
def test_final_stages(name: str) -> None:
    stages = dockerfile.read(DOCKERFILE)
    stage = stages[name]
    assert stage.base not in stages, "a final stage starts from an image, so that nothing of the build is in it"
    last = dict(stage.steps)
    user = last["USER"].partition(":")[0]
    assert user.isdigit()
    assert int(user) > 0
    assert dockerfile.command(last["ENTRYPOINT"]) == ["/opt/sgl-dspark/entrypoint.sh"]
    assert dockerfile.command(last["CMD"])[0] == "serve"
    assert dockerfile.command(last["HEALTHCHECK"]) == ["python3", "/opt/sgl-dspark/healthcheck.py"]
    installed = " ".join(rest for keyword, rest in stage.steps if keyword == "RUN").split()
    assert not {"gcc", "g++", "make", "git", "python3-dev", "libc6-dev"} & set(installed)


def test_versions_agree() -> None:
    version = PROJECT["version"]
    labels = [rest for s in dockerfile.read(DOCKERFILE).values() for keyword, rest in s.steps if keyword == "LABEL"]
    assert len(labels) == len(FINAL)
    assert all(f'image.version="{version}"' in label for label in labels)
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == version
    assert f"DSPARK_VERSION={version}" in (DEPLOY / "compose" / ".env.example").read_text()
    for name in ("cpu", "gpu", "multi-node"):
        tag = yaml.safe_load((CHART / f"values-{name}.yaml").read_text())["image"]["tag"]
        assert tag == f"{version}-{'cpu' if name == 'cpu' else 'cuda'}"
    (pin,) = (r.partition("==")[2] for r in PROJECT["optional-dependencies"]["serve"] if r.startswith("sglang=="))
    assert f"SGLANG_IMAGE=lmsysorg/sglang:v{pin}\n" in DOCKERFILE.read_text()
    assert f"grep -x sglang=={pin} " in DOCKERFILE.read_text()


def test_requirements_are_those_of_serving() -> None:
    command = [sys.executable, str(DOCKER / "requirements.py"), str(ROOT / "pyproject.toml")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    assert printed[:-1] == PROJECT["dependencies"] + PROJECT["optional-dependencies"]["serve"]


def test_the_build_gets_what_it_copies_and_little_else() -> None:
    files = load(DEPLOY / "check_image_steps.py").context_files()
    for stage in dockerfile.read(DOCKERFILE).values():
        for keyword, rest in stage.steps:
            words = rest.split()
            if keyword == "COPY" and not words[0].startswith("--from=") and words[0] != ".":
                assert set(words[:-1]) <= set(files), rest
    for needed in ("sgl_dspark/cli.py", "python/dspark_sglang/ui/page.html", "loadtest/dspark_loadtest/command.py"):
        assert needed in files
    assert "checkpoints/smollm2-135m-dspark/model.safetensors" in files
    assert not [name for name in files if name.startswith(("tests/", "docs/", ".git"))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FROM a AS b\nRUN x \\\n    && y\n# c\nUSER 1", [("RUN", "x && y"), ("USER", "1")]),
        ("ARG V=1\nFROM a:${V} AS b\nENV A=x B='y z'", [("ENV", "A=x B='y z'")]),
    ],
)
def test_reading_a_dockerfile(text: str, expected: list[tuple[str, str]], tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(text)
    (stage,) = dockerfile.read(tmp_path / "Dockerfile").values()
    assert stage.steps == expected
    assert stage.base in ("a", "a:1")


def test_an_instruction_that_would_be_left_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM a AS b\nADD x y\n")
    with pytest.raises(ValueError, match="ADD"):
        dockerfile.read(tmp_path / "Dockerfile")


def test_values_are_put_in() -> None:
    assert dockerfile.assignments("PATH=/a:$PATH B='${C} d'", {"PATH": "/b", "C": "c"}) == {"PATH": "/a:/b", "B": "c d"}


class Answers(BaseHTTPRequestHandler):
    """Answers what the class attribute says, by path."""

    by_path: dict[str, tuple[int, str]] = {}

    def do_GET(self) -> None:  # noqa: N802
        status, body = self.by_path.get(self.path, (404, ""))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def do_POST(self) -> None:  # noqa: N802
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    made = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def python(program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    command = [sys.executable, str(DOCKER / program), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("status", "expected"), [(200, 0), (503, 1)])
def test_healthcheck(status: int, expected: int, server: HTTPServer) -> None:
    Answers.by_path = {"/ready": (status, "")}
    assert python("healthcheck.py", PORT=str(server.server_port)).returncode == expected


def test_healthcheck_knows_the_port() -> None:
    port = load(DOCKER / "healthcheck.py").port
    assert port(["dspark", "serve", "--port", "1", "--port=2"]) == "2"
    assert port(["dspark", "--port", "1"]) == "1"


GOOD = {
    "/ready": (200, ""),
    "/v1/models": (200, json.dumps({"data": [{"id": "m"}]})),
    "/v1/chat/completions": (200, json.dumps({"usage": {"completion_tokens": 8}})),
    "/metrics": (200, '# TYPE x\ndspark_steps_total{policy="a"} 3.0\ndspark_steps_total{policy="b"} 4.0\n'),
}


@pytest.mark.parametrize(
    ("change", "flags", "expected"),
    [
        ({}, (), "7 steps"),
        ({"/metrics": (404, "")}, ("--plain",), "answered 8 tokens"),
        ({"/ready": (503, "draining")}, (), "503: draining"),
        ({"/v1/chat/completions": (401, "key")}, (), "401: key"),
        ({"/v1/chat/completions": (200, '{"usage": {"completion_tokens": 0}}')}, (), "has 0 tokens"),
        ({"/metrics": (200, "other_total 5\n")}, (), "counts no step"),
    ],
)
def test_smoke(change, flags: tuple[str, ...], expected: str, server: HTTPServer) -> None:
    Answers.by_path = {**GOOD, **change}
    result = python("smoke.py", f"http://127.0.0.1:{server.server_port}/", *flags)
    assert expected in result.stdout + result.stderr
    good = "steps" in expected or "answered" in expected
    assert result.returncode == int(not (good and "error" not in result.stderr))
