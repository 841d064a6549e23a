"""Recipes are checked by field, and single fields can be overridden."""

from __future__ import annotations

from pathlib import Path

import pytest

from sgl_dspark.errors import ConfigError
from sgl_dspark.training.losses import LossWeights
from sgl_dspark.training.recipe import load_recipe

TEXT = """
target: runs/target
data: {caches: [runs/cache]}
draft: {mask_token_id: 16}
optim: {steps: 100}
output: {folder: runs/draft}
"""
RECIPES = sorted((Path(__file__).parents[3] / "recipes").glob("*.yaml"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(TEXT)
    return path


def test_overrides_take_yaml_values(file: Path) -> None:
    recipe = load_recipe(file, ["optim.steps=7", "optim.learning_rate=2e-3", "data.caches=[a, b]", "device=cpu"])
    assert recipe.optim.steps == 7
    assert recipe.optim.learning_rate == 2e-3
    assert recipe.data.caches == [Path("a"), Path("b")]
    assert recipe.device == "cpu"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.stepz=7", r"optim\.stepz"),
        ("optim.steps=0", r"optim\.steps"),
        ("draft.kind=medusa", r"draft\.kind"),
        ("draft.mask_token_id=null", r"draft: mask_token_id is missing"),
        ("data.caches=[]", r"data\.caches is empty"),
        ("data.mode=online", r"data\.responses is empty"),
        ("optim", "no override"),
        ("optim.steps.more=1", "not a section"),
        ("loss.decay=[", "not YAML"),
    ],
)
def test_wrong_fields_are_named(file: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe(file, [override])


def test_missing_files_and_sections_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the recipe"):
        load_recipe(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("[1]")
    with pytest.raises(ConfigError, match="mapping of sections"):
        load_recipe(tmp_path / "list.yaml")
    (tmp_path / "empty.yaml").write_text("{}")
    with pytest.raises(ConfigError, match="target: Field required"):
        load_recipe(tmp_path / "empty.yaml")


def test_baselines_bring_their_own_losses(file: Path) -> None:
    dflash = load_recipe(file, ["draft.kind=dflash"])
    assert (dflash.draft.markov_rank, dflash.draft.confidence) == (0, False)
    assert dflash.loss.weights("dflash") == LossWeights(1.0, 0.0, 0.0)
    eagle = load_recipe(file, ["draft.kind=eagle3"])
    assert eagle.draft.layers == 1
    assert eagle.loss.weights("eagle3") == LossWeights(0.0, 0.0, 0.0, 1.0)
    assert eagle.loss.decay_of("eagle3") == pytest.approx(4.4814)
    assert load_recipe(file).loss.weights("dspark") == LossWeights()
    with pytest.raises(ConfigError, match="neither markov_rank nor confidence"):
        load_recipe(file, ["draft.kind=dflash", "draft.markov_rank=4"])


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_shipped_recipes_are_valid(path: Path) -> None:
    assert load_recipe(path).optim.steps > 0


def test_there_are_shipped_recipes() -> None:
    assert RECIPES
