"""``GET /dspark/ui``: one page that draws what the server does, from its own metrics and nothing else."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

PAGE = Path(__file__).parent / "page.html"
# The page needs nothing from anywhere else, and nothing from anywhere else may get into it.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"


def add_routes(app: FastAPI) -> None:
    """Add the page to SGLang's application, once, before it serves."""
    app.add_api_route("/dspark/ui", page, methods=["GET"], response_class=HTMLResponse, include_in_schema=False)


async def page() -> HTMLResponse:
    """Return the page."""
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
    return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers=headers)
