"""``dspark serve``: SGLang's server with our worker."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

HELP = "serve a model with DSpark; takes every SGLang flag unchanged"
PASS_THROUGH = True


def add_arguments(parser: ArgumentParser) -> None:
    """Declare our own options; everything else goes to SGLang."""
    parser.description = (
        "Start SGLang's OpenAI-compatible server with the DSpark worker. Without --model-path the demo target and its "
        "draft are served. Every option of SGLang is accepted unchanged (list: python -m sglang.launch_server --help); "
        "the most used are --model-path, --speculative-draft-model-path, --host, --port, --dtype, "
        "--max-running-requests, --context-length, --enable-metrics."
    )
    parser.add_argument("--plain", action="store_true", help="serve the target alone, for comparison")
    parser.add_argument(
        "--shortlist",
        type=int,
        metavar="N",
        help="the draft samples from the N largest of its own base logits at each slot; 0: all. Exact for "
        "every N; pays from vocabularies of about 30,000 on. Default: all, 64 for the demo",
    )


def run(args: Namespace) -> int:
    """Serve until stopped; 0 after Ctrl-C or SIGTERM."""
    import torch

    from dspark_sglang.launch import plan_launch, serve, set_shortlist

    plan = plan_launch(args.rest, plain=args.plain, cuda=torch.cuda.is_available())
    set_shortlist(plan, args.shortlist)
    serve(plan)
    return 0
