"""What ``dspark profile`` does: gets a step-time model from a server or a file and shows it."""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark_sglang.bench import arms
from dspark_sglang.calibrate.source import Server, ServerError
from sgl_dspark.comparison import without_flags
from sgl_dspark.cores import has_gpu, model_threads, plan_cores, usable_cores
from sgl_dspark.errors import ConfigError, ProfileError
from sgl_dspark.reports.step_time import load_curves, save_step_time_plot, step_time_plot, step_time_table
from sgl_dspark.sps.store import from_document


@dataclass(frozen=True)
class Shown:
    """A model to show.

    Attributes
    ----------
    document : dict
        See `sgl_dspark.sps.store.to_document`.
    gamma : int
    title : str
        What was measured.
    """

    document: dict[str, Any]
    gamma: int
    title: str


def show(args: Namespace) -> None:
    """Print the table and the plot; write what was asked for.

    Raises
    ------
    DsparkError
        If the options exclude each other, or the server or the file has no step times.
    """
    if sum(bool(source) for source in (args.url, args.file, args.target or args.draft or args.server_flags)) > 1:
        raise ConfigError("--url, --file and a pair to start exclude each other; give one of them")
    for option, path in (("--plot", args.plot), ("--json", args.json)):
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"there is no folder {path.parent} for {option}; make it first")
    shown = _of_file(args.file) if args.file else _of_server(args.url) if args.url else _of_own_server(args)
    model = from_document(shown.document)
    curves = load_curves(model, args.requests, shown.gamma, args.context, args.acceptance)
    sys.stdout.write(f"{shown.title}\n\n{step_time_table(curves)}\n\n{step_time_plot(curves)}\n")
    if args.plot is not None:
        save_step_time_plot(args.plot, curves, shown.title)
        sys.stdout.write(f"\nplot: {args.plot}\n")
    if args.json is not None:
        args.json.write_text(json.dumps(shown.document, indent=1) + "\n", encoding="utf-8")


def _of_file(path: Path) -> Shown:
    """Read a profile whatever machine it is of: it is looked at, not served with."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        conditions = stored["fingerprint"]
        return Shown(stored["model"], int(conditions["gamma"]), _title(conditions))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProfileError(f"{path} is not a step-time profile ({error}); a server writes one at its start") from error


def _title(conditions: dict[str, Any]) -> str:
    names = ("target", "gamma", "dtype", "device name", "threads")
    return ", ".join(f"{name} {conditions[name]}" for name in names if name in conditions)


def _of_server(url: str) -> Shown:
    address = url.rstrip("/").removesuffix("/v1")
    state = Server(address).ask("/dspark/state")
    state = state.get("replicas", [state])[0]
    times = state.get("step_time", {})
    document = times.get("corrected") or times.get("model")
    if document is None:
        raise ServerError(f"{address} has no step times: its attention backend verifies whole blocks only")
    steps = times.get("online", {}).get("observations", 0)
    identity = state["model"]
    title = f"{identity.get('target')} with {identity.get('draft')}: {times['source']}, corrected by {steps} steps"
    return Shown(document, int(identity["gamma"]), title)


def _of_own_server(args: Namespace) -> Shown:
    pair = arms.find_pair(args)
    cores = plan_cores("auto", usable_cores(), threads=model_threads(), gpu=has_gpu())
    flags = ["--step-time-profile", "off", *without_flags(args.server_flags, ("--step-time-profile",))]
    with tempfile.TemporaryDirectory() as logs:
        made = arms.server_arms(flags, pair, cores, Path(logs), startup_s=args.startup_timeout)
        arm = next(a for a in made if a.name == arms.DSPARK)
        sys.stderr.write("profile: starting the server, which measures\n")
        with arm.open() as url:
            return _of_server(url)
