"""The page: self-contained, served as it is, and it asks for metrics that exist."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("fastapi")

from fastapi import FastAPI
from fastapi.testclient import TestClient

from dspark_sglang import ui
from dspark_sglang.metrics.definitions import BY_NAME

TEXT = ui.PAGE.read_text(encoding="utf-8")


def test_the_page_is_served_and_may_load_nothing_from_elsewhere() -> None:
    app = FastAPI()
    ui.add_routes(app)
    answer = TestClient(app).get("/dspark/ui")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.text == TEXT


def test_nothing_in_it_points_elsewhere() -> None:
    assert re.findall(r"https?://", TEXT) == []
    assert re.findall(r"(?:src|href)=\"(?!data:)", TEXT) == []


def test_every_metric_that_it_reads_exists() -> None:
    names = set(re.findall(r"dspark_[a-z_]+[a-z]\b", TEXT))
    made = {f"dspark_calibration_{part}_total" for part in ("judged", "accepted", "confidence")}
    made |= {f"dspark_{kind}_length_tokens_{end}" for kind in ("verify", "accept") for end in ("sum", "count")}
    for name in names | made:
        base = re.sub(r"_(sum|count)$", "", name)
        assert name in BY_NAME or base in BY_NAME, name
