"""Train a draft by a recipe: a YAML file whose fields can be overridden one by one.

An interrupted run continues exactly when the same command is run again. Several ranks: start it with torchrun.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

HELP = "train a draft by a recipe"
EPILOG = """examples:
  dspark train recipes/smollm2-135m.yaml
  dspark train recipes/smollm2-135m.yaml optim.steps=2000 output.folder=runs/short
  dspark train recipes/smollm2-135m.yaml --show
  torchrun --nproc-per-node 2 -m sgl_dspark.cli train recipes/smollm2-135m.yaml"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("recipe", type=Path, help="YAML file")
    parser.add_argument("overrides", nargs="*", metavar="section.field=value", help="single fields of the recipe")
    parser.add_argument("--show", action="store_true", help="print the recipe with its defaults and do nothing")


def run(args: Namespace) -> int:
    """Train; 0 when the draft is written."""
    from sgl_dspark.training.recipe import load_recipe

    recipe = load_recipe(args.recipe, args.overrides)
    if args.show:
        import yaml

        sys.stdout.write(yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False))
        return 0
    from sgl_dspark.training.fit import fit

    fit(recipe, _log)
    return 0


def _log(line: str) -> None:
    sys.stderr.write(f"train: {line}\n")
    sys.stderr.flush()
