"""Which rounds a calibration is fitted on and which are held out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dspark_sglang.bench.client import RequestSettings, measure_level
from dspark_sglang.calibrate.source import Server
from sgl_dspark.calibration.records import RecordSet
from sgl_dspark.data.prompt_set import Prompt
from sgl_dspark.errors import DataError

Log = Callable[[str], None]
_POLL_S = 2.0
# Rounds to collect for one more per slot of 20 bins to mean something.
FEW_ROUNDS = 2000


@dataclass(frozen=True)
class Collected:
    """Rounds to fit on, rounds to judge the fit by, and where they come from.

    Attributes
    ----------
    fit, held_out : RecordSet
    source : dict
        Description for the calibration file.
    """

    fit: RecordSet
    held_out: RecordSet
    source: dict[str, object]


@dataclass(frozen=True)
class Asking:
    """How prompts are sent.

    Attributes
    ----------
    temperatures : sequence of float
        Every prompt is answered once at each.
    concurrency : int
    max_tokens : int
    timeout_s : float
    """

    temperatures: Sequence[float]
    concurrency: int
    max_tokens: int
    timeout_s: float


def split_prompts(prompts: Sequence[Prompt], held_out: float) -> tuple[list[Prompt], list[Prompt]]:
    """Divide prompts, in an order that mixes categories evenly, into those to fit on and those to hold out.

    Raises
    ------
    DataError
        If one side would be empty.
    """
    count = round(len(prompts) * held_out)
    if not 0 < count < len(prompts):
        raise DataError(f"holding out {held_out:g} of {len(prompts)} prompts leaves a side empty; give more prompts")
    return list(prompts[:-count]), list(prompts[-count:])


def by_prompts(server: Server, prompts: Sequence[Prompt], held_out: float, asking: Asking, log: Log) -> Collected:
    """Answer prompts and take the rounds of these answers; held-out rounds come from prompts of their own.

    Parameters
    ----------
    server : Server
        Verifies whole blocks meanwhile; rounds of others that it serves at the time are taken too.
    prompts : sequence of Prompt
    held_out : float
        Share of prompts.
    asking : Asking
    log : callable
    """
    fit: list[RecordSet] = []
    judged: list[RecordSet] = []
    lost = 0
    parts = split_prompts(prompts, held_out)
    with server.verifying_in_full():
        position = server.rounds(0).next_round
        for temperature in asking.temperatures:
            settings = RequestSettings(asking.max_tokens, temperature, timeout_s=asking.timeout_s)
            for part, into, what in zip(parts, (fit, judged), ("fitting", "holding out"), strict=True):
                # Verdicts reach the log one step late, so the last ones of a part may be counted with the next.
                asyncio.run(measure_level(server.url, part, asking.concurrency, settings, flush=False, warm_up=False))
                found = server.rounds(position)
                position, lost = found.next_round, lost + found.lost
                into.append(found.records)
                log(f"temperature {temperature:g}, {what}: {len(part)} answers, {len(found.records)} rounds")
    if lost:
        log(f"{lost} rounds were overwritten before they could be read; send fewer prompts at once")
    source: dict[str, object] = {
        "prompts": len(prompts),
        "temperatures": list(asking.temperatures),
        "max_tokens": asking.max_tokens,
        "concurrency": asking.concurrency,
    }
    return Collected(RecordSet.concat(fit), RecordSet.concat(judged), source)


def by_traffic(server: Server, rounds: int, wait_s: float, held_out: float, log: Log) -> Collected:
    """Take what a server has recorded and, up to ``rounds``, what it will record from its users' requests.

    Parameters
    ----------
    server : Server
        Verifies whole blocks while rounds are awaited.
    rounds : int
        Wanted in all; fewer if they do not come within ``wait_s`` seconds.
    held_out : float
        Share of rounds, in chunks of neighbouring ones.
    """
    found = server.rounds(0)
    parts, position = [found.records], found.next_round
    missing = rounds - len(found.records)
    if missing > 0 and wait_s > 0:
        log(f"{len(found.records)} rounds are recorded; waiting up to {wait_s:.0f} s for {missing} more")
        deadline = time.monotonic() + wait_s
        with server.verifying_in_full():
            while missing > 0 and time.monotonic() < deadline:
                time.sleep(min(_POLL_S, wait_s))
                found = server.rounds(position)
                position = found.next_round
                parts.append(found.records)
                missing -= len(found.records)
    records = RecordSet.concat(parts)
    if not len(records):
        raise DataError(f"{server.url} has recorded no round yet; send it requests, or give --prompts")
    fit, judged = records.split(held_out)
    return Collected(fit, judged, {"traffic": server.url})
