"""``dspark serve``: SGLang's server with our worker."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

POLICIES = ("adaptive", "static", "threshold", "early-stop")
HELP = "serve a model with DSpark; takes every SGLang flag unchanged"
PASS_THROUGH = True


def add_arguments(parser: ArgumentParser) -> None:
    """Declare our own options; everything else goes to SGLang."""
    parser.description = (
        "Start SGLang's OpenAI-compatible server with the DSpark worker. Without --model-path the demo target and its "
        "draft are served. Every option of SGLang is accepted unchanged (list: python -m sglang.launch_server --help); "
        "the most used are --model-path, --speculative-draft-model-path, --host, --port, --dtype, "
        "--max-running-requests, --context-length. Metrics are on (docs/observability.md)."
    )
    parser.add_argument("--plain", action="store_true", help="serve the target alone, for comparison")
    parser.add_argument(
        "--shortlist",
        type=int,
        metavar="N",
        help="the draft samples from the N largest of its own base logits at each slot; 0: all. Exact for "
        "every N; pays from vocabularies of about 30,000 on. Default: all, 64 for the demo",
    )
    parser.add_argument("--no-metrics", action="store_true", help="do not export Prometheus metrics at /metrics")
    parser.add_argument(
        "--sla",
        metavar="LIST",
        help="tokens per second per user at which service is judged in the metrics (default: 20,35,50,80,120)",
    )
    scheduling = parser.add_argument_group("how much is verified (see docs/scheduling.md)")
    scheduling.add_argument(
        "--policy",
        choices=POLICIES,
        help="adaptive (default): what pays at the current load; static: --verify-drafts of each block; threshold: "
        "drafts above --confidence-threshold; early-stop: the paper's Algorithm 1",
    )
    for flag, kind, metavar, text in (
        ("--verify-drafts", int, "N", "drafts per request of --policy static; 0 never drafts. Default: all"),
        ("--confidence-threshold", float, "P", "least confidence of a draft that --policy threshold verifies"),
        ("--max-verify-budget", int, "K", "most drafts verified in one step, over all requests. Default: no bound"),
        ("--min-gain", float, "G", "predicted gain over a plain step from which drafting begins (default: 0.02)"),
        ("--calibration", str, "FILE", "confidence calibration; default: calibration.json beside the draft; or off"),
        ("--step-time-profile", str, "FILE", "where step times are kept; default: the user's cache; or off"),
    ):
        scheduling.add_argument(flag, type=kind, metavar=metavar, help=text)
    scheduling.add_argument(
        "--no-online", action="store_true", help="keep calibration and step times as they are at the start"
    )
    _add_http_arguments(parser)


def _add_http_arguments(parser: ArgumentParser) -> None:
    http = parser.add_argument_group("HTTP interface (see docs/api.md)")
    for flag, kind, metavar, text in (
        ("--max-body-mib", float, "N", "largest request body in MiB; 0: no limit (default: 64)"),
        (
            "--drain-timeout",
            float,
            "S",
            "seconds from SIGTERM to the end; running requests may end meanwhile (default: 30)",
        ),
        ("--cors-origins", str, "LIST", "origins whose pages may read answers, comma-separated, or none (default: *)"),
    ):
        http.add_argument(flag, type=kind, metavar=metavar, help=text)
    for flag in ("--api-key", "--admin-api-key"):
        http.add_argument(
            f"{flag}-file",
            metavar="FILE",
            help=f"file with the key that {flag} would show to everybody on this machine; not served without",
        )
    http.add_argument("--any-model", action="store_true", help="serve every model name; else 404 for an unknown one")


def run(args: Namespace) -> int:
    """Serve until stopped; 0 after SIGTERM, even while loading, and after Ctrl-C once it serves."""
    from dspark_sglang.key_files import key_flags
    from dspark_sglang.startup_signal import end_on_sigterm

    # First of all: importing and loading take minutes.
    end_on_sigterm()
    keys = key_flags(args.rest, {"--api-key": args.api_key_file, "--admin-api-key": args.admin_api_key_file})

    import torch

    from dspark_sglang.cuda_flags import for_cuda
    from dspark_sglang.http.settings import set_http
    from dspark_sglang.launch import plan_launch, serve, set_shortlist
    from dspark_sglang.metrics.flags import set_sla
    from dspark_sglang.scheduling_flags import set_scheduling

    cuda = torch.cuda.is_available()
    plan = plan_launch([*args.rest, *keys], plain=args.plain, cuda=cuda, metrics=not args.no_metrics)
    if cuda:
        plan = for_cuda(plan)
    set_sla(args.sla)
    set_shortlist(plan, args.shortlist)
    set_scheduling(args)
    set_http(args)
    serve(plan)
    return 0
