"""Make the test fixture: a small target on worked reasoning-gym answers and its draft, from one command.

    python tools/make_fixture.py --work /tmp/fixture --out tests/fixtures/pair

About half an hour on one core; every stage is seeded and is skipped when its result is already in the work folder.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

from sgl_dspark.demo.fixture_target import TargetRecipe, save_target, train_target, train_tokenizer

TRAIN_PROMPTS = 4500


def log(line: str) -> None:
    """Write one line of progress."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def make_target(folder: Path) -> None:
    """Train the target unless it is there."""
    if (folder / "tokenizer_config.json").is_file():
        log(f"{folder} is there already")
        return
    recipe = TargetRecipe()
    tokenizer = train_tokenizer(recipe.seed)
    save_target(train_target(recipe, tokenizer, log), tokenizer, folder)


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
    maker = Path(__file__).resolve().parent / "make_draft.py"
    size = ("--prompts", str(TRAIN_PROMPTS), "--steps", str(args.draft_steps))
    where = ("--work", str(args.work), "--target", str(target.resolve()))
    subprocess.run([sys.executable, str(maker), "fixture", *where, *size], check=True)
    for name, folder in (("target", target), ("draft", args.work / "run" / "draft")):
        shutil.copytree(folder, args.out / name, dirs_exist_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
