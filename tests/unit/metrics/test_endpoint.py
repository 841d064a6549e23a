"""The endpoint answers every scraper in the format that keeps SGLang's names."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")

from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry, Gauge, make_asgi_app
from starlette.routing import Mount

from dspark_sglang.metrics.endpoint import keep_names

OPEN_METRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


@pytest.mark.parametrize("accept", [OPEN_METRICS, "text/plain", "*/*"])
def test_names_with_colons_stay(accept: str) -> None:
    registry, app = CollectorRegistry(), FastAPI()
    Gauge("sglang:num_running_reqs", "x", registry=registry).set(3)
    app.routes.append(Mount("/metrics", make_asgi_app(registry=registry)))
    keep_names(None, app)
    answer = TestClient(app).get("/metrics/", headers={"Accept": accept})
    assert answer.status_code == 200
    assert "sglang:num_running_reqs 3.0" in answer.text
