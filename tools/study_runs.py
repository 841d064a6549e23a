"""One draft of the study: trained, limited, measured; what is there counts only if it is of what is asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path

from make_draft import ROOT

from sgl_dspark.evaluation import command as evaluating
from sgl_dspark.evaluation.identity import EVALUATION_FILE, compare


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


def say(line: str) -> None:
    """Write one line of progress."""
    sys.stderr.write(f"study: {line}\n")
    sys.stderr.flush()


def train(recipe: Path, fields: Mapping[str, object], run: Path) -> Path:
    """Train in ``run`` by a recipe with these fields; return the draft.

    A run that is finished costs a second; one of another recipe or of other data is refused by `dspark train`.
    """
    given = [f"{name}={json.dumps(v) if not isinstance(v, Path) else v}" for name, v in fields.items()]
    say(f"training {run.name}, unless it is finished")
    command(run / "train.log", "train", recipe, *given, f"output.folder={run}")
    return run / "draft"


def limit(draft: Path, least: int, caches: Sequence[Path]) -> Path:
    """Leave rare tokens out of a draft's vocabulary; return the limited draft, which is refused if it is another."""
    out = draft.parent / "limited"
    options = ("--draft-vocabulary", *caches, "--least", str(least))
    command(draft.parent / "convert.log", "convert", draft, out, *options)
    return out


def evaluate(draft: Path, target: Path, files: Sequence[Path], options: Sequence[str], out: Path) -> None:
    """Measure a draft into ``out``, unless it has been.

    Raises
    ------
    SystemExit
        If the folder holds an evaluation of something else; names what differs and what to remove.
    """
    asked = ["--target", target, "--draft", draft, "--prompts", *files, "--max-new-tokens", "256", *options]
    given = [*map(str, asked), "--out", str(out)]
    if not (out / EVALUATION_FILE).is_file():
        say(f"evaluating into {out}")
        command(out.parent / "evaluate.log", "evaluate", *given)
        return
    parser = ArgumentParser()
    evaluating.add_arguments(parser)
    found = compare(json.loads((out / EVALUATION_FILE).read_text(encoding="utf-8")), parser.parse_args(given))
    if found.differing:
        raise SystemExit(
            f"study: {out} is of something else (it differs in {', '.join(found.differing)}); "
            "remove it to measure again, or choose another --work"
        )
    if found.unrecorded:
        say(f"{out} is taken as it is: it was made before {', '.join(found.unrecorded)} were recorded")
