"""Measures every arm at every load, in alternation, on the same machine.

An arm is a server (``plain``, or one at a URL) or a policy of the DSpark server (``adaptive``, ``static:3``), which
is switched between runs. Servers take turns, forwards and backwards; policies of one server begin with another one each
time; so a machine that slows down favours none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dspark_loadtest.errors import LoadtestError
from dspark_loadtest.plan import Plan
from dspark_loadtest.session import Measured, Served, Workload, look_at, measure
from dspark_loadtest.traces.fit import retime
from dspark_loadtest.traces.request import Trace
from sgl_dspark.comparison import Policy, rotated, schedule
from sgl_dspark.server_process import Arm

# The server whose policies are arms.
DSPARK = "dspark"


@dataclass(frozen=True)
class Sweep:
    """What is measured.

    Attributes
    ----------
    workload : Workload
        Everything but the load.
    loads : sequence of float
        Concurrency of a closed loop, or requests a second of an open one.
    by_rate : bool
        Which of the two.
    repeats : int
        Turns of every server; over an even number none is favoured by a machine that drifts.
    requests, waves : int
        A run asks at least ``requests``, and at least ``waves`` times as many as clients (closed loop) or, with rates,
        as long as ``duration_s`` at that rate.
    duration_s : float
        Of a run of an open loop.
    policies : sequence of Policy
        Arms of the server named ``dspark``; none: every server is an arm by itself.
    prompts : sequence of Path or None
        Sources of text.
    """

    workload: Workload
    loads: Sequence[float]
    by_rate: bool = False
    repeats: int = 4
    requests: int = 16
    waves: int = 4
    duration_s: float = 60.0
    policies: Sequence[Policy] = ()
    prompts: Sequence[Any] = ()

    def at(self, load: float, repeat: int) -> Workload:
        """Return the workload of one run; equal for every arm.

        Requests are equal in every repeat, too. With rates their arrivals are drawn anew for each: the chance of one
        draw, such as few requests while the server fills, shows in the spread instead of in every repeat alike.
        """
        work = self.workload
        if self.by_rate:
            trace = retime(work.trace, load, seed=work.seed + repeat)
            return replace(work, trace=trace, plan=replace(work.plan, concurrency=None, duration_s=self.duration_s))
        clients = int(load)
        count = max(self.requests, self.waves * clients)
        plan = Plan(concurrency=clients, max_requests=count, cycle=True, drain_s=work.plan.drain_s, seed=work.seed)
        return replace(work, plan=plan, warm_up=max(work.warm_up, clients))


@dataclass(frozen=True)
class Run:
    """One arm at one load in one repeat.

    Attributes
    ----------
    repeat, turn : int
        From 0; the turn of its server over the whole sweep.
    arm : str
    load : float
    measured : dict
        See `dspark_loadtest.stats.summarise`.
    """

    repeat: int
    turn: int
    arm: str
    load: float
    measured: dict[str, Any] = field(repr=False)


def run_sweep(
    arms: Sequence[Arm], sweep: Sweep, runs: list[Run], *, log: Callable[[str], None], show: bool = False
) -> Trace | None:
    """Measure everything; each run is appended as soon as it is complete, so that Ctrl-C keeps it.

    Returns
    -------
    Trace or None
        The last trace that was sent, fitted to the server.

    Raises
    ------
    DsparkError
        If a server fails or refuses a policy.
    KeyboardInterrupt
        After Ctrl-C; the run that was broken off is dropped.
    """
    trace = None
    for turn, (repeat, index) in enumerate(schedule(len(arms), sweep.repeats)):
        arm = arms[index]
        log(f"repeat {repeat + 1} of {sweep.repeats}, {arm.name}: {'starting it' if arm.ours else 'at its URL'}")
        with arm.open() as url:
            served = look_at(url, sweep.prompts)
            for load in sweep.loads:
                for policy in _policies(arm, sweep, repeat):
                    measured = _measure(served, sweep.at(load, repeat), policy, show=show)
                    name = policy.name if policy else arm.name
                    runs.append(Run(repeat, turn, name, load, measured.summary))
                    trace = measured.trace
                    log(f"repeat {repeat + 1}, {name}, load {load:g}: {_line(measured.summary)}")
    return trace


def _policies(arm: Arm, sweep: Sweep, repeat: int) -> Sequence[Policy | None]:
    return rotated(sweep.policies, repeat) if sweep.policies and arm.name == DSPARK else [None]


def _measure(served: Served, workload: Workload, policy: Policy | None, *, show: bool) -> Measured:
    if policy is not None:
        served.endpoint.set_policy(policy.body)
    measured = measure(served, workload, show=show)
    if measured.outcome.interrupted:
        raise KeyboardInterrupt
    if not measured.summary["requests"]["ok"]:
        said = next((record.message for record in measured.outcome.records if record.message), "nothing")
        raise LoadtestError(f"no request was answered; the server said: {said}")
    return measured


def _line(summary: dict[str, Any]) -> str:
    rate, user, spec = summary["output_tok_s"], summary["tok_s_user"], summary["speculation"]
    parts = [f"{rate:.1f} tok/s" if rate is not None else "no steady time"]
    if user is not None:
        parts.append(f"{user['p50']:.1f} tok/s of a user")
    if spec is not None:
        parts.append(f"accept length {spec['mean_accept_len']:.2f} of {spec['mean_verify_len']:.2f} verified")
    if summary["problems"]:
        parts.append("PROBLEM: " + summary["problems"][0])
    return ", ".join(parts)
