"""Whether SGLang, in the release that is installed, still is what this package was written for: name by name.

Checked are every name that our sources import or read from what they import, every function that is wrapped or
replaced, and the shape of what is called, read or derived from (`contracts`). Nothing here imports our own modules that
import SGLang: where a name has moved those cannot be loaded. That all names hold says that the package fits, not that
it is exact: the tests say that.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from dspark_sglang.contracts import PATCHED, USED, WRAPPED, Contract
from dspark_sglang.findings import Finding, State

OURS = Path(__file__).resolve().parent
PACKAGE = "sglang"


def examine(supported: str) -> Iterator[Finding]:
    """Yield a finding for the release and for each hook, contract and import; `State.MISSING` where one has moved.

    Parameters
    ----------
    supported : str
        The release that this package was written for.
    """
    try:
        version = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        yield Finding(State.MISSING, PACKAGE, "not installed", f"pip install {PACKAGE}=={supported}")
        return
    if version == supported:
        yield Finding(State.OK, PACKAGE, version)
    else:
        detail = f"{version}; this package was written for {supported}"
        yield Finding(State.NOTE, PACKAGE, detail, "see docs/rollout.md, Upgrading SGLang")
    for kind, contracts in (("hook", WRAPPED), ("patch", PATCHED), ("contract", USED)):
        for contract in contracts:
            yield _finding(kind, contract.name, contract.use, broken(contract))
    for name, files in sorted(imported_names(OURS).items()):
        yield _finding("import", name, ", ".join(files), _missing(name))


def _finding(kind: str, name: str, use: str, problem: str) -> Finding:
    if not problem:
        return Finding(State.OK, kind, f"{name} ({use})")
    return Finding(State.MISSING, f"{kind} moved", f"{name} ({use})", problem)


def broken(contract: Contract) -> str:
    """Say what of a contract does not hold in the installed release; empty if all of it does."""
    problem = _missing(contract.name)
    if problem:
        return problem
    found = resolve(contract.name)
    problems = []
    if contract.parameters or contract.keywords:
        problems += _signature_problems(found, contract)
    lacking = [name for name in contract.members if not has_member(found, name)]
    if lacking:
        problems.append(f"has no {', '.join(lacking)}")
    asked = sorted(set(getattr(found, "__abstractmethods__", ())) - _methods(contract.ours)) if contract.ours else []
    if asked:
        problems.append(f"asks for {', '.join(asked)}, which {contract.ours} lacks")
    return "; ".join(problems)


def _methods(where: str) -> set[str]:
    """Return what a class of ours defines, read from its source."""
    file, _, name = where.partition(":")
    for node in ast.parse((OURS / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
    raise ValueError(f"{where} is no class of ours")


def _signature_problems(found: Any, contract: Contract) -> list[str]:
    try:
        parameters = inspect.signature(found).parameters
    except (TypeError, ValueError):
        return ["cannot be called any more"]
    names = [name for name in parameters if name != "self"]
    problems = []
    first = tuple(names[: len(contract.parameters)])
    if first != contract.parameters:
        problems.append(f"takes ({', '.join(first)}) first, not ({', '.join(contract.parameters)})")
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    unknown = [name for name in contract.keywords if name not in names]
    if unknown and not takes_any:
        problems.append(f"takes no {', '.join(unknown)}")
    return problems


def resolve(name: str) -> Any:
    """Return what a dotted name stands for.

    Raises
    ------
    LookupError
        Naming the part that is not there.
    """
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            # A module that is there but lacks one of its own imports is another matter.
            if error.name is not None and module.startswith(error.name):
                continue
            raise LookupError(f"{module} cannot be imported: {error}") from error
        except Exception as error:  # noqa: BLE001  # Whatever a release's own code does when it is loaded.
            raise LookupError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
        for at, attribute in enumerate(parts[length:], length):
            try:
                found = getattr(found, attribute)
            except AttributeError as error:
                raise LookupError(f"{'.'.join(parts[:at])} has no {attribute}") from error
            except Exception as error:  # noqa: BLE001  # Of what a module loads when it is asked for.
                raise LookupError(
                    f"{'.'.join(parts[: at + 1])} cannot be had: {type(error).__name__}: {error}"
                ) from error
        return found
    raise LookupError(f"there is no {parts[0]}")


def _missing(name: str) -> str:
    try:
        resolve(name)
    except LookupError as error:
        hint = moved_to(name.rsplit(".", 1)[1])
        return f"{error.args[0]}{hint and f'; {hint}'}"
    return ""


def moved_to(name: str) -> str:
    """Say which files of the installed release define a function, class or variable of this name, if few do."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return ""
    defined = re.compile(rf"^\s*(?:async def|def|class)\s+{re.escape(name)}\b|^{re.escape(name)}\s*[:=]", re.MULTILINE)
    root = Path(spec.submodule_search_locations[0])
    files = [
        path.relative_to(root.parent).as_posix()
        for path in sorted(root.rglob("*.py"))
        if defined.search(path.read_text(encoding="utf-8", errors="replace"))
    ]
    return f"defined in {', '.join(files)}" if 0 < len(files) <= 4 else ""


def has_member(found: Any, name: str) -> bool:
    """Whether a class has an attribute, a field, or sets it on itself somewhere in its own code or its bases'."""
    if hasattr(found, name):
        return True
    assigned = re.compile(rf"\bself\.{re.escape(name)}\b\s*(?::[^=\n]+)?(?:=[^=]|,)|^\s+{re.escape(name)}\s*:", re.M)
    for base in inspect.getmro(found) if inspect.isclass(found) else ():
        if name in getattr(base, "__annotations__", {}):
            return True
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):
            continue
        if assigned.search(source):
            return True
    return False


def imported_names(folder: Path) -> dict[str, Sequence[str]]:
    """Return every dotted name of SGLang that the sources in a folder import, with the files that do.

    So are attributes of what is imported: ``http_server._global_state`` of an imported module ``http_server``.
    """
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        known = {local: name for node in nodes for local, name in _locals(node)}
        for node in nodes:
            for name in (*_names(node), *_attributes(node, known)):
                files = found.setdefault(name, [])
                where = path.relative_to(folder).as_posix()
                if where not in files:
                    files.append(where)
    return {name: tuple(files) for name, files in found.items()}


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == PACKAGE:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.split(".")[0] == PACKAGE)


def _locals(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield what an import calls things, and what they are in SGLang."""
    if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == PACKAGE:
        yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _attributes(node: ast.AST, known: dict[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known:
        yield f"{known[node.value.id]}.{node.attr}"
