"""How many threads the model gets on a CPU."""

from __future__ import annotations

from pathlib import Path

from sgl_dspark.cores import usable_cores


def default_threads() -> int:
    """Return all usable cores but one, at least one.

    The remaining core serves HTTP and tokenisation; a model thread that shares its
    core with them makes every small operation wait for it.
    """
    return max(1, core_count() - 1)


def core_count(root: Path = Path("/")) -> int:
    """Return how many cores this process may keep busy: by its affinity, and by the quota of its container.

    Parameters
    ----------
    root : Path
        Where ``proc`` and ``sys`` are.

    Returns
    -------
    int
        At least 1. Part of a core does not count: threads that outnumber a quota are all stopped until its next
        period, every one in the middle of what the others wait for.
    """
    cores = max(1, len(usable_cores()))
    quota = cpu_quota(root)
    return cores if quota is None else max(1, min(cores, int(quota)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return how many cores' time the control groups of this process allow; None without a limit.

    Both versions are read (cgroup v2 ``cpu.max``; v1 ``cpu.cfs_quota_us``), from the process's own group up to the
    root that it sees, as a limit of any of them holds. In a container that root is the container's own group.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base, read = root / "sys/fs/cgroup", _quota_v2
        elif "cpu" in controllers.split(","):
            base, read = root / "sys/fs/cgroup" / controllers, _quota_v1
        else:
            continue
        group = Path(path.lstrip("/"))
        found += [read(base / folder) for folder in (group, *group.parents)]
    return min((quota for quota in found if quota is not None), default=None)


def _quota_v2(folder: Path) -> float | None:
    return _share((_read(folder / "cpu.max") or "").split())


def _quota_v1(folder: Path) -> float | None:
    return _share([_read(folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")])


def _share(numbers: list[str]) -> float | None:
    """Quota over period; "max" (v2) and -1 (v1) are no limit, and neither is a file that is not there."""
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers) or int(numbers[1]) == 0:
        return None
    return int(numbers[0]) / int(numbers[1])


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None
