"""``/metrics`` under the names that SGLang documents, whoever scrapes it."""

from __future__ import annotations

from typing import Any


class PlainText:
    """An ASGI application that is always asked for Prometheus's text format.

    Parameters
    ----------
    app : ASGI application
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request as if it had no preference."""
        if scope["type"] == "http":
            headers = [(name, value) for name, value in scope["headers"] if name.lower() != b"accept"]
            scope = {**scope, "headers": headers}
        await self._app(scope, receive, send)


def keep_names(result: Any, app: Any) -> Any:
    """Wrap the route that SGLang has just added.

    Upstream: prometheus_client answers OpenMetrics to those who ask for it, as Prometheus 2 does, and there writes
    sglang_num_running_reqs for sglang:num_running_reqs, so that every dashboard and rule of SGLang's names is empty.
    Remove when its names have no colon.
    """
    route = app.routes[-1]
    route.app = PlainText(route.app)
    return result
