"""The REST API: objects as the API server has them, the reports of the command line, and changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from enum import StrEnum
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tidegate.api.meta import DNS_LABEL, ObjectKey
from tidegate.api.release_commands import ReleaseCommand
from tidegate.api.what_if import WhatIf
from tidegate.errors import RetryableError
from tidegate.planning.allocator.move_budget import RemainingBudget
from tidegate.reports.decision import DecisionReport
from tidegate.reports.explanation import InferenceReport, PoolReport
from tidegate.reports.next_hours import NextHoursReport
from tidegate.reports.overrides import SteeringReport
from tidegate.reports.plan import PlanReport
from tidegate.reports.release import ReleaseReport
from tidegate.reports.rows import ListRow
from tidegate.reports.simulation import SimulationReport
from tidegate.web import actions
from tidegate.web.actions import OverrideInput
from tidegate.web.charts import DemandSample, SliceSample, Window
from tidegate.web.explanations import list_recent_decisions, report_inference, report_pool
from tidegate.web.listing import PAGE_SIZE, Plural, RowQuery, SortOrder, select_page
from tidegate.web.pool_power import NodeSlots, SliceFlow, list_pod_namespaces, list_slots, summarise_power
from tidegate.web.request_context import (
    LIST_DECISIONS,
    AuthenticatedContext,
    ObjectNotFoundError,
    RequestContext,
    not_found_error,
)
from tidegate.web.row_pages import read_row_page
from tidegate.web.simulations import DayComparison, DayRequest

_LABEL: Final = f"^{DNS_LABEL}$"
_MAX_PAGE_SIZE: Final = 200
_TOPIC_PATTERN: Final = r"^[a-z]+(/[a-z0-9.-]+){0,2}$"
_MAX_TOPICS: Final = 8
_STREAM_S: Final = 300.0
"""The longest duration of a stream: the browser then reconnects by itself, and its rights are checked again."""
_MAX_STREAMS: Final = 5_000
_MAX_STREAMS_PER_USER: Final = 100
"""Prevents one user from opening all streams."""

router: Final = APIRouter(prefix="/api/v1")


class ErrorResponse(BaseModel):
    """The reason why a request failed."""

    detail: str


ERROR_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": ErrorResponse, "description": "Invalid request."},
    401: {"model": ErrorResponse, "description": "Authentication required."},
    403: {"model": ErrorResponse, "description": "The user has no right to it."},
    404: {"model": ErrorResponse, "description": "The object does not exist."},
    409: {"model": ErrorResponse, "description": "The object changed at the same time."},
    421: {"model": ErrorResponse, "description": "The host name is not one of the dashboard's."},
    422: {"model": ErrorResponse, "description": "A field has an invalid value."},
    429: {"model": ErrorResponse, "description": "Too many invalid tokens."},
    503: {
        "model": ErrorResponse,
        "description": "The API server, the controllers or Prometheus do not respond.",
    },
}


class CamelCaseModel(BaseModel):
    """A model with camelCase names, as in the objects."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class NamespacedPlural(StrEnum):
    """Plural of a namespaced kind."""

    INFERENCES = "inferences"
    ACCESSES = "modelaccesses"
    FEATURES = "featurecomputes"


class ClusterPlural(StrEnum):
    """Plural of a cluster-scoped kind."""

    POOLS = "computepools"
    OVERRIDES = "computeoverrides"
    DECISIONS = "allocationdecisions"


class CurrentUser(CamelCaseModel):
    """The user of the request, and their rights."""

    user: str
    groups: tuple[str, ...]
    may_override: bool
    may_plan: bool


class ResourceCount(CamelCaseModel):
    """The number of visible objects of one kind."""

    total: int
    not_well: int


class FleetOverview(CamelCaseModel):
    """The number of objects of each kind, and the worst of each."""

    counts: Mapping[str, ResourceCount]
    worst: Mapping[str, tuple[ListRow, ...]]


class RowList(CamelCaseModel):
    """One page of a list, worst first."""

    items: tuple[ListRow, ...]
    total: int
    not_well: int
    page: int
    pages: int


class DecisionList(CamelCaseModel):
    """One page of the decision log, the newest first."""

    decisions: tuple[DecisionReport, ...]
    total: int
    page: int
    pages: int


class PowerReport(CamelCaseModel):
    """The assignment of a pool's compute."""

    pool: str
    healthy: int
    free: int
    tiers: Mapping[str, int]
    price: float | None
    """The value per second that one more slice would have added at the last decision; absent without one."""
    budget: RemainingBudget | None
    flows: tuple[SliceFlow, ...]
    """Slices that moved in the last hour."""
    nodes: tuple[NodeSlots, ...]


class PlanRequest(WhatIf):
    """A WhatIf about a pool."""

    pool: Annotated[str, Field(pattern=_LABEL, max_length=63)]


Name = Annotated[str, Path(pattern=_LABEL, max_length=63)]
Namespace = Annotated[str, Path(pattern=_LABEL, max_length=63)]


@router.get("/me")
async def get_me(context: AuthenticatedContext) -> CurrentUser:
    """Return the user of the request, and their rights."""
    return CurrentUser(
        user=context.identity.user,
        groups=context.identity.groups,
        may_override=await context.is_allowed(actions.CREATE_OVERRIDE),
        may_plan=await context.is_allowed(actions.plan_right(context)),
    )


@router.get("/overview", responses=ERROR_RESPONSES)
async def get_overview(context: AuthenticatedContext) -> FleetOverview:
    """Return counts and the worst objects of all kinds that the user may list."""
    counts: dict[str, ResourceCount] = {}
    worst: dict[str, tuple[ListRow, ...]] = {}
    for plural in Plural:
        listing = context.app.listings[plural]
        within = await context.app.rights.filter_namespaces(
            context.identity, plural, listing.list_namespaces()
        )
        if within is not None and not within:
            continue
        total, unhealthy = listing.count_rows(within)
        counts[plural.value] = ResourceCount(total=total, not_well=unhealthy)
        worst[plural.value] = listing.get_page(RowQuery(size=10), within).rows
    return FleetOverview(counts=counts, worst=worst)


@router.get("/rows/{plural}", responses=ERROR_RESPONSES)
async def list_rows(
    context: AuthenticatedContext,
    plural: Plural,
    q: Annotated[
        str,
        Query(
            max_length=200, description="Text in the name, the reason, the detail or a label like team=ads."
        ),
    ] = "",
    namespace: Annotated[str, Query(max_length=63)] = "",
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    size: Annotated[int, Query(ge=1, le=_MAX_PAGE_SIZE)] = PAGE_SIZE,
    sort: SortOrder = "state",
) -> RowList:
    """Return objects of a kind as rows, worst first unless `sort` names another column."""
    within = await context.list_namespaces(plural, namespace)
    selected = read_row_page(context.app, plural, RowQuery(q, namespace, page, size, sort), within)
    return RowList(
        items=selected.rows,
        total=selected.total,
        not_well=selected.not_well,
        page=selected.number,
        pages=selected.pages,
    )


@router.get("/computepools/{name}/why", responses=ERROR_RESPONSES)
async def get_pool_explanation(context: AuthenticatedContext, name: Name) -> PoolReport:
    """Explain the assignment of a pool's slices."""
    pool = await context.read_object(context.app.fleet.pools, ObjectKey("", name))
    await context.require(LIST_DECISIONS)
    return report_pool(context.app, pool, await context.list_overrides())


@router.get("/computepools/{name}/power", responses=ERROR_RESPONSES)
async def get_power(context: AuthenticatedContext, name: Name) -> PowerReport:
    """Return the tiers, flows, budget and price of a pool, and the slots of its nodes."""
    pool_power = summarise_power(
        context.app, await context.read_object(context.app.fleet.pools, ObjectKey("", name))
    )
    await context.require(LIST_DECISIONS)
    return PowerReport(
        pool=name,
        healthy=pool_power.pool.status.slices.healthy,
        free=pool_power.free,
        tiers=pool_power.tiers,
        price=pool_power.price,
        budget=pool_power.budget,
        flows=pool_power.flows,
        nodes=list_slots(
            context.app,
            name,
            await context.list_pod_namespaces(list_pod_namespaces(context.app, name)),
            await context.get_node_slices(pool_power.pool),
        ),
    )


@router.get("/computepools/{name}/samples", responses=ERROR_RESPONSES)
async def list_slice_samples(
    context: AuthenticatedContext, name: Name, window: Window = "1h"
) -> tuple[SliceSample, ...]:
    """Return how its slices were assigned: at most 241 samples from Prometheus, evenly over the window, the oldest first."""
    await context.read_object(context.app.fleet.pools, ObjectKey("", name))
    return (await context.app.charts.read(name, window)).slices


@router.get("/computepools/{name}/demand", responses=ERROR_RESPONSES)
async def list_demand_samples(
    context: AuthenticatedContext, name: Name, window: Window = "1h"
) -> tuple[DemandSample, ...]:
    """Return the demand for its slices, sampled in the same way. The user needs the right to ask the allocator."""
    await context.read_object(context.app.fleet.pools, ObjectKey("", name))
    await context.require(actions.plan_right(context))
    return (await context.app.charts.read(name, window)).demand


@router.get("/computepools/{name}/next-hours", responses=ERROR_RESPONSES)
async def get_next_hours(context: AuthenticatedContext, name: Name) -> NextHoursReport:
    """Return the demand that is expected in the next four hours, and the slices that the allocator is going to plan for it.

    The user needs the right to ask the allocator.
    """
    await actions.require_simulation(context, name)
    return await context.app.simulations.plan_next_hours(name)


@router.get("/inferences/{namespace}/{name}/why", responses=ERROR_RESPONSES)
async def get_inference_explanation(
    context: AuthenticatedContext, namespace: Namespace, name: Name
) -> InferenceReport:
    """Explain the number of replicas of an Inference."""
    inference = await context.read_object(context.app.fleet.inferences, ObjectKey(namespace, name))
    await context.require(LIST_DECISIONS)
    return report_inference(context.app, inference, await context.list_overrides())


@router.get("/history", responses=ERROR_RESPONSES)
async def list_decisions(
    context: AuthenticatedContext,
    pool: Annotated[str | None, Query(max_length=63)] = None,
    inference: Annotated[str | None, Query(max_length=127, description="namespace/name")] = None,
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    size: Annotated[int, Query(ge=1, le=_MAX_PAGE_SIZE)] = PAGE_SIZE,
) -> DecisionList:
    """Return decisions, the newest first."""
    await context.require(LIST_DECISIONS)
    selected = select_page(list_recent_decisions(context.app, pool, inference), page, size)
    return DecisionList(
        decisions=tuple(map(DecisionReport.from_decision, selected.items)),
        total=selected.total,
        page=selected.number,
        pages=selected.pages,
    )


@router.post("/plan", responses=ERROR_RESPONSES)
async def plan_pool(context: AuthenticatedContext, request: PlanRequest) -> PlanReport:
    """Return what the allocator would decide under these assumptions. It runs the same solver, and changes nothing."""
    question = WhatIf.model_validate(request.model_dump(exclude={"pool"}))
    return await actions.plan_pool(context, request.pool, question)


@router.post("/simulate", responses=ERROR_RESPONSES)
async def simulate_day(
    context: AuthenticatedContext, request: DayRequest, connection: Request
) -> SimulationReport:
    """Simulate policies over a past time of a pool, with changes: what a `tidegate simulate` of its record would report.

    It may take minutes; one runs at a time, and it ends if the client disconnects.
    """
    async with aclosing(actions.simulate_day(context, request, compare=False)) as steps:
        async for step in steps:
            if isinstance(step, DayComparison):
                return step.answer
            if await connection.is_disconnected():
                break
    message = "the client has disconnected"
    raise RetryableError(message)


@router.post("/overrides", responses=ERROR_RESPONSES)
async def apply_override(context: AuthenticatedContext, request: OverrideInput) -> SteeringReport:
    """Override the allocator for a limited time and a stated reason."""
    return await actions.apply_override(context, request)


@router.delete("/overrides/{name}", responses=ERROR_RESPONSES, status_code=204)
async def end_override(context: AuthenticatedContext, name: Name) -> None:
    """End an override now."""
    await actions.end_override(context, name)


@router.post("/modelaccesses/{namespace}/{name}/release/{command}", responses=ERROR_RESPONSES)
async def steer_release(
    context: AuthenticatedContext, namespace: Namespace, name: Name, command: ReleaseCommand
) -> ReleaseReport:
    """Steer a release, and wait up to ten seconds until the controllers have acted on it."""
    return await actions.steer_release(context, ObjectKey(namespace, name), command)


@router.get("/events", response_class=StreamingResponse, responses=ERROR_RESPONSES)
async def stream_events(
    context: AuthenticatedContext,
    topic: Annotated[
        list[Annotated[str, Field(pattern=_TOPIC_PATTERN)]], Query(min_length=1, max_length=_MAX_TOPICS)
    ],
    since: Annotated[str, Query(max_length=40)] = "",
) -> StreamingResponse:
    """Stream server-sent events: one with the name of a topic (`inferences`, `inferences/ads/ctr`) for each change of it.

    Open the stream before you read objects, or you miss the changes in between. The dashboard's pages, which are read
    first, send `since`: the position in the stream at the time of reading.
    """
    for name in topic:
        plural, _, key = name.partition("/")
        if plural not in context.app.listings and plural != "traffic":
            raise ObjectNotFoundError(f'topic "{name}" does not exist')
        await _require_topic(context, plural, key)
    changes, user = context.app.changes, context.identity.user
    if changes.count_subscribers(user) >= _MAX_STREAMS_PER_USER:
        message = f"{_MAX_STREAMS_PER_USER} pages of {user} are open, the most allowed: close some and reload"
        raise RetryableError(message)
    if changes.subscriber_count >= _MAX_STREAMS:
        message = f"{_MAX_STREAMS} pages are open, the most allowed: reload later"
        raise RetryableError(message)
    return StreamingResponse(
        _stream_changes(context, topic, since),
        media_type="text/event-stream",
        headers={"x-accel-buffering": "no"},
    )


@router.get("/{plural}/{namespace}/{name}", responses=ERROR_RESPONSES)
async def get_namespaced_object(
    context: AuthenticatedContext, plural: NamespacedPlural, namespace: Namespace, name: Name
) -> dict[str, Any]:
    """Return a namespaced object as the API server has it."""
    return await _read_body(context, plural, ObjectKey(namespace, name))


@router.get("/{plural}/{name}", responses=ERROR_RESPONSES)
async def get_cluster_object(
    context: AuthenticatedContext, plural: ClusterPlural, name: Name
) -> dict[str, Any]:
    """Return a cluster-scoped object as the API server has it."""
    return await _read_body(context, plural, ObjectKey("", name))


async def _read_body(context: RequestContext, plural: str, key: ObjectKey) -> dict[str, Any]:
    await context.require_get(plural, key)
    catalogue = context.app.fleet.caches_by_plural()[plural]
    body = catalogue.store.get(key)
    if body is None:
        raise not_found_error(catalogue, key)
    return dict(body)


async def _require_topic(context: RequestContext, plural: str, key: str) -> None:
    """Raise ForbiddenError if the user may not see the objects of a topic."""
    if plural == "traffic":
        return
    if key:
        await context.require_get(plural, ObjectKey.parse(key))
    else:
        await context.list_namespaces(plural)


async def _stream_changes(context: RequestContext, topics: list[str], since: str) -> AsyncGenerator[bytes]:
    yield b": listening\n\n"
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _STREAM_S
    async with aclosing(context.app.changes.subscribe(topics, since, context.identity.user)) as changes:
        async for changed_topics in changes:
            if not changed_topics:
                yield b": quiet\n\n"
            for topic in sorted(changed_topics):
                yield f"event: {topic}\ndata: {topic}\n\n".encode()
            if loop.time() >= deadline:
                return


def error_response(status: int, detail: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the response for a failed request to the API."""
    return JSONResponse({"detail": detail}, status, headers=dict(headers or {}))
