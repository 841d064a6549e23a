"""A process that is asked whether it is up, and is too busy to say so, is asked again: no test fails by that."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests

from tests.support.cluster import Gateway
from tests.support.prometheus import Prometheus
from tests.support.server import ServerProcess

LATE = [requests.ConnectionError, requests.ConnectTimeout, requests.ReadTimeout]


@pytest.mark.parametrize("why", LATE)
def test_no_answer_is_not_ready(why: type[Exception], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def busy(*_: object, **__: object) -> None:
        raise why("busy")

    monkeypatch.setattr(requests, "get", busy)
    assert Gateway([], tmp_path / "gateway").ready() == set()
    assert not ServerProcess([], tmp_path / "server")._answers()
    assert not Prometheus(tmp_path, "127.0.0.1:1")._ready()
