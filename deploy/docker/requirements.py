"""Print what serving needs, one requirement a line: ``requirements.py PYPROJECT``.

The image installs this before it copies the source, so that a change of the source does not install it again.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main(path: str) -> None:
    """Print the dependencies and those of the extra serve."""
    project = tomllib.loads(Path(path).read_text())["project"]
    for requirement in [*project["dependencies"], *project["optional-dependencies"]["serve"]]:
        sys.stdout.write(f"{requirement}\n")


if __name__ == "__main__":
    main(sys.argv[1])
