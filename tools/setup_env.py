"""Make or bring up to date the Python environment of this repository; runs on a bare Python 3.11 or 3.12.

Two stamps inside the environment say what it holds: one for the third-party packages (a hash of the dependency lists
and of constraints.txt) and one for the project itself (pyproject.toml and the folder it is installed from). When both
match, nothing is done, so that `make serve` and `make test` may call this every time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = "serve,train,plot,loadtest,dev"
NEEDED_GIB = 14
HEARTBEAT_S = 15


def main() -> int:
    """Parse the command line; 0 when the environment is ready, 1 with one sentence otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, help="folder of the environment")
    parser.add_argument("--print-key", action="store_true", help="print the hash of dependencies and constraints")
    args = parser.parse_args()
    if not (3, 11) <= sys.version_info[:2] < (3, 13):
        return fail(f"Python 3.11 or 3.12 is needed, this is {sys.version.split()[0]}; set PYTHON=/path/to/python3.11.")
    if args.print_key:
        print(dependency_key())
        return 0
    if args.venv is None:
        parser.error("--venv is required")
    try:
        return set_up(Path(os.path.abspath(args.venv)))
    except subprocess.CalledProcessError as error:
        return fail(
            f"`{' '.join(map(str, error.cmd[:6]))} ...` ended with status {error.returncode}; see its output above."
        )


def set_up(venv: Path) -> int:
    """Create the environment if there is none, then install what its stamps do not cover."""
    packages_stamp, project_stamp = venv / ".dspark-packages", venv / ".dspark-project"
    packages, project = dependency_key(), project_key()
    if read(packages_stamp) != packages:
        status = create(venv)
        if status:
            return status
        packages_stamp.unlink(missing_ok=True)
        install_packages(venv)
        packages_stamp.write_text(packages)
        project_stamp.write_text(project)
    elif read(project_stamp) != project:
        say(f"Registering the project in {venv}.")
        pip(venv, "install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
        project_stamp.write_text(project)
    return 0


def create(venv: Path) -> int:
    """Create an empty environment unless there is one; 1 with the remedy when Python lacks what it takes."""
    if (venv / "bin" / "python").exists():
        return 0
    try:
        import ensurepip  # noqa: F401
        import venv as _  # noqa: F401
    except ImportError:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return fail(f"this Python cannot make environments; install python{version}-venv with your package manager.")
    venv.parent.mkdir(parents=True, exist_ok=True)
    free_gib = shutil.disk_usage(venv.parent).free / 2**30
    if free_gib < NEEDED_GIB:
        say(
            f"Warning: {free_gib:.0f} GiB free where {NEEDED_GIB} GiB are wanted; the installation may run out of disk."
        )
    say(f"Creating the environment {venv}.")
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    return 0


def install_packages(venv: Path) -> None:
    """Install the project with all its extras at the pinned versions, saying how far it has come."""
    constraints = ROOT / "constraints.txt"
    total = sum(1 for line in constraints.read_text().splitlines() if "==" in line)
    say(f"Installing the packages in {venv}: about 11 GB and five minutes the first time.")
    done = threading.Event()
    reporter = threading.Thread(target=report_progress, args=(venv, total, done), daemon=True)
    reporter.start()
    try:
        pip(venv, "install", "--constraint", str(constraints), "--editable", f"{ROOT}[{EXTRAS}]")
    finally:
        done.set()
        reporter.join()


def report_progress(venv: Path, total: int, done: threading.Event) -> None:
    """Print a line now and then while pip is silent: it installs for minutes without a word."""
    start = time.monotonic()
    while not done.wait(HEARTBEAT_S):
        count = len(list(venv.glob("lib/python*/site-packages/*.dist-info")))
        say(f"  ... {time.monotonic() - start:.0f} s, {count} of about {total} packages in place")


def dependency_key() -> str:
    """Hash what decides the third-party packages: dependency lists, constraints and the Python release."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], project["optional-dependencies"], project["requires-python"]]
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    return digest(json.dumps([lists, pins, sys.version_info[:2]], sort_keys=True))


def project_key() -> str:
    """Hash what the editable installation records: the folder, the entry points and the rest of pyproject.toml."""
    return digest(f"{ROOT}\n{(ROOT / 'pyproject.toml').read_text()}")


def digest(text: str) -> str:
    """Return a short hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def pip(venv: Path, *arguments: str) -> None:
    """Run the environment's pip."""
    subprocess.run([str(venv / "bin" / "python"), "-m", "pip", *arguments, "--disable-pip-version-check"], check=True)


def read(path: Path) -> str:
    """Return the text of a stamp, or nothing where there is none."""
    return path.read_text() if path.exists() else ""


def say(line: str) -> None:
    """Print one line at once."""
    print(line, flush=True)


def fail(sentence: str) -> int:
    """Say what is wrong and return the exit status for it."""
    print(f"setup: error: {sentence}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
