"""`dspark doctor --upstream`: every hook and contract is named, and one that has moved is found, wherever it went."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("sglang")

from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache import allocation, memory_pool
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker

from dspark_sglang import contracts, hooks, upstream
from dspark_sglang.contracts import Contract
from dspark_sglang.findings import State
from dspark_sglang.launch import SUPPORTED_SGLANG
from sgl_dspark.cli import main

SLOTS = "sglang.srt.mem_cache.allocation.assign_req_to_token_pool_func"
MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
CONTRACT = {contract.name: contract for contract in (*contracts.WRAPPED, *contracts.PATCHED, *contracts.USED)}


def test_every_hook_has_its_contract() -> None:
    assert {hook.target for hook in hooks.HOOKS} == {contract.name for contract in contracts.WRAPPED}


def assigned(folder: Path) -> set[str]:
    """Read which names of SGLang sources assign to: ``module.name = ...``, also of a loop's variable."""
    found = set()
    for path in folder.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        known = {local: {name} for node in nodes for local, name in upstream._locals(node)}
        for node in nodes:
            if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Tuple):
                each = [known.get(one.id, set()) for one in node.iter.elts if isinstance(one, ast.Name)]
                known.setdefault(node.target.id, set()).update(*each)
        for node in nodes:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                    found |= {f"{name}.{target.attr}" for name in known.get(target.value.id, ())}
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "patch"):
                first = node.args[0]
                assert not (isinstance(first, ast.Name) and first.id in known), f"{path}: write it as an assignment"
    return found


def test_every_patch_has_its_contract() -> None:
    assert assigned(upstream.OURS) == {contract.name for contract in contracts.PATCHED}


def test_assignments_are_read_from_sources(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "from sglang import b\ndef f(own):\n    from sglang.c import D, E\n    own.x = b.y = 1\n"
        "    for kind in (D, E):\n        kind.z = 2\n    D.n: int = 3\n    b.m += 4\n"
    )
    names = {"sglang.b.y", "sglang.c.D.z", "sglang.c.E.z", "sglang.c.D.n", "sglang.b.m"}
    assert assigned(tmp_path) == names


@pytest.mark.parametrize("name", [contract.name for contract in contracts.PATCHED])
def test_a_patched_name_that_is_gone_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, _, last = name.rpartition(".")
    monkeypatch.setattr(upstream, "moved_to", lambda name: "")
    monkeypatch.delattr(upstream.resolve(where), last)
    assert upstream.broken(CONTRACT[name]) == f"{where} has no {last}"


@pytest.mark.parametrize("name", [c.name for c in contracts.PATCHED if c.parameters])
def test_a_patched_function_that_takes_something_else_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, _, last = name.rpartition(".")
    monkeypatch.setattr(upstream.resolve(where), last, lambda self, other: None)
    assert "takes (other" in upstream.broken(CONTRACT[name])


def test_readiness_that_went_elsewhere_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(upstream.resolve(MANAGER), "is_ready")
    assert upstream.broken(CONTRACT[MANAGER]) == "has no is_ready"


def test_a_patch_that_is_gone_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(upstream.resolve(MANAGER), "sigterm_watchdog")
    assert main(["doctor", "--upstream"]) == 1
    assert f"{MANAGER}.sigterm_watchdog" in capsys.readouterr().out.rstrip().splitlines()[-1]


def test_the_installed_release_keeps_every_contract() -> None:
    found = list(upstream.examine(SUPPORTED_SGLANG))
    assert [finding.detail for finding in found if finding.state is State.MISSING] == []
    assert found[0].state is State.OK
    assert {"hook", "contract", "import"} <= {finding.subject for finding in found}


def test_another_release_is_a_note_and_no_failure() -> None:
    first = next(upstream.examine("0.0.1"))
    assert (first.state, "written for 0.0.1" in first.detail) == (State.NOTE, True)


def test_a_hook_that_is_gone_fails_the_command_and_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(allocation, "assign_req_to_token_pool_func")
    assert main(["doctor", "--upstream"]) == 1
    output = capsys.readouterr().out
    assert f"hook moved                          {SLOTS}" in output
    assert "sglang.srt.mem_cache.allocation has no assign_req_to_token_pool_func; defined in sglang/srt/" in output
    assert output.rstrip().splitlines()[-1].startswith(f"moved: {SLOTS}")


def test_parameters_that_changed_places_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(req_to_token: object, req_pool_indices: object, *rest: object) -> None:
        """Take the first two the other way round."""

    monkeypatch.setattr(allocation, "assign_req_to_token_pool_func", moved)
    assert "takes (req_to_token, req_pool_indices, rest) first" in upstream.broken(CONTRACT[SLOTS])


def test_a_keyword_that_is_gone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "sglang.srt.managers.utils.GenerationBatchResult"
    monkeypatch.setattr(name, type("GenerationBatchResult", (), {"__init__": lambda self, logits_output: None}))
    problem = upstream.broken(CONTRACT[name])
    assert problem.startswith("takes no next_token_ids, accept_lens")


def test_a_field_that_was_renamed_is_found() -> None:
    name = "sglang.srt.mem_cache.memory_pool.ReqToTokenPool"
    assert upstream.broken(Contract(name, "", members=("req_to_token", "req_serial"))) == "has no req_serial"
    # Set in a constructor, a dataclass field, a method, a base's.
    assert upstream.has_member(memory_pool.ReqToTokenPool, "req_generation")
    assert upstream.has_member(Req, "origin_input_ids")
    assert not upstream.has_member(Req, "origin_input_idents")


def test_a_method_that_a_base_class_newly_asks_for_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "sglang.srt.speculative.base_spec_worker.BaseSpecWorker"
    monkeypatch.setattr(BaseSpecWorker, "__abstractmethods__", frozenset({"forward_batch_generation", "fold_laundry"}))
    assert upstream.broken(CONTRACT[name]) == "asks for fold_laundry, which worker.py:DsparkWorker lacks"


def test_a_module_that_cannot_be_imported_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang.made_up", ModuleType("sglang.made_up"))
    with pytest.raises(LookupError, match="sglang.made_up has no thing"):
        upstream.resolve("sglang.made_up.thing")
    with pytest.raises(LookupError, match="there is no nowhere"):
        upstream.resolve("nowhere.at.all")


@pytest.mark.parametrize("raised", [AttributeError("a 'b'"), RuntimeError("no device"), KeyError("x")])
def test_a_module_that_fails_when_it_is_imported_is_named(raised: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> ModuleType:
        raise raised

    monkeypatch.setattr(upstream.importlib, "import_module", fail)
    monkeypatch.setattr(upstream, "moved_to", lambda name: "")
    problem = upstream.broken(Contract("sglang.made_up.thing", ""))
    assert problem == f"sglang.made_up.thing cannot be imported: {type(raised).__name__}: {raised}"


def test_what_is_read_from_an_import_is_one_more_name(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f():\n    from sglang.b import c as d\n    return d.e.g, other.h\n")
    assert set(upstream.imported_names(tmp_path)) == {"sglang.b.c", "sglang.b.c.e"}


def test_imports_are_read_from_sources_wherever_they_stand(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.py").write_text("import sglang.b\nimport torch\ndef f():\n    from sglang.c import d, e as g\n")
    (tmp_path / "sub" / "b.py").write_text("from sglang.c import d\nfrom .sglang import x\n")
    found = upstream.imported_names(tmp_path)
    assert found == {"sglang.b": ("a.py",), "sglang.c.d": ("a.py", "sub/b.py"), "sglang.c.e": ("a.py",)}
