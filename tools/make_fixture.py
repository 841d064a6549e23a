"""Make the test fixture: a small target on worked reasoning-gym answers and its draft, from one command.

    python tools/make_fixture.py --work /tmp/fixture --out tests/fixtures/pair

About half an hour on one core; every stage is seeded and is skipped when its result is already in the work folder.
"""

from __future__ import annotations

import json
import shutil
import sys
from argparse import ArgumentParser
from pathlib import Path

from sgl_dspark.demo.fixture_target import MASK_ID, TargetRecipe, save_target, train_target, train_tokenizer
from sgl_dspark.demo.fixture_text import conversations
from sgl_dspark.training import command

FEATURE_LAYERS = ("1", "3", "5", "8", "10")
# Seeds of the prompts, far from each other and from the target's own (see fixture_text.conversations).
TRAIN_SEED, HELD_OUT_SEED = 1_000_000, 2_000_000
TRAIN_PROMPTS, HELD_OUT_PROMPTS = 4500, 108


def log(line: str) -> None:
    """Write one line of progress."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def write_prompts(path: Path, seed: int, count: int) -> Path:
    """Write ``count`` questions as JSONL, with their kinds left out."""
    lines = [json.dumps({"turns": [question]}, ensure_ascii=False) for question, _ in conversations(seed, count)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def train(stage: str, *options: str | Path) -> None:
    """Run one stage of ``dspark train``."""
    parser = ArgumentParser()
    command.add_arguments(parser)
    if command.run(parser.parse_args([stage, *map(str, options)])) != 0:
        raise SystemExit(1)


def make_target(folder: Path) -> None:
    """Train the target unless it is there."""
    if (folder / "tokenizer_config.json").is_file():
        log(f"{folder} is there already")
        return
    recipe = TargetRecipe()
    tokenizer = train_tokenizer(recipe.seed)
    save_target(train_target(recipe, tokenizer, log), tokenizer, folder)


def make_draft(target: Path, work: Path, steps: int) -> Path:
    """Generate on-policy data and train the draft; return its folder."""
    prompts = write_prompts(work / "train.jsonl", TRAIN_SEED, TRAIN_PROMPTS)
    held_out = write_prompts(work / "held-out.jsonl", HELD_OUT_SEED, HELD_OUT_PROMPTS)
    for source, name in ((prompts, "data"), (held_out, "held-out")):
        if not list((work / name).glob("shard-*.safetensors")):
            where = ("--target", target, "--prompts", source, "--out", work / name)
            # Tests decode greedily and at temperature 1 in equal parts.
            train("data", *where, "--feature-layers", *FEATURE_LAYERS, "--temperatures", "0", "1")
    where = ("--target", target, "--data", work / "data", "--held-out", work / "held-out", "--out", work / "run")
    shape = ("--layers", "1", "--markov-rank", "64", "--mask-token-id", str(MASK_ID))
    run = ("--steps", str(steps), "--batch-size", "8", "--anchors", "32", "--learning-rate", "2e-3")
    train("fit", *where, *shape, *run, "--seed", "1")
    return work / "run" / "draft"


def main() -> int:
    """Make the pair and copy it to its place."""
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--work", type=Path, required=True, help="folder for intermediate results")
    parser.add_argument("--out", type=Path, required=True, help="folder that receives target/ and draft/")
    parser.add_argument("--draft-steps", type=int, default=4000)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    target = args.work / "target"
    make_target(target)
    draft = make_draft(target, args.work, args.draft_steps)
    where = ("--target", target, "--draft", draft, "--prompts", args.work / "held-out.jsonl")
    train("evaluate", *where, "--dtype", "float32", "--out", args.work / "evaluation.json")
    for name, folder in (("target", target), ("draft", draft)):
        shutil.copytree(folder, args.out / name, dirs_exist_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
