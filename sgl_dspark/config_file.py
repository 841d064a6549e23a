"""``config.json`` of a checkpoint folder, of whatever layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sgl_dspark.errors import ConfigError


def read_config_file(folder: Path) -> dict[str, Any]:
    """Read ``config.json`` of a checkpoint folder; raises `ConfigError` if it is missing or no object."""
    file = folder / "config.json"
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: give the folder of a draft checkpoint.") from error
    except ValueError as error:
        raise ConfigError(f"{file} is not valid JSON: {error}.") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{file} must hold a JSON object.")
    return raw
