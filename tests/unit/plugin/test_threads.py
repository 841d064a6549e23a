"""Threads of the model: no more than the cores, and no more than a container may use of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dspark_sglang.threads import core_count, cpu_quota, default_threads


def _system(root: Path, groups: str, **files: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        # In a container the process sees its own group as the root.
        ("0::/\n", {"cpu_DOT_max": "350000 100000\n"}, 3.5),
        ("0::/\n", {"cpu_DOT_max": "max 100000\n"}, None),
        ("0::/\n", {}, None),
        # On a host: a group of its own, and one above it that allows less.
        ("0::/a/b\n", {"a__b__cpu_DOT_max": "400000 100000\n", "a__cpu_DOT_max": "200000 100000\n"}, 2.0),
        # Version 1.
        (
            "4:memory:/x\n3:cpu,cpuacct:/x\n",
            {"cpu,cpuacct__x__cpu_DOT_cfs_quota_us": "150000", "cpu,cpuacct__x__cpu_DOT_cfs_period_us": "100000"},
            1.5,
        ),
        (
            "3:cpu:/\n0::/\n",
            {"cpu__cpu_DOT_cfs_quota_us": "-1", "cpu__cpu_DOT_cfs_period_us": "100000"},
            None,
        ),
        ("0::/\n", {"cpu_DOT_max": "garbage\n"}, None),
    ],
)
def test_the_quota_of_the_groups_is_read(
    tmp_path: Path, groups: str, files: dict[str, str], quota: float | None
) -> None:
    assert cpu_quota(_system(tmp_path, groups, **files)) == quota


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None


@pytest.mark.parametrize(("quota", "cores"), [("50000", 1), ("350000", 3), ("9900000", 16), ("max", 16)])
def test_part_of_a_core_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert core_count(_system(tmp_path, "0::/\n", cpu_DOT_max=f"{quota} 100000\n")) == cores


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (8, 7)])
def test_one_core_is_left_for_http(monkeypatch: pytest.MonkeyPatch, cores: int, threads: int) -> None:
    monkeypatch.setattr("dspark_sglang.threads.core_count", lambda: cores)
    assert default_threads() == threads
