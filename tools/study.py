"""The training study: each experiment of the paper's offline part, from data to table and plot, by one command.

    python tools/study.py table1 --work runs/study --out docs/results
    python tools/study.py --list

Runs are trained by `dspark train` and measured by `dspark evaluate`; what is done is not done again, what was
interrupted is continued, and what was made of another recipe, of other data or of other prompts is refused. Data is
made once per pair in the work folder (tools/make_draft.py), or given by --cache.
"""

from __future__ import annotations

import itertools
import sys
import time
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field, replace
from pathlib import Path

import study_report
import study_runs
from make_draft import PRESETS, ROOT, make_data

from sgl_dspark.data.cache import TargetCache


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
        Of the optimiser; 0 for an experiment with the committed draft, which trains nothing.
    arms : tuple of Arm
    evaluation : tuple of str
        Options of `dspark evaluate`.
    report : callable
        Writes Markdown and plots from the evaluations.
    passes : dict
        Further evaluations of the same drafts: suffix to options.
    seeds : tuple of int
        One run of every arm each; where nothing is trained, one evaluation each.
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
SHIPPED, SHIPPED_DRAFT = Arm("shipped", {}), ROOT / "checkpoints" / "smollm2-135m-dspark"
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
        (SHIPPED,), ("--temperatures", "1", "0"), study_report.shipped, seeds=(1,), least=20,
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
        ("--temperatures", "1"), study_report.per_arm,
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
        "Confidence thresholds", "figure 5", "smollm2", 0, (SHIPPED,),
        ("--temperatures", "1", "--limit", "12", "--thresholds", "0.2", "0.3", "0.4", "0.5", "0.6", "0.8"),
        study_report.thresholds,
    ),
    "calibration": Experiment(
        "Calibration, by temperature", "figure 6", "smollm2", 0, (SHIPPED,),
        ("--temperatures", "1", "0.7", "0.3", "0", "--limit", "20"), study_report.calibration,
    ),
    "shortlist": Experiment(
        "Shortlist size", "left open by the paper", "smollm2", 0, (SHIPPED,),
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
        ("--temperatures", "1"), study_report.per_arm,
    ),
}  # fmt: skip


def train(experiment: Experiment, arm: Arm, seed: int, target: Path, data: Path, work: Path, args: Namespace) -> Path:
    """Train one arm; return its draft, of the whole vocabulary or of a limited one."""
    caches = [path.resolve() for path in args.cache or [data / "cache"]]
    held_out = args.held_out or data / "held-out"
    steps = args.steps or experiment.steps
    fields = {
        "target": target, "data.caches": [str(path) for path in caches],
        "data.held_out": [str(held_out.resolve())], "optim.steps": steps, "optim.seed": seed,
        "output.tensorboard": False, "device": args.device, **arm.overrides,
    }  # fmt: skip
    run = work / "runs" / f"{data.name}-{steps}" / f"{arm.name}-{seed}"
    draft = study_runs.train(ROOT / "recipes" / PRESETS[experiment.pair].recipe, fields, run)
    return study_runs.limit(draft, experiment.least, caches) if experiment.least else draft


def conduct(name: str, args: Namespace) -> None:
    """Run one experiment and write its report."""
    started = time.monotonic()
    experiment, work, preset = EXPERIMENTS[name], args.work.resolve(), PRESETS[EXPERIMENTS[name].pair]
    data = work / experiment.pair
    if args.prompts is not None:
        # Data of another size is other data: it has a folder of its own, and so have its runs.
        preset, data = replace(preset, prompts=args.prompts), work / f"{experiment.pair}-{args.prompts}"
    trains = experiment.steps > 0
    target, sets = make_data(preset, experiment.pair, data, None, args.device, made=bool(args.cache) or not trains)
    found, seeds = [], tuple(args.seeds or experiment.seeds)
    drafts = {
        (arm.name, seed): train(experiment, arm, seed, target, data, work, args) if trains else SHIPPED_DRAFT
        for seed, arm in itertools.product(seeds, experiment.arms)
    }
    for (suffix, options), ((arm_name, seed), draft) in itertools.product(
        {name: (), **experiment.passes}.items(), drafts.items()
    ):
        asked = ["--device", args.device, *experiment.evaluation, *options]
        folder = draft.parent / f"evaluation-{suffix}"
        if not trains:
            asked += ["--seed", str(seed)]
            folder = work / "runs" / draft.name / f"evaluation-{suffix}-{seed}"
        study_runs.evaluate(draft, target, list(sets.values()), asked, folder)
        found.append(study_report.Result.read(arm_name, seed, suffix, folder, draft.parent))
    args.out.mkdir(parents=True, exist_ok=True)
    caches = (args.cache or [data / "cache"]) if trains else []
    answers = sum(e.conversations for cache in caches for e in TargetCache.open(cache).shards)
    size = answers if args.cache else args.prompts
    about = study_report.About(
        name, experiment.title, experiment.reference, experiment.pair, args.steps or experiment.steps, seeds, answers,
        "" if size is None else f" --prompts {size}",
    )  # fmt: skip
    path = experiment.report(about, found, args.out)
    study_runs.say(f"{path} written; this call took {time.monotonic() - started:.0f} s")


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
    parser.add_argument("--prompts", type=int, default=None, help="training prompts instead of the pair's own number")
    parser.add_argument("--steps", type=int, default=None, help="optimiser steps instead of the experiment's own")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    args = parser.parse_args()
    if args.list or not args.experiments:
        for name, experiment in EXPERIMENTS.items():
            sys.stdout.write(f"{name:<12} {experiment.title} ({experiment.reference}), {experiment.pair}\n")
        return 0
    if (args.cache is None) != (args.held_out is None):
        parser.error("--cache and --held-out are given together or not at all")
    if args.cache is not None and args.prompts is not None:
        parser.error("--prompts makes data, --cache takes what is there; give one of them")
    unknown = [name for name in args.experiments if name not in EXPERIMENTS]
    if unknown:
        parser.error(f"unknown experiment {unknown[0]!r}; there are {', '.join(EXPERIMENTS)}")
    made = (args.cache, args.prompts, args.steps)
    trainless = [name for name in args.experiments if EXPERIMENTS[name].steps == 0]
    if trainless and any(given is not None for given in made):
        parser.error(f"{trainless[0]} is of the committed draft: --cache, --prompts and --steps mean nothing to it")
    for name in args.experiments:
        conduct(name, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
