"""``scenario``: load shapes with what must hold under them."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dspark_loadtest import options
from dspark_loadtest.checks import Check, check
from dspark_loadtest.commands.replay import EXIT_FAILED, EXIT_INTERRUPTED, plain
from dspark_loadtest.report.document import Table
from dspark_loadtest.report.run import write_report
from dspark_loadtest.scenario import Scenario, capacity_rps, load_scenario
from dspark_loadtest.session import Served, look_at, measure


def add(actions: Any) -> None:
    """Declare the action."""
    summary = "put a server under a load shape and check what must hold; 1 if something does not"
    parser = options.add_action(actions, "scenario", summary, run)
    # An option: argparse could not tell positional files from server flags behind a later --.
    parser.add_argument(
        "--files", type=Path, nargs="+", required=True, metavar="YAML", help="such as loadtest/scenarios/burst.yaml"
    )
    options.add_server(parser)
    parser.add_argument("--prompts", type=Path, action="append", default=[], metavar="PATH", help="JSON lines of text")
    parser.add_argument("--seed", type=options.whole, default=0, metavar="N")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/scenarios"), metavar="DIR", help="default: runs/scenarios"
    )
    parser.add_argument(
        "--batch-dependent",
        action="store_true",
        help="the device's results depend on the batch (bf16 on most): answers need not be the same when asked alone",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(args: Namespace) -> int:
    """Run every scenario; 0 if all that must hold held, 1 if not, 130 after Ctrl-C."""
    scenarios = [load_scenario(file) for file in args.files]
    if args.batch_dependent:
        scenarios = [replace(one, expect=replace(one.expect, same_when_asked_alone=0)) for one in scenarios]
    held = True
    with options.served(args, args.out) as url:
        served = look_at(url, args.prompts)
        for scenario in scenarios:
            checks = _one(scenario, served, args)
            if checks is None:
                return EXIT_INTERRUPTED
            held &= all(one.holds for one in checks)
    return 0 if held else EXIT_FAILED


def _one(scenario: Scenario, served: Served, args: Namespace) -> list[Check] | None:
    options.say(f"{scenario.name}: {scenario.says}")
    capacity, rate = None, None
    if scenario.needs_capacity:
        found = measure(served, scenario.capacity_workload(seed=args.seed), show=not args.quiet)
        if found.outcome.interrupted:
            return None
        capacity = found.summary
        rate = capacity_rps(capacity)
        options.say(f"{scenario.name}: capacity {rate:.2f} requests/s, {capacity['output_tok_s']:.0f} tok/s")
    workload = scenario.workload(rate, seed=args.seed)
    measured = measure(served, workload, show=not args.quiet)
    folder = args.out / scenario.name
    write_report(measured, served, workload, folder)
    if measured.outcome.interrupted:
        return None
    checks = check(scenario, served, workload, measured, capacity)
    facts = {
        "scenario": scenario.name,
        "says": scenario.says,
        "capacity_rps": rate,
        "checks": [asdict(c) for c in checks],
    }
    (folder / "checks.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    rows = [(one.name, one.wanted, one.found, "holds" if one.holds else "DOES NOT HOLD") for one in checks]
    print(f"\n{scenario.name}: {measured.summary['requests']['outcomes']}, report in {folder}")
    print(plain(Table(("expectation", "wanted", "found", ""), rows)), flush=True)
    return checks
