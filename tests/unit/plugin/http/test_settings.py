"""Flags of the HTTP interface, and what they are handed on as."""

from __future__ import annotations

import os
from argparse import ArgumentParser

import pytest

from dspark_sglang.commands import serve
from dspark_sglang.http.settings import VARIABLE, HttpSettings, set_http
from sgl_dspark.errors import ConfigError


def settings(monkeypatch: pytest.MonkeyPatch, *flags: str, before: str = "") -> HttpSettings:
    monkeypatch.setenv(VARIABLE, before)
    parser = ArgumentParser()
    serve.add_arguments(parser)
    set_http(parser.parse_args(list(flags)))
    return HttpSettings.from_environment()


def test_nothing_given_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings(monkeypatch) == HttpSettings()
    assert os.environ[VARIABLE] == ""


def test_every_flag_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--any-model", "--max-body-mib", "0.5", "--drain-timeout", "7", "--cors-origins", "http://a, http://b")
    found = settings(monkeypatch, *flags)
    assert found == HttpSettings(
        any_model=True, max_body_mib=0.5, drain_timeout=7, cors_origins=("http://a", "http://b")
    )
    assert found.limit_bytes == 2**19


def test_no_origin_and_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(monkeypatch, "--cors-origins", "none", "--max-body-mib", "0")
    assert (found.cors_origins, found.limit_bytes) == ((), None)


def test_flags_are_laid_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(monkeypatch, "--drain-timeout", "3", before='{"layer": false, "drain_timeout": 9}')
    assert (found.layer, found.drain_timeout) == (False, 3)


@pytest.mark.parametrize(
    ("flags", "before", "named"),
    [
        (("--drain-timeout", "0"), "", "--drain-timeout: Input should be greater than 0"),
        (("--max-body-mib", "-1"), "", "--max-body-mib"),
        (("--drain-timeout", "nan"), "", "--drain-timeout"),
        ((), "{", VARIABLE),
        ((), '{"no_such": 1}', "no_such"),
    ],
)
def test_what_is_refused_is_named(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], before: str, named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        settings(monkeypatch, *flags, before=before)
