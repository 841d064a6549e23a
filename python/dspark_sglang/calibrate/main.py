"""What ``dspark calibrate`` does with its options: collect, fit, report, store."""

from __future__ import annotations

import sys
import tempfile
import time
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

from dspark_sglang.bench import arms
from dspark_sglang.calibrate import collect
from dspark_sglang.calibrate.source import Server
from sgl_dspark.calibration import store
from sgl_dspark.calibration.choose import fit_kind
from sgl_dspark.calibration.records import GREEDY, KINDS, SAMPLED, RecordSet
from sgl_dspark.config import DrafterConfig
from sgl_dspark.cores import has_gpu, model_threads, plan_cores, usable_cores
from sgl_dspark.data.prompt_set import load_prompts, order_prompts, prompts_hash
from sgl_dspark.errors import ConfigError, DataError
from sgl_dspark.reports.reliability import calibration_table, save_reliability_diagram


@dataclass(frozen=True)
class Draft:
    """The draft that is calibrated.

    Attributes
    ----------
    path : Path
    gamma : int
    sha256 : str
        Of its weights.
    """

    path: Path
    gamma: int
    sha256: str

    @classmethod
    def at(cls, path: Path) -> Draft:
        """Read a draft's folder; raises `DsparkError` if it is none."""
        path = path.expanduser()
        return cls(path, DrafterConfig.from_dir(path).gamma, store.draft_sha256(path))


def run(args: Namespace) -> int:
    """Collect, fit, print, store; returns 0.

    Raises
    ------
    DsparkError
        If the options do not fit, a server fails, or no round could be collected.
    """
    check_options(args)
    if args.url:
        draft = Draft.at(args.draft)
        collected = _from_server(Server(args.url), args)
    else:
        pair = arms.find_pair(args)
        draft = Draft.at(Path(pair.draft))
        collected = _from_own_server(pair, args)
    _conclude(collected, draft, args)
    return 0


def check_options(args: Namespace) -> None:
    """Raise `ConfigError` for options that exclude each other or name a folder that is not there."""
    if args.url and (args.target or args.server_flags):
        raise ConfigError("--url calibrates a server that runs already; leave out --target and the flags after --")
    if args.url and not args.draft:
        raise ConfigError("--url needs --draft as well: the draft that the server serves, for its hash")
    if not 0 < args.held_out < 1:
        raise ConfigError("--held-out must be between 0 and 1, for example 0.3")
    for option, path in (("--out", args.out), ("--plot", args.plot), ("--records", args.records)):
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"there is no folder {path.parent} for {option}; make it first")
    if args.server_flags and not args.server_flags[0].startswith("--"):
        raise ConfigError(f"unexpected argument {args.server_flags[0]!r}; flags of the server go after --")


def _from_server(server: Server, args: Namespace) -> collect.Collected:
    if args.prompts is None:
        return collect.by_traffic(server, args.rounds, args.wait, args.held_out, _log)
    return _ask_prompts(server, args)


def _from_own_server(pair: arms.Pair, args: Namespace) -> collect.Collected:
    usable = usable_cores()
    cores = plan_cores("none", usable, threads=model_threads(), gpu=has_gpu())
    with tempfile.TemporaryDirectory(prefix="dspark-calibrate-") as folder:
        made = arms.server_arms(args.server_flags, pair, cores, Path(folder), startup_s=args.startup_timeout)
        chosen = {arm.name: arm for arm in made}[arms.DSPARK]
        _log("starting the server")
        with chosen.open() as url:
            return _ask_prompts(Server(url), args)


def _ask_prompts(server: Server, args: Namespace) -> collect.Collected:
    prompts = order_prompts(load_prompts(args.prompts), args.seed)
    prompts = prompts[: args.limit] if args.limit else prompts
    asking = collect.Asking(args.temperatures, args.concurrency, args.max_tokens, args.timeout)
    found = collect.by_prompts(server, prompts, args.held_out, asking, _log)
    origin = {
        "prompts_file": args.prompts.name if args.prompts else "built-in",
        "prompts_sha256": prompts_hash(prompts),
    }
    return collect.Collected(found.fit, found.held_out, {**found.source, **origin})


def _conclude(collected: collect.Collected, draft: Draft, args: Namespace) -> None:
    fit, held_out = collected.fit, collected.held_out
    if fit.gamma != draft.gamma:
        raise DataError(f"the server drafts {fit.gamma} tokens, {draft.path} {draft.gamma}; name the draft it serves")
    if args.records is not None:
        RecordSet.concat([fit, held_out]).save(args.records)
    kinds = {name: fit_kind(fit.kind(i), held_out.kind(i), args.method) for i, name in enumerate(KINDS)}
    counts = {name: {"fit": len(fit.kind(i)), "held_out": len(held_out.kind(i))} for i, name in enumerate(KINDS)}
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    made = store.Calibration(
        draft.gamma,
        draft.sha256,
        kinds[KINDS[GREEDY]],
        kinds[KINDS[SAMPLED]],
        {"date": when, "rounds": counts, "held_out_share": args.held_out, **collected.source},
    )
    for name in KINDS:
        _report(name, made.kind(name), counts[name])
    out = args.out or draft.path / store.FILE_NAME
    made.save(out)
    sys.stdout.write(f"written: {out}\n")
    if args.plot is not None:
        panels = {name: (made.kind(name).map, held_out.kind(i)) for i, name in enumerate(KINDS)}
        save_reliability_diagram(args.plot, panels)
        sys.stdout.write(f"drawn: {args.plot}\n")


def _report(name: str, kind: store.KindCalibration, counts: dict[str, int]) -> None:
    if kind.method == "identity":
        _log(f"{name}: {counts['fit']} rounds are too few to fit; it stays as the draft says")
        return
    sys.stdout.write(calibration_table(name, kind) + "\n\n")
    if counts["held_out"] < collect.FEW_ROUNDS:
        _log(f"{name}: {counts['held_out']} held-out rounds tell ECE only to within the column 'by chance'")


def _log(line: str) -> None:
    sys.stderr.write(f"calibrate: {line}\n")
    sys.stderr.flush()
