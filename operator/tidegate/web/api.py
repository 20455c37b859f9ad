"""The REST API: objects as the API server has them, the reports of the command line, and changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from enum import StrEnum
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tidegate.api.meta import DNS_LABEL, ObjectKey
from tidegate.api.release import ReleaseCommand
from tidegate.api.what_if import WhatIf
from tidegate.errors import RetryableError
from tidegate.planning.move_budget import RemainingBudget
from tidegate.reports.decision import DecisionReport
from tidegate.reports.plan import PlanReport
from tidegate.reports.release import ReleaseReport
from tidegate.reports.steered import SteeringReport
from tidegate.reports.why import InferenceReport, PoolReport
from tidegate.web import acting
from tidegate.web.acting import Steering
from tidegate.web.charts import DemandSample, SliceSample, Window
from tidegate.web.listing import Asked
from tidegate.web.paging import PAGE_SIZE, page_of
from tidegate.web.plurals import ENDPOINTS, Plural
from tidegate.web.rows import Row
from tidegate.web.views.power import Flow, NodeSlots, namespaces_of, power_of, slots
from tidegate.web.views.standing import decisions_of, why_of_inference, why_of_pool
from tidegate.web.visitor import LIST_DECISIONS, Known, NotThereError, Visitor, missing

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


class Failed(BaseModel):
    """The reason why a request failed."""

    detail: str


REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": Failed, "description": "Invalid request."},
    401: {"model": Failed, "description": "Authentication required."},
    403: {"model": Failed, "description": "The user has no right to it."},
    404: {"model": Failed, "description": "The object does not exist."},
    409: {"model": Failed, "description": "The object changed at the same time."},
    421: {"model": Failed, "description": "The host name is not one of the dashboard's."},
    422: {"model": Failed, "description": "A field has an invalid value."},
    429: {"model": Failed, "description": "Too many invalid tokens."},
    503: {"model": Failed, "description": "The API server, the controllers or Prometheus do not respond."},
}


class Camel(BaseModel):
    """A model with camelCase names, as in the objects."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class Namespaced(StrEnum):
    """Plural of a namespaced kind."""

    INFERENCES = "inferences"
    ACCESSES = "modelaccesses"
    FEATURES = "featurecomputes"


class ClusterWide(StrEnum):
    """Plural of a cluster-scoped kind."""

    POOLS = "computepools"
    OVERRIDES = "computeoverrides"
    DECISIONS = "allocationdecisions"


class Me(Camel):
    """The user of the request, and their rights."""

    user: str
    groups: tuple[str, ...]
    may_override: bool
    may_plan: bool


class Count(Camel):
    """The number of visible objects of one kind."""

    total: int
    not_well: int


class Overview(Camel):
    """The number of objects of each kind, and the worst of each."""

    counts: Mapping[str, Count]
    worst: Mapping[str, tuple[Row, ...]]


class Rows(Camel):
    """One page of a list, worst first."""

    items: tuple[Row, ...]
    total: int
    not_well: int
    page: int
    pages: int


class Decisions(Camel):
    """One page of the decision log, the newest first."""

    decisions: tuple[DecisionReport, ...]
    total: int
    page: int
    pages: int


class PowerReport(Camel):
    """The assignment of a pool's compute."""

    pool: str
    healthy: int
    free: int
    tiers: Mapping[str, int]
    price: float
    """The value per second that one more slice would have added at the last decision."""
    budget: RemainingBudget | None
    flows: tuple[Flow, ...]
    """Slices that moved in the last hour."""
    nodes: tuple[NodeSlots, ...]


class PlanRequest(WhatIf):
    """A WhatIf about a pool."""

    pool: Annotated[str, Field(pattern=_LABEL, max_length=63)]


Name = Annotated[str, Path(pattern=_LABEL, max_length=63)]
Namespace = Annotated[str, Path(pattern=_LABEL, max_length=63)]


@router.get("/me")
async def me(context: Known) -> Me:
    """Return the user of the request, and their rights."""
    return Me(
        user=context.identity.user,
        groups=context.identity.groups,
        may_override=await context.may(acting.CREATE),
        may_plan=await context.may(acting.plan_right(context)),
    )


@router.get("/overview", responses=REFUSALS)
async def overview(context: Known) -> Overview:
    """Return counts and the worst objects of all kinds that the user may list."""
    counts: dict[str, Count] = {}
    worst: dict[str, tuple[Row, ...]] = {}
    for plural in Plural:
        listing = context.parts.listings[plural]
        within = await context.parts.rights.within(context.identity, plural, listing.namespaces())
        if within is not None and not within:
            continue
        total, unhealthy = listing.count(within)
        counts[plural.value] = Count(total=total, not_well=unhealthy)
        worst[plural.value] = listing.page(Asked(size=10), within).rows
    return Overview(counts=counts, worst=worst)


@router.get("/rows/{plural}", responses=REFUSALS)
async def rows(
    context: Known,
    plural: Plural,
    q: Annotated[str, Query(max_length=200, description="Text in the name, the reason or the detail.")] = "",
    namespace: Annotated[str, Query(max_length=63)] = "",
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    size: Annotated[int, Query(ge=1, le=_MAX_PAGE_SIZE)] = PAGE_SIZE,
) -> Rows:
    """Return objects of a kind as rows, worst first."""
    within = await context.sees(plural, namespace)
    selected = context.parts.listings[plural].page(Asked(q, namespace, page, size), within)
    items = tuple(context.parts.traffic.on(row, ENDPOINTS.get(plural, "")) for row in selected.rows)
    return Rows(
        items=items,
        total=selected.total,
        not_well=selected.not_well,
        page=selected.number,
        pages=selected.pages,
    )


@router.get("/computepools/{name}/why", responses=REFUSALS)
async def pool_why(context: Known, name: Name) -> PoolReport:
    """Explain the assignment of a pool's slices."""
    pool = await context.read(context.parts.fleet.pools, ObjectKey("", name))
    await context.must(LIST_DECISIONS)
    return why_of_pool(context.parts, pool, await context.overrides())


@router.get("/computepools/{name}/power", responses=REFUSALS)
async def power(context: Known, name: Name) -> PowerReport:
    """Return the tiers, flows, budget and price of a pool, and the slots of its nodes."""
    pool_power = power_of(context.parts, await context.read(context.parts.fleet.pools, ObjectKey("", name)))
    await context.must(LIST_DECISIONS)
    return PowerReport(
        pool=name,
        healthy=pool_power.pool.status.slices.healthy,
        free=pool_power.free,
        tiers=pool_power.tiers,
        price=pool_power.price,
        budget=pool_power.budget,
        flows=pool_power.flows,
        nodes=slots(
            context.parts,
            name,
            await context.sees_pods(namespaces_of(context.parts, name)),
            await context.sees_nodes(pool_power.pool),
        ),
    )


@router.get("/computepools/{name}/samples", responses=REFUSALS)
async def samples(context: Known, name: Name, window: Window = "1h") -> tuple[SliceSample, ...]:
    """Return how its slices were assigned: at most 241 samples from Prometheus, evenly over the window, the oldest first."""
    await context.read(context.parts.fleet.pools, ObjectKey("", name))
    return (await context.parts.charts.read(name, window)).slices


@router.get("/computepools/{name}/demand", responses=REFUSALS)
async def demand(context: Known, name: Name, window: Window = "1h") -> tuple[DemandSample, ...]:
    """Return the demand for its slices, sampled in the same way. The user needs the right to ask the allocator."""
    await context.read(context.parts.fleet.pools, ObjectKey("", name))
    await context.must(acting.plan_right(context))
    return (await context.parts.charts.read(name, window)).demand


@router.get("/inferences/{namespace}/{name}/why", responses=REFUSALS)
async def inference_why(context: Known, namespace: Namespace, name: Name) -> InferenceReport:
    """Explain the number of replicas of an Inference."""
    inference = await context.read(context.parts.fleet.inferences, ObjectKey(namespace, name))
    await context.must(LIST_DECISIONS)
    return why_of_inference(context.parts, inference, await context.overrides())


@router.get("/history", responses=REFUSALS)
async def decisions(
    context: Known,
    pool: Annotated[str | None, Query(max_length=63)] = None,
    inference: Annotated[str | None, Query(max_length=127, description="namespace/name")] = None,
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    size: Annotated[int, Query(ge=1, le=_MAX_PAGE_SIZE)] = PAGE_SIZE,
) -> Decisions:
    """Return decisions, the newest first."""
    await context.must(LIST_DECISIONS)
    selected = page_of(decisions_of(context.parts, pool, inference), page, size)
    return Decisions(
        decisions=tuple(map(DecisionReport.of, selected.items)),
        total=selected.total,
        page=selected.number,
        pages=selected.pages,
    )


@router.post("/plan", responses=REFUSALS)
async def plan(context: Known, request: PlanRequest) -> PlanReport:
    """Return what the allocator would decide under these assumptions. It runs the same solver, and changes nothing."""
    question = WhatIf.model_validate(request.model_dump(exclude={"pool"}))
    return await acting.plan(context, request.pool, question)


@router.post("/overrides", responses=REFUSALS)
async def steer(context: Known, request: Steering) -> SteeringReport:
    """Override the allocator for a limited time and a stated reason."""
    return await acting.steer(context, request)


@router.delete("/overrides/{name}", responses=REFUSALS, status_code=204)
async def end_override(context: Known, name: Name) -> None:
    """End an override now."""
    await acting.end_override(context, name)


@router.post("/modelaccesses/{namespace}/{name}/release/{command}", responses=REFUSALS)
async def steer_release(
    context: Known, namespace: Namespace, name: Name, command: ReleaseCommand
) -> ReleaseReport:
    """Steer a release, and wait up to ten seconds until the controllers have acted on it."""
    return await acting.steer_release(context, ObjectKey(namespace, name), command)


@router.get("/events", response_class=StreamingResponse, responses=REFUSALS)
async def events(
    context: Known,
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
        if plural not in context.parts.listings and plural != "traffic":
            raise NotThereError(f'topic "{name}" does not exist')
        await _require_topic(context, plural, key)
    changes, user = context.parts.changes, context.identity.user
    if changes.listeners_of(user) >= _MAX_STREAMS_PER_USER:
        message = f"{_MAX_STREAMS_PER_USER} pages of {user} are open, the most allowed: close some and reload"
        raise RetryableError(message)
    if changes.listeners >= _MAX_STREAMS:
        message = f"{_MAX_STREAMS} pages are open, the most allowed: reload later"
        raise RetryableError(message)
    return StreamingResponse(
        _stream_changes(context, topic, since),
        media_type="text/event-stream",
        headers={"x-accel-buffering": "no"},
    )


@router.get("/{plural}/{namespace}/{name}", responses=REFUSALS)
async def one_in_namespace(
    context: Known, plural: Namespaced, namespace: Namespace, name: Name
) -> dict[str, Any]:
    """Return a namespaced object as the API server has it."""
    return await _read_body(context, plural, ObjectKey(namespace, name))


@router.get("/{plural}/{name}", responses=REFUSALS)
async def one_of_cluster(context: Known, plural: ClusterWide, name: Name) -> dict[str, Any]:
    """Return a cluster-scoped object as the API server has it."""
    return await _read_body(context, plural, ObjectKey("", name))


async def _read_body(context: Visitor, plural: str, key: ObjectKey) -> dict[str, Any]:
    await context.must_see(plural, key)
    catalogue = context.parts.fleet.catalogues()[plural]
    body = catalogue.store.get(key)
    if body is None:
        raise missing(catalogue, key)
    return dict(body)


async def _require_topic(context: Visitor, plural: str, key: str) -> None:
    """Raise ForbiddenError if the user may not see the objects of a topic."""
    if plural == "traffic":
        return
    if key:
        await context.must_see(plural, ObjectKey.parse(key))
    else:
        await context.sees(plural)


async def _stream_changes(context: Visitor, topics: list[str], since: str) -> AsyncGenerator[bytes]:
    yield b": listening\n\n"
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _STREAM_S
    async with aclosing(context.parts.changes.heard(topics, since, context.identity.user)) as changes:
        async for changed_topics in changes:
            if not changed_topics:
                yield b": quiet\n\n"
            for topic in sorted(changed_topics):
                yield f"event: {topic}\ndata: {topic}\n\n".encode()
            if loop.time() >= deadline:
                return


def refused(status: int, detail: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the response for a failed request to the API."""
    return JSONResponse({"detail": detail}, status, headers=dict(headers or {}))
