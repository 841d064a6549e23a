"""A headless Chromium, driven over its DevTools protocol: opens pages, asks them questions, takes pictures."""

from __future__ import annotations

import asyncio
import base64
import itertools
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

START_S, CALL_S = 60.0, 60.0
NAMES = ("chromium", "chromium-browser", "google-chrome")


def require() -> str:
    """Find a browser, or skip."""
    for name in NAMES:
        found = shutil.which(name)
        if found is not None:
            return found
    pytest.skip("no Chromium is installed (Debian: chromium); the page is looked at where there is one")


class Browser:
    """One browser with one page.

    Parameters
    ----------
    folder : Path
        For its profile.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder, itertools.count(1)
        self._loop = asyncio.new_event_loop()
        self._process: subprocess.Popen[bytes] | None = None
        # What the page logged as an error, and exceptions that nothing caught.
        self.errors: list[str] = []

    def start(self) -> None:
        """Start it and connect to its page."""
        command = [
            require(),
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
            *("--no-first-run", "--remote-debugging-port=0", f"--user-data-dir={self._folder}", "about:blank"),
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = self._folder / "DevToolsActivePort"
        deadline = time.monotonic() + START_S
        while not port.is_file() or not port.read_text().strip():
            assert self._process.poll() is None, "Chromium ended at its start"
            assert time.monotonic() < deadline, "Chromium did not start"
            time.sleep(0.1)
        self._loop.run_until_complete(self._connect(int(port.read_text().split()[0])))
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def stop(self) -> None:
        """End it."""
        assert self._process is not None
        if hasattr(self, "_session"):
            self._loop.run_until_complete(self._session.close())
        self._process.terminate()
        self._process.wait(30)
        self._loop.close()

    async def _connect(self, port: int) -> None:
        self._session = aiohttp.ClientSession()
        async with self._session.get(f"http://127.0.0.1:{port}/json") as answer:
            pages = [target for target in await answer.json() if target["type"] == "page"]
        self._socket = await self._session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        return self._loop.run_until_complete(asyncio.wait_for(self._call(method, parameters), CALL_S))

    async def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json()
            if message.get("id") == number:
                assert "error" not in message, message["error"]
                return dict(message["result"])
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(str(message["params"]["exceptionDetails"]))
            if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                self.errors.append(str(message["params"]["entry"]))

    def open(self, url: str, width: int, height: int, *, dark: bool = False, mobile: bool = False) -> None:
        """Open a page in a window of a size, in the light or dark colours."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if mobile else 1,
            mobile=mobile,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression: str, deadline_s: float = 60.0) -> None:
        """Poll until an expression is true; raise at the deadline."""
        deadline = time.monotonic() + deadline_s
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, f"not within {deadline_s} s: {expression}; errors: {self.errors}"
            time.sleep(0.2)

    def picture(self, path: Path) -> None:
        """Write a picture of the whole page as PNG."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))
