"""The training study: each experiment of the paper's offline part, from data to table and plot, by one command.

    python tools/study.py table1 --work runs/study --out docs/results
    python tools/study.py --list

Runs are trained by `dspark train` and measured by `dspark evaluate`; what is done is not done again, and what was
interrupted is continued. Data is made once per pair in the work folder (tools/make_draft.py), or given by --cache.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import study_report
from make_draft import PRESETS, ROOT, make_data


@dataclass(frozen=True)
class Arm:
    """One draft to train, once per seed.

    Attributes
    ----------
    name : str
    overrides : dict
        Fields of the recipe.
    """

    name: str
    overrides: dict[str, object]


@dataclass(frozen=True)
class Experiment:
    """What one command regenerates.

    Attributes
    ----------
    title, reference : str
        Heading, and what of the paper it corresponds to.
    pair : {"fixture", "smollm2"}
    steps : int
    arms : tuple of Arm
    evaluation : tuple of str
        Options of `dspark evaluate`.
    report : callable
        Writes Markdown and plots from the evaluations.
    passes : dict
        Further evaluations of the same drafts: suffix to options.
    seeds : tuple of int
        One run of every arm each.
    least : int
        Leave out of the draft's vocabulary what its data has fewer times; 0 leaves nothing out.
    """

    title: str
    reference: str
    pair: str
    steps: int
    arms: tuple[Arm, ...]
    evaluation: tuple[str, ...]
    report: study_report.Report
    passes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    seeds: tuple[int, ...] = (1, 2)
    least: int = 0


# A pass of its own, after all that is not timed: times are wanted from a machine that does nothing else.
LATENCY = ("--limit", "1", "--latency", "1", "32")
SHORTLISTS = (8, 16, 32, 64, 256)
# Seven slots and steps enough to tell the arms apart in half an hour of one core each.
BLOCK, STEPS, FIXTURE_STEPS = {"draft.gamma": 7}, 1500, 400
DSPARK = Arm("dspark", BLOCK)
DFLASH = Arm(
    "dflash",
    {**BLOCK, "draft.kind": "dflash", "draft.markov_rank": 0, "draft.confidence": False, "loss.ce_first": 0},
)
RNN = Arm("rnn", {**BLOCK, "draft.markov_head": "rnn"})
EAGLE3 = Arm(
    "eagle3",
    {
        **BLOCK, "draft.kind": "eagle3", "draft.markov_rank": 0, "draft.confidence": False, "draft.layers": 1,
        "loss.ce_first": 0, "loss.decay": None,
    },
)  # fmt: skip


def _with(arm: Arm, name: str, **overrides: object) -> Arm:
    fields = {key.replace("__", "."): value for key, value in overrides.items()}
    return Arm(f"{arm.name}-{name}", {**arm.overrides, **fields})


EXPERIMENTS = {
    "shipped": Experiment(
        "The demo draft", "the accept lengths of Table 1, for the draft in checkpoints/", "smollm2", 10_000,
        (Arm("shipped", {}),), ("--temperatures", "1", "0"), study_report.shipped, seeds=(1,), least=20,
    ),
    "table1": Experiment(
        "Accept length of DSpark, DFlash and an Eagle3-style draft", "Table 1 and figure 2", "smollm2", STEPS,
        (DSPARK, DFLASH, EAGLE3), ("--temperatures", "1"), study_report.table1,
        {"table1-latency": LATENCY},
    ),
    "depth": Experiment(
        "Draft depth", "figure 3", "fixture", FIXTURE_STEPS,
        (
            *(_with(DSPARK, f"layers-{n}", draft__layers=n) for n in (1, 2, 3, 5)),
            _with(DFLASH, "layers-5", draft__layers=5),
        ),
        ("--temperatures", "1"), study_report.depth,
    ),
    "length": Experiment(
        "Draft length", "figure 4", "fixture", FIXTURE_STEPS,
        tuple(
            _with(arm, f"gamma-{gamma}", draft__gamma=gamma)
            for gamma in (3, 7, 11, 15)
            for arm in (DSPARK, RNN, DFLASH)
        ),
        ("--temperatures", "1"), study_report.length, {"length-latency": LATENCY},
    ),
    "thresholds": Experiment(
        "Confidence thresholds", "figure 5", "smollm2", STEPS, (DSPARK,),
        ("--temperatures", "1", "--limit", "12", "--thresholds", "0.2", "0.3", "0.4", "0.5", "0.6", "0.8"),
        study_report.thresholds,
    ),
    "calibration": Experiment(
        "Calibration, by temperature", "figure 6", "smollm2", STEPS, (DSPARK,),
        ("--temperatures", "1", "0.7", "0.3", "0", "--limit", "20"), study_report.calibration,
    ),
    "shortlist": Experiment(
        "Shortlist size", "left open by the paper", "smollm2", STEPS, (DSPARK,),
        ("--temperatures", "1", "--limit", "12"), study_report.shortlist,
        {
            **{f"shortlist-{n}": ("--shortlist", str(n)) for n in SHORTLISTS},
            **{f"shortlist-{n}-latency": (*LATENCY, "--shortlist", str(n)) for n in SHORTLISTS},
            "shortlist-latency": LATENCY,
        },
    ),
    "decay": Experiment(
        "Decay of the slot weights", "left open by the paper", "fixture", FIXTURE_STEPS,
        tuple(_with(DSPARK, f"decay-{d:g}", loss__decay=d) for d in (2.5, 4.0, 7.0)),
        ("--temperatures", "1"), study_report.decay,
    ),
}  # fmt: skip


def command(log: Path, *arguments: object) -> None:
    """Run one ``dspark`` command, its output in a log; stop with the log's name if it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as sink:
        sink.write("$ dspark " + " ".join(map(str, arguments)) + "\n")
        sink.flush()
        line = [sys.executable, "-m", "sgl_dspark.cli", *map(str, arguments)]
        status = subprocess.call(line, cwd=ROOT, stdout=sink, stderr=subprocess.STDOUT)
    if status:
        raise SystemExit(f"study: a command failed with status {status}; see {log}")


def train(experiment: Experiment, arm: Arm, seed: int, target: Path, data: Path, work: Path, args: Namespace) -> Path:
    """Train one arm; return its draft."""
    caches, held_out = args.cache or [data / "cache"], args.held_out or data / "held-out"
    run = work / "runs" / f"{experiment.pair}-{args.steps or experiment.steps}" / f"{arm.name}-{seed}"
    draft = run / "draft"
    if not (draft / "config.json").is_file():
        fields = {
            "target": target, "data.caches": [str(path.resolve()) for path in caches],
            "data.held_out": [str(held_out.resolve())], "optim.steps": args.steps or experiment.steps,
            "optim.seed": seed, "output.folder": run, "output.tensorboard": False, "device": args.device,
            **arm.overrides,
        }  # fmt: skip
        given = [f"{name}={json.dumps(v) if not isinstance(v, Path) else v}" for name, v in fields.items()]
        say(f"training {arm.name}, seed {seed}")
        command(run / "train.log", "train", ROOT / "recipes" / PRESETS[experiment.pair].recipe, *given)
    return draft


def limit(draft: Path, least: int, caches: Sequence[Path]) -> Path:
    """Leave rare tokens out of a draft's vocabulary; return the limited draft."""
    out = draft.parent / "limited"
    if not (out / "config.json").is_file():
        options = ("--draft-vocabulary", *caches, "--least", str(least))
        command(draft.parent / "convert.log", "convert", draft, out, *options)
    return out


def evaluate(
    draft: Path, target: Path, files: Sequence[Path], options: Sequence[str], suffix: str, args: Namespace
) -> Path:
    """Measure one draft; return the folder of its evaluation."""
    out = draft.parent / f"evaluation-{suffix}"
    if not (out / "evaluation.json").is_file():
        say(f"evaluating {draft.parent.name}, {suffix}")
        command(
            draft.parent / "evaluate.log", "evaluate", "--target", target, "--draft", draft, "--prompts", *files,
            "--max-new-tokens", "256", "--device", args.device, "--out", out, *options,
        )  # fmt: skip
    return out


def conduct(name: str, args: Namespace) -> None:
    """Run one experiment and write its report."""
    started = time.monotonic()
    experiment, work = EXPERIMENTS[name], args.work.resolve()
    data = work / experiment.pair
    target, sets = make_data(PRESETS[experiment.pair], experiment.pair, data, None, args.device, made=bool(args.cache))
    found, seeds, drafts = [], tuple(args.seeds or experiment.seeds), {}
    for seed, arm in itertools.product(seeds, experiment.arms):
        draft = train(experiment, arm, seed, target, data, work, args)
        if experiment.least:
            draft = limit(draft, experiment.least, args.cache or [data / "cache"])
        drafts[arm.name, seed] = draft
    for (suffix, options), ((arm_name, seed), draft) in itertools.product(
        {name: (), **experiment.passes}.items(), drafts.items()
    ):
        folder = evaluate(draft, target, list(sets.values()), (*experiment.evaluation, *options), suffix, args)
        found.append(study_report.Result.read(arm_name, seed, suffix, folder, draft.parent))
    args.out.mkdir(parents=True, exist_ok=True)
    about = study_report.About(
        name, experiment.title, experiment.reference, experiment.pair, args.steps or experiment.steps, seeds
    )
    path = experiment.report(about, found, args.out)
    say(f"{path} written; this call took {time.monotonic() - started:.0f} s")


def say(line: str) -> None:
    """Write one line of progress."""
    sys.stderr.write(f"study: {line}\n")
    sys.stderr.flush()


def main() -> int:
    """Run the experiments that are named."""
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=", ".join(EXPERIMENTS))
    parser.add_argument("--list", action="store_true", help="show what there is")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "study", help="data, runs, evaluations")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", help="folder of reports and plots")
    parser.add_argument("--seeds", type=int, nargs="+", default=None, help="instead of the experiment's own")
    parser.add_argument("--cache", type=Path, nargs="+", default=None, help="data caches of the pair, made before")
    parser.add_argument("--held-out", type=Path, default=None, help="held-out cache, made before")
    parser.add_argument("--steps", type=int, default=None, help="optimiser steps instead of the experiment's own")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    args = parser.parse_args()
    if args.list or not args.experiments:
        for name, experiment in EXPERIMENTS.items():
            sys.stdout.write(f"{name:<12} {experiment.title} ({experiment.reference}), {experiment.pair}\n")
        return 0
    if (args.cache is None) != (args.held_out is None):
        parser.error("--cache and --held-out are given together or not at all")
    unknown = [name for name in args.experiments if name not in EXPERIMENTS]
    if unknown:
        parser.error(f"unknown experiment {unknown[0]!r}; there are {', '.join(EXPERIMENTS)}")
    for name in args.experiments:
        conduct(name, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
