"""Fetch the last input of the solver from the leading controllers, and solve it with changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import quote

from pydantic import Field, ValidationError

from tidegate.allocation import codec
from tidegate.allocation.solver import Solver
from tidegate.api.allocation_decision import MeasuredValue
from tidegate.api.compute_pool import PolicyMode
from tidegate.api.meta import ObjectKey, StatusModel
from tidegate.api.what_if import PoolChanges, WhatIf
from tidegate.errors import PermanentError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import LEASE
from tidegate.kube.lease import LeaseRecord
from tidegate.kube.port import Manifest
from tidegate.planning.allocator.latency import LatencyMeasurement
from tidegate.planning.allocator.what_if import apply_changes, build_answer
from tidegate.reports.plan import PlanReport
from tidegate.services.endpoints import fetch_json

_PORT: Final = 8081


class NoLeaderError(PermanentError):
    """No controllers lead in the namespace of the installation, so there is no input of the solver."""

    def __init__(self, namespace: str) -> None:
        super().__init__(f"no controllers lead in namespace {namespace}")


QuestionT = TypeVar("QuestionT", bound=PoolChanges)


class MeasuredLatency(StatusModel):
    """What the controllers know of an Inference's p99, as tidegate.planning.allocator.latency does."""

    slo_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    p99_seconds: Annotated[float | None, Field(ge=0, allow_inf_nan=False)] = None
    utilization: Annotated[float | None, Field(ge=0, allow_inf_nan=False)] = None


class LastSolverInput(StatusModel):
    """The last input of the solver, as tidegate.exporters.solver_inputs answers; unknown fields are ignored."""

    at: datetime
    mode: PolicyMode
    snapshot: dict[str, Any]
    values: dict[str, MeasuredValue] = Field(default_factory=dict[str, MeasuredValue])
    """Value per second that was measured before, by Inference as namespace/name."""
    latencies: dict[str, MeasuredLatency] = Field(default_factory=dict[str, MeasuredLatency])
    """Latencies of Inferences with an SLO and a capacity, likewise."""


def parse_what_if(body: Mapping[str, Any]) -> WhatIf:
    """Parse a WhatIf from JSON. Raises PermanentError that names the field."""
    return parse_question(WhatIf, body)


def parse_question(kind: type[QuestionT], body: Mapping[str, Any]) -> QuestionT:
    """Parse a what-if of some kind from JSON. Raises PermanentError that names the field."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        message = f"{path}: {first['msg']}"
        raise PermanentError(message) from error


async def plan_what_if(pool: str, change: WhatIf, last: LastSolverInput) -> PlanReport:
    """Solve the last input with the changes of `change`, in a thread.

    Raises TidegateError with the way out.
    """
    return await asyncio.to_thread(_solve_changed, pool, change, last)


def _solve_changed(pool: str, change: WhatIf, last: LastSolverInput) -> PlanReport:
    snapshot = apply_changes(codec.decode_snapshot(last.snapshot), change)
    started = time.monotonic()
    assignment = Solver(time.monotonic).solve(snapshot)
    seconds = time.monotonic() - started
    result = build_answer(snapshot, assignment, pool=pool, time=last.at, mode=last.mode, seconds=seconds)
    latencies = {
        name: LatencyMeasurement(latency.slo_seconds, latency.p99_seconds, latency.utilization)
        for name, latency in last.latencies.items()
    }
    return PlanReport.from_answer(result, last.at, change, last.values, latencies)


async def fetch_from_leader(client: KubeClient, pool: str, release: str, namespace: str) -> LastSolverInput:
    """Fetch the solver's last input about a pool from the leader of a release, by a port forward to its pod.

    Raises NoLeaderError, and TidegateError if the leader does not answer.
    """
    body = await client.get(LEASE, ObjectKey(namespace, f"{release}-controllers"))
    leader = _leader_pod(body, namespace)
    return _parse_response(await client.read_from_pod(leader, _PORT, _input_path(pool)))


async def fetch_from_address(address: str, pool: str) -> LastSolverInput:
    """Fetch the solver's last input about a pool from the controllers at host:port."""
    return _parse_response(await fetch_json(address, _input_path(pool), "controllers process"))


def _input_path(pool: str) -> str:
    return f"/allocation/{quote(pool, safe='')}"


def _leader_pod(body: Manifest | None, namespace: str) -> ObjectKey:
    leader = LeaseRecord.parse(body).holder.partition("_")[0] if body is not None else ""
    if not leader:
        raise NoLeaderError(namespace)
    return ObjectKey(namespace, leader)


def _parse_response(response: Mapping[str, Any]) -> LastSolverInput:
    if "error" in response:
        raise PermanentError(str(response["error"]))
    try:
        return LastSolverInput.model_validate(response)
    except ValidationError as error:
        message = (
            "cannot parse the controllers' answer: their version differs from the version of this program"
        )
        raise PermanentError(message) from error
