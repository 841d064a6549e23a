"""``/dspark/state``, ``/dspark/policy`` and ``/dspark/records`` on SGLang's own HTTP server.

They talk to the scheduler process through SGLang's internal-state requests, which carry numbers only.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response

from dspark_sglang.bridge.conditions import refuse_policy
from dspark_sglang.http.errors import ApiError
from dspark_sglang.policy_codec import SEND_ROUNDS, decode, encode
from dspark_sglang.selection import BRIDGE
from sgl_dspark.errors import ConfigError
from sgl_dspark.planner.config import PlannerConfig

# One reader of rounds at a time, since the scheduler remembers one number to send them from.
_READING = asyncio.Lock()


def add_routes(app: FastAPI) -> None:
    """Add our routes to SGLang's application, once, before it serves."""
    from sglang.srt.utils.auth import AuthLevel, auth_level

    guarded = auth_level(AuthLevel.ADMIN_OPTIONAL)
    app.add_api_route("/dspark/state", state, methods=["GET"])
    app.add_api_route("/dspark/policy", guarded(policy), methods=["POST"])
    app.add_api_route("/dspark/records", guarded(records), methods=["GET"])


async def state() -> Response:
    """Model, calibration, step times, last decisions, totals and fallbacks of each worker."""
    found = await _worker_states()
    if not found:
        return _refusal(404, "no DSpark worker serves here; start without --plain to see one")
    for one in found:
        # Somebody may be reading records at this moment.
        one.pop("rounds", None)
    return JSONResponse(found[0] if len(found) == 1 else {"replicas": found})


async def policy(request: Request) -> Response:
    """Switch how much is verified, while requests run."""
    found = await _worker_states()
    if not found:
        return _refusal(404, "no DSpark worker serves here; start without --plain to choose a policy")
    try:
        body = await request.json()
    except ValueError:
        return _refusal(400, 'the body is not JSON; send {"policy": "adaptive"} for example')
    try:
        numbers = encode(body, found[0]["policy"], found[0]["model"]["gamma"])
        if found[0]["model"].get("worker") == BRIDGE:
            refuse_policy(decode(numbers, PlannerConfig()))
    except ConfigError as error:
        return _refusal(400, str(error))
    if not await _tell(numbers):
        return _refusal(500, "the scheduler refused the policy; its log says why")
    return JSONResponse({"policy": (await _worker_states())[0]["policy"]})


async def records(after: int = Query(0, ge=0)) -> Response:
    """Return verified rounds from number ``after`` on; see `dspark_sglang.rounds.RoundLog.reply`."""
    async with _READING:
        await _tell({SEND_ROUNDS: after})
        try:
            found = await _worker_states()
        finally:
            await _tell({SEND_ROUNDS: -1})
    rounds = found[0].get("rounds") if found else None
    if rounds is None:
        return _refusal(404, "no DSpark worker serves here; start without --plain to record rounds")
    return JSONResponse(rounds)


async def _tell(numbers: dict[str, int | float]) -> bool:
    """Send numbers to every worker; whether all took them."""
    from sglang.srt.managers.io_struct import SetInternalStateReq

    return all(await _manager().set_internal_state(SetInternalStateReq(server_args=numbers)))


def _manager() -> Any:
    from sglang.srt.entrypoints import http_server

    return http_server._global_state.tokenizer_manager


async def _worker_states() -> list[dict[str, Any]]:
    """State of the worker of each replica, empty where our worker does not serve."""
    states = await _manager().get_internal_state()
    found = [state.get("dspark_info_record") for state in states]
    return [one for one in found if isinstance(one, dict) and "policy" in one]


def _refusal(status: int, message: str) -> Response:
    return ApiError(status, message).response("/dspark")
