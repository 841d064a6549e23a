"""Fetch the outside suites that the tests run against a server, and print the folder that holds them.

Everything is pinned with checksums in tests/suites: the clients and suites of PyPI go into an environment of their own,
beside them the source distribution of openai (its tests are not in the wheel) and the packages of npm. A machine
without Node.js gets it from PyPI too. The folder lies in the cache and is named after the pins, so that a second call
only prints it. Runs on a bare Python 3.11 or 3.12.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

PINS = Path(__file__).resolve().parents[1] / "tests" / "suites"
# Lists of what to fetch; the other files of that folder say how it is run.
LISTS = ("clients.txt", "sdist.txt", "npm/package.json", "npm/package-lock.json")
OLDEST_NODE = 20


def main() -> int:
    """Fetch what is missing and print the folder; 1 with one sentence if something cannot be had."""
    folder = suites_folder()
    try:
        if not is_complete(folder):
            fetch_python(folder)
            fetch_sdist(folder)
        if node_folder(folder) is None:
            install(folder, "node.txt")
            if node_folder(folder) is None:
                return fail(f"PyPI's Node.js does not run here; install Node.js {OLDEST_NODE} or later, with npm.")
        if not is_complete(folder):
            fetch_npm(folder)
            (folder / "complete").touch()
    except subprocess.CalledProcessError as error:
        return fail(f"`{' '.join(map(str, error.cmd))}` ended with status {error.returncode}; see its output above.")
    print(folder)
    return 0


def suites_folder() -> Path:
    """Give the folder of the present pins, fetched or not."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(repr(sys.version_info[:2]).encode())
    for name in LISTS:
        digest.update((PINS / name).read_bytes())
    return cache / "sgl-dspark" / f"suites-{digest.hexdigest()[:16]}"


def is_complete(folder: Path) -> bool:
    """Tell whether everything but Node.js has been fetched."""
    return (folder / "complete").exists()


def node_folder(folder: Path) -> Path | None:
    """Give the folder with a usable ``node`` and ``npm``: the machine's, or the one that was fetched; None without."""
    found = shutil.which("node")
    for place in (Path(found).parent if found else None, folder / "venv" / "bin"):
        if place is not None and (place / "node").exists() and (place / "npm").exists():
            told = subprocess.run([place / "node", "--version"], capture_output=True, text=True, check=False).stdout
            version = re.match(r"v(\d+)\.", told)
            if version is not None and int(version[1]) >= OLDEST_NODE:
                return place
    return None


def fetch_python(folder: Path) -> None:
    """Make the environment and install the clients into it."""
    print(f"Fetching the outside suites into {folder}: about 250 MB, half a minute.", file=sys.stderr, flush=True)
    # An environment that was interrupted half way is made anew.
    run(sys.executable, "-m", "venv", "--clear", folder / "venv")
    install(folder, "clients.txt")


def install(folder: Path, name: str) -> None:
    """Install one of the lists into the environment; pip refuses a file whose checksum is not in it."""
    run(folder / "venv" / "bin" / "python", "-m", "pip", "install", "--quiet", "--require-hashes", "-r", PINS / name)


def fetch_sdist(folder: Path) -> None:
    """Download and unpack the source distribution of openai."""
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-binary", "openai", "--require-hashes"]
    pip = [folder / "venv" / "bin" / "python", "-m", "pip", "download"]
    run(*pip, *options, "-r", PINS / "sdist.txt", "-d", folder / "archives")
    (archive,) = (folder / "archives").glob("openai-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "archives", filter="data")
    unpacked = folder / "openai"
    shutil.rmtree(unpacked, ignore_errors=True)
    (folder / "archives" / archive.name.removesuffix(".tar.gz")).rename(unpacked)


def fetch_npm(folder: Path) -> None:
    """Install the packages of npm exactly as locked; none of their scripts is run."""
    node = node_folder(folder)
    assert node is not None
    target = folder / "npm"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for name in ("package.json", "package-lock.json"):
        shutil.copy(PINS / "npm" / name, target)
    paths = {**os.environ, "PATH": f"{node}{os.pathsep}{os.environ.get('PATH', '')}"}
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"]
    run(node / "npm", "ci", *options, cwd=target, env=paths)


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    """Run a command; what it prints goes to standard error, since standard output holds the answer."""
    subprocess.run(command, check=True, stdout=sys.stderr, cwd=cwd, env=env)


def fail(sentence: str) -> int:
    """Say what is wrong and return the exit status for it."""
    print(f"get_suites: error: {sentence}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
