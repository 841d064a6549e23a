"""Make a draft from nothing, by the documented commands one after another; each stage is continued or skipped.

    python tools/make_draft.py fixture --work runs/demo             # minutes on one core
    python tools/make_draft.py smollm2 --work runs/smollm2          # hours on one core, minutes on a GPU

Prints every command that it runs. Killed at any point and started again, it loses nothing that a stage had saved.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from sgl_dspark.data.lines import numbered
from sgl_dspark.data.prompts import PromptRecord, write_prompts
from sgl_dspark.data.sources import GROUPS
from sgl_dspark.demo.fixture_text import conversations
from sgl_dspark.demo.smollm2 import prepare

ROOT = Path(__file__).resolve().parents[1]
# Seeds of the fixture's prompts, far from each other and from its target's own (see fixture_text.conversations).
TRAIN_SEED, HELD_OUT_SEED = 1_000_000, 2_000_000


@dataclass(frozen=True)
class Preset:
    """How a pair is made.

    Attributes
    ----------
    recipe : str
        File in ``recipes/``.
    feature_layers, temperatures : tuple
        Of the data.
    prompts, held_out, steps : int
    rows : int
        Conversations decoded together.
    evaluated : int
        Prompts per set of the evaluation.
    vocabulary : bool
        Limit the draft's vocabulary to what its data uses.
    """

    recipe: str
    feature_layers: tuple[int, ...]
    temperatures: tuple[float, ...]
    prompts: int
    held_out: int
    steps: int
    rows: int
    evaluated: int
    vocabulary: bool


PRESETS = {
    "fixture": Preset("fixture.yaml", (1, 3, 5, 8, 10), (0.0, 1.0), 1500, 96, 1000, 64, 64, False),
    "smollm2": Preset("smollm2-135m.yaml", (9, 16, 23, 28), (0.7, 1.0, 0.0, 1.0), 24_000, 96, 10_000, 112, 60, True),
}


def run(*arguments: str | Path) -> None:
    """Run one ``dspark`` command, shown as a user would type it."""
    shown = " ".join(shlex.quote(str(a)) for a in arguments)
    sys.stderr.write(f"\n$ dspark {shown}\n")
    sys.stderr.flush()
    status = subprocess.call([sys.executable, "-m", "sgl_dspark.cli", *map(str, arguments)], cwd=ROOT)
    if status:
        raise SystemExit(status)


def fixture_prompts(work: Path, wanted: dict[str, int]) -> None:
    """Write the fixture's questions: so many of each file."""
    for name, count in wanted.items():
        seed = TRAIN_SEED if name == "train" else HELD_OUT_SEED
        records = (PromptRecord.of((question,), "worked") for question, _ in conversations(seed, count))
        write_prompts(work / f"{name}.jsonl", records)


def built_in_prompts(work: Path, wanted: dict[str, int]) -> None:
    """Write prompts of the built-in sources: so many of each file."""
    for name, count in wanted.items():
        chosen: tuple[str, ...] = ("--split", "held-out")
        if name == "train":
            chosen = ("--split", "train")
        elif name == "held-out":
            chosen += ("--seed", "1")
        else:
            # Another seed than that of the prompts that training reports on.
            chosen += ("--seed", "2", "--sources", name)
        run("data", "prompts", *chosen, "--count", str(count), "--out", work / f"{name}.jsonl")


def make_prompts(work: Path, name: str, wanted: dict[str, int]) -> None:
    """Write prompt files, unless all of them are there with their numbers: a work folder keeps what it began with.

    Raises
    ------
    SystemExit
        If files of other numbers are there, and what is made now does not begin as they do: a release with other
        prompts must not put its own beside answers and evaluations of the first ones.
    """
    work.mkdir(parents=True, exist_ok=True)
    held = {file: _ids(work / f"{file}.jsonl") for file in wanted}
    if all(len(held[file]) == count for file, count in wanted.items()):
        return
    with TemporaryDirectory(prefix="prompts.partial-", dir=work) as scratch:
        (fixture_prompts if name == "fixture" else built_in_prompts)(Path(scratch), wanted)
        for file in wanted:
            ids = _ids(Path(scratch) / f"{file}.jsonl")
            common = min(len(ids), len(held[file]))
            if ids[:common] != held[file][:common]:
                raise SystemExit(
                    f"{work / file}.jsonl holds other prompts than this release makes; choose another work folder"
                )
        for file in wanted:
            (Path(scratch) / f"{file}.jsonl").replace(work / f"{file}.jsonl")


def _ids(path: Path) -> list[str]:
    """List the prompts of a file, repeated ones too; empty where there is none."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return [json.loads(line)["id"] for _, line in numbered(text)]


def make_data(
    preset: Preset, name: str, work: Path, target: Path | None, device: str, made: bool = False
) -> tuple[Path, dict[str, Path]]:
    """Make prompts and caches in ``work``, only those of the evaluation if caches are ``made``.

    Returns the target and the evaluation's files by set.
    """
    sets = {"held-out": preset.held_out} if name == "fixture" else dict.fromkeys(GROUPS, preset.evaluated)
    training = {} if made else {"train": preset.prompts, "held-out": preset.held_out}
    if name == "fixture":
        target = target or ROOT / "tests" / "fixtures" / "pair" / "target"
    else:
        target = target or prepare(None, lambda line: sys.stderr.write(f"prepare: {line}\n"))
    make_prompts(work, name, training | sets)
    files = {group: work / f"{group}.jsonl" for group in sets}
    if made:
        return target, files
    layers = [str(layer) for layer in preset.feature_layers]
    common = ("--target", target, "--feature-layers", *layers, "--rows", str(preset.rows))
    for prompts, cache, temperatures in (
        ("train", "cache", preset.temperatures),
        ("held-out", "held-out", (1.0,)),
    ):
        run(
            "data", "direct", *common, "--prompts", work / f"{prompts}.jsonl", "--out", work / cache,
            "--device", device, "--temperatures", *(f"{t:g}" for t in temperatures),
        )  # fmt: skip
    return target, files


def make(preset: Preset, name: str, args: Namespace) -> None:
    """Run all stages."""
    work = args.work.resolve()
    target, files = make_data(preset, name, work, args.target, args.device)
    overrides = {
        "target": target, "data.caches": [str(work / "cache")], "data.held_out": [str(work / "held-out")],
        "output.folder": work / "run", "optim.steps": args.steps or preset.steps, "device": args.device,
    }  # fmt: skip
    given = [f"{field}={json.dumps(v) if isinstance(v, list) else v}" for field, v in overrides.items()]
    run("train", ROOT / "recipes" / preset.recipe, *given, *args.override)
    draft = work / "run" / "draft"
    if preset.vocabulary:
        run("convert", draft, work / "draft", "--target", target, "--draft-vocabulary", work / "cache", "--least", "20")
        draft = work / "draft"
    run(
        "evaluate", "--target", target, "--draft", draft, "--prompts", *files.values(), "--temperatures", "1", "0",
        "--max-new-tokens", "256", "--limit", str(preset.evaluated), "--latency", "1", "32", "--device", args.device,
        "--out", work / "evaluation",
    )  # fmt: skip
    sys.stderr.write(f"\ndraft: {draft}\nevaluation: {work / 'evaluation'}\n")


def parser() -> ArgumentParser:
    """Return the command line."""
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("pair", choices=sorted(PRESETS))
    parser.add_argument("--work", type=Path, required=True, help="folder of all results")
    parser.add_argument("--target", type=Path, default=None, help="another target folder than the preset's")
    parser.add_argument("--prompts", type=int, default=None, help="training prompts")
    parser.add_argument("--steps", type=int, default=None, help="optimiser steps")
    parser.add_argument("--rows", type=int, default=None, help="conversations decoded together")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    parser.add_argument("--override", nargs="*", default=[], metavar="section.field=value", help="of the recipe")
    return parser


def main() -> int:
    """Make one pair's draft."""
    args = parser().parse_args()
    preset = PRESETS[args.pair]
    preset = replace(preset, prompts=args.prompts or preset.prompts, rows=args.rows or preset.rows)
    make(preset, args.pair, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
