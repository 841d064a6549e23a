"""The user's own comparison: a load or a trace, a machine or a profile, synthetic or recorded confidences."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from sgl_dspark.calibration.records import RecordSet
from sgl_dspark.errors import ConfigError, ProfileError
from sgl_dspark.simulator.acceptance import Recorded, SyntheticConfig
from sgl_dspark.simulator.arms import standard_arms
from sgl_dspark.simulator.arrivals import Lengths, bursty, closed_loop, draining, poisson
from sgl_dspark.simulator.engine import EngineConfig
from sgl_dspark.simulator.machines import MACHINES, Machine
from sgl_dspark.simulator.scenario import Load, Scenario, Source, compare, synthetic
from sgl_dspark.simulator.studies import Cell
from sgl_dspark.simulator.traces import TraceOptions, load_trace
from sgl_dspark.sps.store import from_document

LOADS = {"closed": 1, "poisson": 1, "bursty": 2, "drain": 0}


def compare_mine(args: Namespace, seeds: Sequence[int]) -> Iterator[Cell]:
    """Serve the load that the options describe under every policy.

    Raises
    ------
    ConfigError, DataError, ProfileError
        If an option or a file is unusable; names it.
    """
    name, load = _trace(args) if args.trace else _load(args)
    source, gamma = _acceptance(args)
    scenario = Scenario(name, load, source, _machine(args), EngineConfig(args.max_running))
    arms = standard_arms(gamma, args.lags, args.threshold)
    yield Cell(scenario.machine.name, name, None, compare(scenario, arms, seeds))


def _load(args: Namespace) -> tuple[str, Load]:
    lengths = Lengths(args.prompt_tokens, args.output_tokens)
    kind, *texts = args.load.split(":")
    if kind not in LOADS or len(texts) != LOADS[kind]:
        raise ConfigError(f"--load: {args.load!r} is not closed:CLIENTS, poisson:RPS, bursty:RPS:CV or drain")
    try:
        numbers = [int(text) if kind == "closed" else float(text) for text in texts]
    except ValueError as error:
        raise ConfigError(f"--load: {args.load!r} needs numbers after the colons, whole ones of clients") from error
    count = args.requests
    if kind == "closed":
        return args.load, lambda rng: closed_loop(count, round(numbers[0]), lengths, rng)
    if kind == "poisson":
        return args.load, lambda rng: poisson(count, numbers[0], lengths, rng)
    if kind == "bursty":
        return args.load, lambda rng: bursty(count, numbers[0], numbers[1], lengths, rng)
    return args.load, lambda rng: draining(count, lengths, rng)


def _trace(args: Namespace) -> tuple[str, Load]:
    options = TraceOptions(limit=args.requests, speed=args.speed, length_scale=args.length_scale)
    return args.trace.name, lambda rng: load_trace(args.trace, options, rng)


def _machine(args: Namespace) -> Machine:
    if args.profile is not None:
        return load_profile(args.profile)
    if args.machine not in MACHINES:
        raise ConfigError(f"--machine: {args.machine!r} is not one of {', '.join(MACHINES)}")
    return MACHINES[args.machine]()


def load_profile(path: Path) -> Machine:
    """Read a measured step-time profile, whatever machine it was measured on.

    Raises
    ------
    ProfileError
        If the file is missing or is not a profile.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProfileError(f"{path} is not a readable step-time profile: {error}") from error
    if not isinstance(document, dict) or "model" not in document:
        raise ProfileError(f"{path} holds no step-time model; write one with `dspark profile`")
    model = from_document(document["model"])
    return Machine(path.name, model, model.host_s, model.prefill_token_s)


def _acceptance(args: Namespace) -> tuple[Source, int]:
    if args.records is None:
        config = SyntheticConfig(mix=tuple(args.mix), temperature=args.temperature)
        return synthetic(config, args.gamma), args.gamma
    records = RecordSet.load(args.records)
    verified, accepted = records.verified.astype(np.int64), records.accepted.astype(np.int64)
    gamma = records.logits.shape[1]
    return lambda output_tok, seed: Recorded(records.logits, verified, accepted, output_tok, seed), gamma
