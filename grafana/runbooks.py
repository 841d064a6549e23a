"""Print the alerts with links to their pages, for an Alertmanager whose messages should carry them.

    python -m grafana.runbooks https://HOST/sgl-dspark/docs/runbooks > alerts.yaml

`grafana/alerts.yaml` names each page by its path in this repository, which is no link; where the pages are published is
known to whoever publishes them. Load the file that this prints in the place of grafana/alerts.yaml.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

ALERTS = Path(__file__).parent / "alerts.yaml"
PAGE = re.compile(r"^( *)runbook: docs/runbooks/(\w+\.md)$", re.MULTILINE)


def linked(text: str, base: str) -> str:
    """Return the alerts with a ``runbook_url`` beside each ``runbook``.

    Parameters
    ----------
    text : str
        Alerts, as in grafana/alerts.yaml.
    base : str
        Address of the folder of pages, with or without a slash at its end.

    Raises
    ------
    ValueError
        If ``base`` is no http or https address, or holds a quote, a brace or a space.
    """
    if urlsplit(base).scheme not in ("http", "https") or not urlsplit(base).netloc or re.search(r"[\s\"'{}]", base):
        raise ValueError(f"the address of the pages must be such as https://HOST/docs/runbooks, not {base!r}")
    return PAGE.sub(rf'\g<0>\n\g<1>runbook_url: "{base.rstrip("/")}/\g<2>"', text)


def main() -> int:
    """Print them; 2 with one sentence if the address is missing or is none."""
    try:
        (base,) = sys.argv[1:]
        print(linked(ALERTS.read_text(encoding="utf-8"), base), end="")
    except ValueError as error:
        said = error if len(sys.argv) == 2 else "usage: python -m grafana.runbooks https://HOST/docs/runbooks"
        print(f"runbooks: {said}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
