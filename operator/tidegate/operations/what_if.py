"""Fetch the last input of the solver from the leading controllers, and solve it with changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from pydantic import ValidationError

from tidegate.allocation import codec
from tidegate.allocation.solver import Solver
from tidegate.api.compute_pool import PolicyMode
from tidegate.api.meta import ObjectKey, StatusModel
from tidegate.api.what_if import WhatIf
from tidegate.errors import ApiUnavailableError, PermanentError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import LEASE
from tidegate.kube.lease import LeaseRecord
from tidegate.kube.port import Manifest
from tidegate.planning.what_if import answer, changed
from tidegate.reports.plan import PlanReport
from tidegate_dataplane.contract.answers import bounded_session, parse_json, read_body

_PORT: Final = 8081
_TIMEOUT: Final = aiohttp.ClientTimeout(total=30)
_MOST_BYTES: Final = 256 << 20
"""Larger than the snapshot of any fleet."""


class LastQuestion(StatusModel):
    """The last input of the solver, as tidegate_controllers.questions answers; unknown fields are ignored."""

    at: datetime
    mode: PolicyMode
    snapshot: dict[str, Any]


def question(body: Mapping[str, Any]) -> WhatIf:
    """Parse a WhatIf from JSON. Raises PermanentError that names the field."""
    try:
        return WhatIf.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        message = f"{path}: {first['msg']}"
        raise PermanentError(message) from error


async def plan_otherwise(pool: str, asked: WhatIf, last: LastQuestion) -> PlanReport:
    """Solve the last input with the changes of `asked`, in a thread.

    Raises TidegateError with the way out.
    """
    return await asyncio.to_thread(_solved, pool, asked, last)


def _solved(pool: str, asked: WhatIf, last: LastQuestion) -> PlanReport:
    snapshot = changed(codec.decode_snapshot(last.snapshot), asked)
    started = time.monotonic()
    assignment = Solver(time.monotonic).solve(snapshot)
    seconds = time.monotonic() - started
    result = answer(snapshot, assignment, pool=pool, at=last.at, mode=last.mode, seconds=seconds)
    return PlanReport.of(result, last.at, asked)


async def of_leader(client: KubeClient, pool: str, release: str, namespace: str) -> LastQuestion:
    """Fetch the solver's last input about a pool from the leader of a release, by a port forward to its pod."""
    body = await client.get(LEASE, ObjectKey(namespace, f"{release}-controllers"))
    leader = _pod(body, namespace)
    return _read(await client.read_from_pod(leader, _PORT, f"/allocation/{quote(pool, safe='')}"))


async def at_address(address: str, pool: str) -> LastQuestion:
    """Fetch the solver's last input about a pool from the controllers at host:port."""
    try:
        async with (
            bounded_session(_TIMEOUT) as session,
            session.get(f"http://{address}/allocation/{quote(pool, safe='')}") as response,
        ):
            return _read(parse_json(await read_body(response, _MOST_BYTES)))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        message = f"no controllers answer at {address}: {error}"
        raise ApiUnavailableError(message) from error


def _pod(body: Manifest | None, namespace: str) -> ObjectKey:
    leader = LeaseRecord.parse(body).holder.partition("_")[0] if body is not None else ""
    if not leader:
        message = (
            f"no controllers lead in namespace {namespace}: run tidegate doctor -n {namespace}, or name the "
            "installation's namespace with -n"
        )
        raise PermanentError(message)
    return ObjectKey(namespace, leader)


def _read(said: Mapping[str, Any]) -> LastQuestion:
    if "error" in said:
        raise PermanentError(str(said["error"]))
    try:
        return LastQuestion.model_validate(said)
    except ValidationError as error:
        message = "cannot parse the controllers' answer: they have another version than this command"
        raise PermanentError(message) from error
