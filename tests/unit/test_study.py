"""Making drafts again: what is done stays, and what was made of something else is never taken for it."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

pytest.importorskip("transformers")
pytest.importorskip("matplotlib")
pytest.importorskip("reasoning_gym")
pytest.importorskip("chatterbot_corpus")

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import make_draft  # noqa: E402
import study_runs  # noqa: E402

from sgl_dspark import cli  # noqa: E402
from sgl_dspark.data.prompts import PromptRecord, read_prompts, write_prompts  # noqa: E402

PAIR = ROOT / "tests" / "fixtures" / "pair"
QUICK = ("--temperatures", "1", "--limit", "2", "--device", "cpu")


def in_process(*arguments: object) -> None:
    """Run a command as the tools do, without a process of its own."""
    status = cli.main([str(argument) for argument in arguments])
    if status:
        raise SystemExit(status)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(make_draft, "run", in_process)
    monkeypatch.setattr(study_runs, "command", lambda log, *arguments: in_process(*arguments))


def stamps(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and "evaluation" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def prompts(path: Path, *texts: str) -> Path:
    write_prompts(path, (PromptRecord.of((text,)) for text in texts))
    return path


def test_a_draft_that_is_made_is_continued_at_every_stage(tmp_path: Path) -> None:
    preset = replace(
        make_draft.PRESETS["fixture"], prompts=6, held_out=3, steps=2, rows=8, evaluated=1, vocabulary=True
    )
    parser = make_draft.parser()
    args = parser.parse_args(["fixture", "--work", str(tmp_path / "work"), "--device", "cpu", "--override"])
    args.override = ["optim.batch_size=2", "output.tensorboard=false", "optim.warmup_steps=1"]
    make_draft.make(preset, "fixture", args)
    before = contents(tmp_path / "work")
    make_draft.make(preset, "fixture", args)
    assert contents(tmp_path / "work") == before
    # Another recipe in the same folder is refused, and so is what a study finds there.
    args.override = [*args.override, "optim.seed=9"]
    with pytest.raises(SystemExit):
        make_draft.make(preset, "fixture", args)
    fields = {"target": PAIR / "target", "data.caches": [str(tmp_path / "work" / "cache")], "optim.steps": 1}
    with pytest.raises(SystemExit):
        study_runs.train(ROOT / "recipes" / "fixture.yaml", fields, tmp_path / "work" / "run")


def test_a_work_folder_keeps_the_prompts_that_it_began_with(tmp_path: Path) -> None:
    wanted = {"train": 4, "held-out": 2}
    make_draft.make_prompts(tmp_path, "fixture", wanted)
    before = stamps(tmp_path)
    make_draft.make_prompts(tmp_path, "fixture", wanted)
    assert stamps(tmp_path) == before
    first = read_prompts(tmp_path / "train.jsonl")
    make_draft.make_prompts(tmp_path, "fixture", {**wanted, "train": 6})
    assert read_prompts(tmp_path / "train.jsonl")[:4] == first
    # Prompts of another release: as many are kept, but no others are put behind them.
    prompts(tmp_path / "train.jsonl", "one", "two")
    make_draft.make_prompts(tmp_path, "fixture", {**wanted, "train": 2})
    assert [r.turns for r in read_prompts(tmp_path / "train.jsonl")] == [("one",), ("two",)]
    before = stamps(tmp_path)
    with pytest.raises(SystemExit, match="other prompts than this release makes"):
        make_draft.make_prompts(tmp_path, "fixture", wanted)
    assert stamps(tmp_path) == before


def test_an_evaluation_counts_only_for_what_it_was_made_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draft = tmp_path / "run" / "draft"
    shutil.copytree(PAIR / "draft", draft)
    files = [prompts(tmp_path / "worked.jsonl", "What is 4 + 5?", "What is 7 - 2?", "What is 9 + 1?")]
    folder = draft.parent / "evaluation-table1"
    study_runs.evaluate(draft, PAIR / "target", files, QUICK, folder)
    before = stamps(folder)
    study_runs.evaluate(draft, PAIR / "target", files, QUICK, folder)
    assert stamps(folder) == before
    for options, named in (
        (("--temperatures", "0", *QUICK[2:]), "temperatures or thresholds"),
        ((*QUICK, "--limit", "3"), "prompts, number of prompts"),
        ((*QUICK, "--latency", "1"), "latency"),
        ((*QUICK, "--shortlist", "8"), "shortlist"),
        ((*QUICK, "--seed", "1"), "seed"),
    ):
        with pytest.raises(SystemExit, match=rf"differs in {named}\); remove it"):
            study_runs.evaluate(draft, PAIR / "target", files, options, folder)
    # As many prompts, but others, of which the second is left out by the limit; then another draft.
    prompts(files[0], "What is 4 + 5?", "What is 7 - 3?", "What is 9 + 1?")
    with pytest.raises(SystemExit, match=r"differs in prompts\)"):
        study_runs.evaluate(draft, PAIR / "target", files, QUICK, folder)
    prompts(files[0], "What is 4 + 5?", "What is 7 - 2?", "What is 8 + 1?")
    study_runs.evaluate(draft, PAIR / "target", files, QUICK, folder)
    weights = load_file(draft / "model.safetensors")
    save_file({**weights, "fc.weight": weights["fc.weight"] + 1}, draft / "model.safetensors")
    with pytest.raises(SystemExit, match=r"differs in draft_sha256\)"):
        study_runs.evaluate(draft, PAIR / "target", files, QUICK, folder)
    shutil.copy(PAIR / "draft" / "model.safetensors", draft)
    # What an earlier release did not record cannot be compared, and is said.
    path = folder / "evaluation.json"
    found = json.loads(path.read_text())
    for name in ("prompts", "target_sha256", "max_positions"):
        del found["about"][name]
    path.write_text(json.dumps(found))
    capsys.readouterr()
    study_runs.evaluate(draft, PAIR / "target", files, QUICK, folder)
    assert "before target_sha256, prompts, max_positions were recorded" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="number of prompts"):
        study_runs.evaluate(draft, PAIR / "target", files, (*QUICK, "--limit", "1"), folder)
