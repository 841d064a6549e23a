"""The page in a real browser, on the real server under traffic: everything is drawn, nothing is logged as an error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import Browser, require
from tests.support.server import ServerProcess
from tests.support.traffic import Visit, serve_all

pytestmark = pytest.mark.server

SHAPES = {"pareto": "circle", "load": "rect", "slots": "rect", "reliability": "circle"}


@pytest.fixture
def traffic(dspark: ServerProcess) -> Iterator[None]:
    """Keep the server busy until the test is over."""
    over = threading.Event()

    def run() -> None:
        turn = 0
        while not over.is_set():
            turn += 1
            serve_all(dspark, [Visit(i, 60, ignore_eos=True) for i in range(8)], 4, f"ui-{turn}")

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_the_page_draws_what_the_server_does(dspark: ServerProcess, traffic: None, tmp_path: Path) -> None:
    require()
    browser = Browser(tmp_path / "profile")
    browser.start()
    try:
        for name, width, height, dark, mobile in (("desk", 1200, 900, False, False), ("phone", 390, 844, True, True)):
            browser.open(f"{dspark.url}/dspark/ui", width, height, dark=dark, mobile=mobile)
            for where, shape in SHAPES.items():
                browser.wait_for(f"document.querySelectorAll('#{where} {shape}').length > 1")
            assert browser.evaluate("document.getElementById('state').textContent") == "live"
            assert "blocks of 7" in browser.evaluate("document.getElementById('what').textContent")
            assert "NaN" not in browser.evaluate("document.querySelector('main').innerHTML")
            assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
            picture = tmp_path / f"{name}.png"
            browser.picture(picture)
            assert picture.stat().st_size > 20_000
        dark_ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert dark_ground == "rgb(15, 20, 27)"
        assert browser.errors == []
    finally:
        browser.stop()
