"""Load tests: replay traces of production against a server, account for every token, draw the Pareto frontier."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

HELP = "replays traces of production against a server: latency, goodput, tokens of both sides, Pareto"
EPILOG = """examples:
  dspark loadtest replay                                      ten minutes of Azure's conversations on the demo pair
  dspark loadtest replay --url http://127.0.0.1:30000 --trace conv.jsonl.gz --speed 2
  dspark loadtest pareto --concurrency 1,2,4,8,16 --arms plain,static:2,static:4,adaptive
  dspark loadtest scenario --files loadtest/scenarios/*.yaml
                  --url http://127.0.0.1:30000
  dspark loadtest convert AzureLLMInferenceTrace_conv.csv.gz conv.jsonl.gz
  dspark loadtest mock --set '{"tpot_s": 0.02, "tokens_per_chunk": [1, 3]}'

Each action has its own --help. Reports: summary.json, requests.jsonl, report.md, report.html, PNG and SVG."""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the actions; what they need is imported with them."""
    from dspark_loadtest.commands import mock, pareto, replay, scenario, selfcheck, trace

    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for module in (replay, pareto, scenario, selfcheck, mock, trace):
        module.add(actions)


def run(args: Namespace) -> int:
    """Run the action that was asked for; returns its exit status."""
    status: int = args.action(args)
    return status
