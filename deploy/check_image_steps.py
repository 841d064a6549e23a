"""Run every step of the Dockerfile's cpu stage in a plain Debian, without a container engine; as root.

``python3 deploy/check_image_steps.py [--environment VENV] [--root DIR] [--start]``

Debian's minimal system comes from mmdebstrap (or --root, which is copied). Each RUN is executed by chroot with the
stage's variables and user, each COPY copies what .dockerignore lets through, and --start then starts the entrypoint
as the image's user, waits for the HEALTHCHECK, asks a question and stops it with SIGTERM. pip's settings in the
environment (PIP_*) are handed on. --environment VENV stands in for the one step that installs 11 GB: the packages of
an environment with the same pins, made by the same Python release, are laid over that of the image, read-only; all
other steps are run.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dockerfile

ROOT = Path(__file__).resolve().parent.parent
TARGET = "cpu"
HEAVY = "--requirement requirements.txt"
SITE = "opt/venv/lib/python3.11/site-packages"
INSIDE = "DSPARK_IMAGE_STEPS_NAMESPACE"
START_S, STOP_S = 600.0, 90.0


def main() -> int:
    """Run all steps; 1 with the step that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", type=Path, help="environment whose packages stand in for the heavy step")
    parser.add_argument("--root", type=Path, help="root of a minimal Debian; it is copied")
    parser.add_argument("--work", type=Path, help="empty folder for the stages (default: a temporary one)")
    parser.add_argument("--start", action="store_true", help="start the image's server and ask it something")
    args = parser.parse_args()
    if os.geteuid() != 0:
        say("error: chroot and mount need root.")
        return 1
    if INSIDE not in os.environ:
        # What is mounted here is unmounted when this process and its children have ended.
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--pid", "--fork", sys.executable, *sys.argv])
    work = Path(tempfile.mkdtemp(prefix="image-steps-", dir=args.work))
    builder = Builder(work, args.environment, args.root)
    try:
        builder.build(TARGET)
        if args.start:
            builder.start(TARGET)
    except subprocess.CalledProcessError as error:
        say(f"error: status {error.returncode} of: {shlex.join(map(str, error.cmd))}")
        return 1
    finally:
        builder.unmount()
        subprocess.run(["rm", "--recursive", "--force", "--one-file-system", str(work)], check=True)
    say("all steps ran")
    return 0


class Builder:
    """Stages of the Dockerfile as folders.

    Parameters
    ----------
    work : Path
        For the roots of the stages.
    environment, debian : Path or None
        See the command line.
    """

    def __init__(self, work: Path, environment: Path | None, debian: Path | None) -> None:
        self.work, self.environment, self.debian = work, environment, debian
        self.stages = dockerfile.read(ROOT / "Dockerfile")
        self.variables: dict[str, dict[str, str]] = {}
        self.folder: dict[str, str] = {}
        self.user: dict[str, str] = {}
        self.commands: dict[str, dict[str, list[str]]] = {}
        # In the order in which they were made, each from the ones before.
        self.overlaid: list[str] = []
        self.mounted: list[Path] = []

    def build(self, name: str) -> None:
        """Make a stage and those that it is made from."""
        stage, root = self.stages[name], self.work / name
        needed = [stage.base, *(rest.split()[0].partition("=")[2] for _, rest in stage.steps if "--from=" in rest)]
        for other in needed:
            if other in self.stages and other not in self.variables:
                self.build(other)
        say(f"stage {name} from {stage.base}")
        if stage.base in self.stages:
            copy(self.work / stage.base, root)
            self.variables[name], self.folder[name] = self.variables[stage.base], self.folder[stage.base]
            self.user[name], self.commands[name] = self.user[stage.base], self.commands[stage.base]
        else:
            self._debian(root)
            self.variables[name] = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
            self.folder[name], self.user[name], self.commands[name] = "/", "0:0", {}
        self._mount_system(root)
        if stage.base in self.overlaid:
            self._overlay(name)
        for keyword, rest in stage.steps:
            self._step(name, keyword, rest)

    def _debian(self, root: Path) -> None:
        if self.debian is not None:
            copy(self.debian, root)
        else:
            subprocess.run(["mmdebstrap", "--variant=minbase", "--quiet", "bookworm", str(root)], check=True)

    def _mount_system(self, root: Path) -> None:
        for name in ("proc", "sys", "dev"):
            (root / name).mkdir(exist_ok=True)
            self._mount("--rbind" if name != "proc" else "--types=proc", Path(f"/{name}"), root / name)
        shutil.copyfile("/etc/resolv.conf", root / "etc" / "resolv.conf")

    def _mount(self, how: str, source: Path, target: Path, *options: str) -> None:
        subprocess.run(["mount", how, *options, str(source), str(target)], check=True)
        self.mounted.append(target)

    def unmount(self) -> None:
        """Take the mounts away, so that what they show is not removed with the work folder."""
        for target in reversed(self.mounted):
            subprocess.run(["umount", "--recursive", "--lazy", str(target)], check=True)
        self.mounted.clear()

    def _overlay(self, name: str) -> None:
        """Show the packages of the environment in a stage; what the stage writes goes into a folder of its own."""
        assert self.environment is not None
        source = next((self.environment / "lib").glob("python3.11/site-packages"), None)
        if source is None:
            raise SystemExit(
                f"image steps: error: {self.environment} is no environment of Python 3.11, as Debian's is."
            )
        upper, scratch, target = self.work / f"{name}.upper", self.work / f"{name}.scratch", self.work / name / SITE
        # The first is on top.
        lower = [str(self.work / f"{earlier}.upper") for earlier in reversed(self.overlaid)]
        upper.mkdir()
        scratch.mkdir()
        layers = f"lowerdir={':'.join([*lower, str(source)])},upperdir={upper},workdir={scratch}"
        self._mount("--types=overlay", Path("overlay"), target, "--options", layers)
        self.overlaid.append(name)

    def _step(self, name: str, keyword: str, rest: str) -> None:
        values = self.variables[name]
        if keyword == "RUN":
            self._run(name, rest)
        elif keyword == "COPY":
            self._copy(name, rest)
        elif keyword in ("ENV", "ARG"):
            self.variables[name] = {**values, **dockerfile.assignments(rest, values)}
        elif keyword == "WORKDIR":
            self.folder[name] = rest
            (self.work / name / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif keyword == "USER":
            self.user[name] = rest
        elif keyword in ("CMD", "ENTRYPOINT", "HEALTHCHECK"):
            self.commands[name] = {**self.commands[name], keyword: dockerfile.command(rest)}

    def _run(self, name: str, line: str) -> None:
        if self.environment is not None and HEAVY in line:
            say(f"  REPLACED by {self.environment}: RUN {line}")
            self._overlay(name)
            # The environment may hold the project itself, from another folder.
            for stale in (self.work / name / SITE).glob("*sgl_dspark*"):
                shutil.rmtree(stale) if stale.is_dir() else stale.unlink()
            return
        say(f"  RUN {line}")
        subprocess.run(self.command(name, ["/bin/sh", "-c", line]), check=True, stdin=subprocess.DEVNULL)

    def command(self, name: str, words: list[str]) -> list[str]:
        """Return how a command is run inside a stage."""
        handed = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
        if "PIP_CERT" in handed:
            shutil.copyfile(handed["PIP_CERT"], self.work / name / "tmp" / "pip-cert.pem")
            handed["PIP_CERT"] = "/tmp/pip-cert.pem"
        variables = [f"{key}={value}" for key, value in {**handed, **self.variables[name]}.items()]
        inside = ["env", "--ignore-environment", f"--chdir={self.folder[name]}", *variables, *words]
        return ["chroot", f"--userspec={self.user[name]}", str(self.work / name), *inside]

    def _copy(self, name: str, rest: str) -> None:
        words = rest.split()
        origin = words.pop(0).partition("=")[2] if words[0].startswith("--from=") else None
        *sources, target = words
        say(f"  COPY {rest}")
        into = self.work / name / (Path(self.folder[name]) / target).as_posix().lstrip("/")
        if origin is not None:
            copy(self.work / origin / sources[0].lstrip("/"), into)
            if origin in self.overlaid and SITE.startswith(sources[0].lstrip("/")):
                self._overlay(name)
        elif sources == ["."]:
            for path in context_files():
                (into / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / path, into / path)
        else:
            into.mkdir(parents=True, exist_ok=True)
            for source in sources:
                if source not in context_files():
                    raise SystemExit(f"image steps: error: .dockerignore keeps {source} out.")
                shutil.copy2(ROOT / source, into)

    def start(self, name: str) -> None:
        """Start what the image starts, until its health check passes; ask a question; stop it."""
        commands = self.commands[name]
        say(f"starting {shlex.join([*commands['ENTRYPOINT'], *commands['CMD']])}")
        server = subprocess.Popen(self.command(name, [*commands["ENTRYPOINT"], *commands["CMD"]]))
        deadline = time.monotonic() + START_S
        while subprocess.run(self.command(name, commands["HEALTHCHECK"]), stderr=subprocess.DEVNULL).returncode != 0:
            if server.poll() is not None or time.monotonic() > deadline:
                server.kill()
                raise SystemExit("image steps: error: the server did not become healthy; its log is above.")
            time.sleep(2)
        say("healthy")
        subprocess.run(
            self.command(name, ["python3", "/opt/sgl-dspark/smoke.py", "http://127.0.0.1:30000"]), check=True
        )
        server.terminate()
        status = server.wait(STOP_S)
        if status != 0:
            raise SystemExit(f"image steps: error: status {status} after SIGTERM, not 0.")
        say("stopped by SIGTERM with status 0")


def context_files() -> list[str]:
    """List what .dockerignore lets into the build, by the pattern of that file: all is out but what has a ``!``."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    kept = tuple(line[1:] for line in lines if line.startswith("!"))
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    found = {name for name in names if name in kept or name.startswith(tuple(k for k in kept if k.endswith("/")))}
    return sorted(name for name in found if (ROOT / name).is_file())


def copy(source: Path, target: Path) -> None:
    """Copy a folder with owners and links, without what is mounted in it; the last part of ``target`` is made."""
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "--archive", "--one-file-system", "--no-target-directory", source, target], check=True)


def say(line: str) -> None:
    """Print one line at once."""
    sys.stdout.write(f"image steps: {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
