"""Start SGLang's server with our worker in place, or say why not.

SGLang logs a plugin that fails and goes on with its own code. So this checks, before
anything is loaded, that every hook took and that DSPARK would build our worker.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark_sglang import preflight
from dspark_sglang.command_line import expand_config, flag_value, pace_flags
from dspark_sglang.key_files import hide_keys, refuse_empty_keys
from dspark_sglang.metrics.flags import metric_flags
from sgl_dspark.errors import ConfigError, LaunchError

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger(__name__)

SUPPORTED_SGLANG = "0.5.23"
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 30000
DEMO_DRAFT = Path(__file__).resolve().parents[2] / "checkpoints" / "smollm2-135m-dspark"
# The demo target has 49,152 tokens; evaluating the head on all of them takes longer
# than the rest of the draft (see docs/architecture.md).
DEMO_SHORTLIST = 64
_MODEL_FLAGS = ("--model-path", "--model")
_DRAFT_FLAGS = ("--speculative-draft-model-path", "--speculative-draft-model")


@dataclass(frozen=True)
class LaunchPlan:
    """What ``dspark serve`` was asked for.

    Attributes
    ----------
    arguments : list of str
        SGLang's command line, the user's flags first and unchanged.
    speculative : bool
        Whether our worker is meant to serve.
    demo : bool
        Whether the demo's draft is served: since no model was named, or by its path.
    """

    arguments: list[str]
    speculative: bool
    demo: bool = False


def plan_launch(arguments: Sequence[str], *, plain: bool, cuda: bool, metrics: bool = False) -> LaunchPlan:
    """Complete the user's SGLang flags.

    Parameters
    ----------
    arguments : sequence of str
        What the user gave, passed on unchanged.
    plain : bool
        Serve the target alone.
    cuda : bool
        Whether a CUDA device is there; without one ``--device cpu`` is added.
    metrics : bool
        Switch SGLang's metrics on.

    Returns
    -------
    LaunchPlan
        Without a model: the demo target and its draft. With a draft: DSPARK.

    Raises
    ------
    ConfigError
        If a target is given without a draft, a draft with ``--plain``, an API key that is empty, or no model where the
        demo draft is not.
    """
    full = expand_config(arguments)
    refuse_empty_keys(full)
    algorithm = flag_value(full, "--speculative-algorithm")
    draft = flag_value(full, *_DRAFT_FLAGS)
    if flag_value(full, *_MODEL_FLAGS) is None:
        lacks_draft = draft is None and algorithm is None and not plain
        if lacks_draft and not DEMO_DRAFT.is_dir():
            raise ConfigError(
                "the demo draft comes with a checkout, not with an installed package: serve from a checkout, or name a "
                "pair with --model-path and --speculative-draft-model-path"
            )
        full += ["--model-path", str(_demo_target())]
        if lacks_draft:
            draft = str(DEMO_DRAFT)
            full += [_DRAFT_FLAGS[0], draft]
    if plain:
        if draft is not None or algorithm is not None:
            raise ConfigError("--plain serves the target alone; leave out the --speculative-* flags or --plain")
    elif algorithm is None:
        if draft is None:
            # A mistyped target explains itself better than the draft that it lacks.
            preflight.check_target(flag_value(full, *_MODEL_FLAGS) or "")
            raise ConfigError(
                "no draft for this target: give --speculative-draft-model-path, or --plain to serve without one"
            )
        full += ["--speculative-algorithm", "DSPARK"]
        algorithm = "DSPARK"
    if not cuda and flag_value(full, "--device") is None:
        full += ["--device", "cpu"]
    if metrics:
        full += metric_flags(full)
    demo = draft is not None and Path(draft).resolve() == DEMO_DRAFT
    return LaunchPlan(full, algorithm is not None and algorithm.upper() == "DSPARK", demo)


def set_shortlist(plan: LaunchPlan, shortlist: int | None) -> None:
    """Hand the draft's shortlist to the worker process, which reads it from the environment.

    Parameters
    ----------
    plan : LaunchPlan
        The demo draft gets `DEMO_SHORTLIST`, by whatever path it is served, unless the environment or the user says
        otherwise.
    shortlist : int or None
        ``--shortlist``; 0 means all candidates.

    Raises
    ------
    ConfigError
        If it is negative.
    """
    from dspark_sglang.config import SHORTLIST_VARIABLE

    if shortlist is not None and shortlist < 0:
        raise ConfigError(f"--shortlist must be at least 0, not {shortlist}")
    if shortlist is not None:
        os.environ[SHORTLIST_VARIABLE] = str(shortlist)
    elif plan.demo:
        os.environ.setdefault(SHORTLIST_VARIABLE, str(DEMO_SHORTLIST))


def _demo_target() -> Path:
    from sgl_dspark.demo.smollm2 import prepare

    return prepare(None, lambda line: print(f"prepare: {line}", file=sys.stderr, flush=True))  # noqa: T201


def check_version() -> None:
    """Raise `LaunchError` unless the SGLang that this package was written for is installed."""
    try:
        version = metadata.version("sglang")
    except metadata.PackageNotFoundError:
        raise LaunchError("SGLang is not installed; run: pip install 'sgl-dspark[serve]'") from None
    if version != SUPPORTED_SGLANG:
        raise LaunchError(
            f"SGLang {version} is installed, but this version of sgl-dspark hooks into {SUPPORTED_SGLANG}; "
            f"run: pip install sglang=={SUPPORTED_SGLANG}"
        )


def check_plugin() -> None:
    """Load SGLang's plugins and raise `LaunchError` unless all of ours took effect."""
    from sglang.srt.plugins import load_plugins
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from dspark_sglang import plugin, selection

    load_plugins()
    if not plugin.RECORD.registered:
        raise LaunchError(
            "SGLang did not load the dspark plugin; reinstall sgl-dspark, and include dspark in SGLANG_PLUGINS if set"
        )
    missing = plugin.missing_hooks()
    if missing:
        raise LaunchError(f"SGLang did not take the hook on {missing[0]}; run dspark doctor")
    if selection.worker_choice() != selection.UPSTREAM:
        built = SpeculativeAlgorithm.DSPARK.create_worker(None)
        if built is not selection.worker_class("DSPARK"):
            raise LaunchError(
                f"DSPARK would build {built.__module__}.{built.__qualname__} instead of our worker; run dspark doctor"
            )


def set_threads() -> None:
    """Give the model its default number of threads on a CPU, unless the environment names one."""
    from dspark_sglang.threads import default_threads

    if "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = str(default_threads())
    logger.info("model threads: %s (OMP_NUM_THREADS)", os.environ["OMP_NUM_THREADS"])


def serve(plan: LaunchPlan) -> None:
    """Run the server until it is stopped, then end every child process.

    Raises
    ------
    DsparkError
        One sentence, before anything is loaded, if it cannot serve as asked.
    """
    from dspark_sglang import selection

    check_version()
    ours = selection.worker_choice() == selection.OURS
    host, port = flag_value(plan.arguments, "--host"), flag_value(plan.arguments, "--port")
    if port is None or port.isdecimal():
        preflight.check_port(host or DEFAULT_HOST, int(port or DEFAULT_PORT))
    target = flag_value(plan.arguments, *_MODEL_FLAGS)
    config = preflight.check_target(target) if target is not None else None
    draft = flag_value(plan.arguments, *_DRAFT_FLAGS)
    if plan.speculative and ours and config is not None and draft is not None:
        preflight.check_pair(config, draft)
    check_plugin()

    from sglang.srt.utils import kill_process_tree

    server_args, view = _resolve(plan.arguments + pace_flags(plan.arguments))
    if ours and (view.speculative_algorithm or "").upper() == selection.ALGORITHM:
        preflight.refuse_flags(view)
    try:
        _run(server_args, view)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def _resolve(arguments: list[str]) -> tuple[Any, Any]:
    """Let SGLang parse and resolve its flags; returns the record and the resolved view of it."""
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.server_args import prepare_server_args

    if flag_value(arguments, "--device") == "cpu":
        set_threads()
    try:
        server_args = prepare_server_args(arguments)
        server_args.resolve_once()
    except (ValueError, AssertionError) as error:
        raise LaunchError(f"SGLang refuses these flags: {error}") from error
    return server_args, resolving_view(server_args)


def _run(server_args: Any, view: Any) -> None:
    from sglang.srt.entrypoints import http_server

    from dspark_sglang import ui
    from dspark_sglang.http.install import install, warm_up
    from dspark_sglang.http.routes import add_routes
    from dspark_sglang.http.settings import HttpSettings

    hide_keys()
    add_routes(http_server.app)
    ui.add_routes(http_server.app)
    settings, options = HttpSettings.from_environment(), {}
    if settings.layer:
        layer = install(http_server.app, settings)
        options["execute_warmup_func"] = partial(warm_up, layer, http_server._execute_server_warmup)
    http_server.launch_server(server_args, launch_callback=lambda: _announce(view), **options)


def _announce(view: Any) -> None:
    host = "127.0.0.1" if view.host in ("0.0.0.0", "::") else view.host
    host = f"[{host}]" if ":" in host else host
    sys.stderr.write(
        f"\nReady. Ask it something:\n\ncurl -s http://{host}:{view.port}/v1/chat/completions "
        "-H 'Content-Type: application/json' \\\n"
        '  -d \'{"model": "default", "messages": [{"role": "user", "content": "What is a prime number?"}], '
        '"max_tokens": 64}\'\n\n'
    )
    sys.stderr.flush()
