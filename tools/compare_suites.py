"""Run the outside suites against the fixture pair with DSPARK, its target alone, and the target without our HTTP layer.

    python tools/compare_suites.py --out docs/results/suites_202611.md

What fails alike in the first two has nothing to do with speculation: it is SGLang's own, or asks for what the fixture's
model cannot do. The third tells what the HTTP layer changes. The report is Markdown; the status is 1 if DSPARK and the
target alone differ in any test that is not listed so, or if anything came out otherwise than listed in
tests/suites/expected.toml.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support import suites
from tests.support.suites import Outcome

# Whether the target is alone, and whether our HTTP layer is around it.
ARMS = {"DSPARK": (False, True), "plain": (True, True), "plain, no layer": (True, False)}
Results = dict[str, dict[str, Outcome]]


def run_arm(plain: bool, layer: bool, names: Sequence[str], folder: Path) -> Results:
    """Serve one arm and run the suites; what each test came to, by suite."""
    environment = {} if layer else {"SGL_DSPARK_HTTP": '{"layer": false}'}
    folder.mkdir(parents=True)
    server = suites.suites_server(folder / "server.log", plain=plain, **environment)
    found: Results = {}
    try:
        server.start()
        for name in names:
            work = folder / name
            work.mkdir()
            found[name] = suites.run_suite(name, server, work, whole=True)
            print(f"{folder.name}: {name}: {counts(found[name].values())}", file=sys.stderr, flush=True)
        server.stop()
    finally:
        server.kill()
    return found


def counts(outcomes: Iterator[Outcome] | Sequence[Outcome]) -> str:
    """Say how many passed, failed and were skipped."""
    tally = Counter(outcome.status for outcome in outcomes)
    return " / ".join(str(tally[status]) for status in ("passed", "failed", "skipped"))


def differing(one: Results, other: Results) -> list[str]:
    """Say of each test that came out differently in two arms what it did."""
    lines = []
    for suite, outcomes in one.items():
        for test, first in outcomes.items():
            second = other[suite].get(test, Outcome("absent", ""))
            if first.status != second.status:
                why = (first if first.status != "passed" else second).message.partition("\n")[0][:160]
                lines.append(f"{suite}: `{test}`: {first.status}, then {second.status} ({why})")
    return lines


def tables(arms: dict[str, Results], names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the report's tables: the totals, then for each suite what does not pass."""
    head, rule = " | ".join(arms), "---|" * len(arms)
    yield from (f"| passed / failed / skipped | {head} |", f"|---|{rule}")
    for name in names:
        yield f"| {name} | {' | '.join(counts(list(found[name].values())) for found in arms.values())} |"
    first = next(iter(arms.values()))
    for name in names:
        entries = suites.known(name, plain=True)
        if not entries:
            continue
        yield from ("", f"## What does not pass: {name}", "", f"| tests | {head} | cause |", f"|---|{rule}---|")
        for entry in entries:
            tests = [test for test in first[name] if suites.entry_of(test, entries) is entry]
            cells = [counts([found[name][test] for test in tests if test in found[name]]) for found in arms.values()]
            yield f"| {', '.join(f'`{one}`' for one in entry.tests)} | {' | '.join(cells)} | {entry.cause} |"


def unexpected(arm: str, found: Results) -> Iterator[str]:
    """Yield what came out otherwise than listed; without the HTTP layer nothing is."""
    plain, layer = ARMS[arm]
    if layer:
        for name, outcomes in found.items():
            yield from (f"{name}: {line}" for line in suites.surprises(outcomes, suites.known(name, plain=plain)))


def report(arms: dict[str, Results], names: Sequence[str]) -> str:
    """Give the report in Markdown; the first arm is compared with each other one."""
    first, *others = arms
    releases = ", ".join(f"{name} {version(name)}" for name in ("sglang", "openai", "llm-comply"))
    lines = ["# Outside suites, with speculation and without", ""]
    lines += [
        f"`python tools/compare_suites.py --out FILE`, the fixture pair in fp32; {releases}, the rest as pinned in"
    ]
    lines += ["`tests/suites`. Every exception is listed there, in `expected.toml`.", "", *tables(arms, names)]
    for other in others:
        differences = differing(arms[first], arms[other])
        lines += ["", f"## Where {first} and {other} differ", ""]
        lines += [f"- {line}" for line in differences] or ["In no test."]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run all arms and write the report."""
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--suites", nargs="+", choices=suites.NAMES, default=list(suites.NAMES))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), help="the first is compared with each")
    parser.add_argument("--logs", type=Path, default=None, help="new folder for logs and reports")
    parser.add_argument("--out", type=Path, default=None, help="the report; standard output without it")
    args = parser.parse_args()
    folder = args.logs or Path(tempfile.mkdtemp(prefix="dspark-suites-"))
    arms = {name: run_arm(*ARMS[name], args.suites, folder / f"arm-{i}") for i, name in enumerate(args.arms)}
    text = report(arms, args.suites)
    if args.out is None:
        print(text)
    else:
        args.out.write_text(text)
    wrong = [f"{arm}: {line}" for arm in arms for line in unexpected(arm, arms[arm])]
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
