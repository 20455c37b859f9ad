"""The REST API: objects as the API server has them, reports as the command line has them, and what may be changed."""

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
_MOST: Final = 200
_TOPIC: Final = r"^[a-z]+(/[a-z0-9.-]+){0,2}$"
_TOPICS: Final = 8
_STREAM_S: Final = 300.0
"""After it a browser asks again by itself, and its rights are looked at anew."""
_STREAMS: Final = 5_000
_STREAMS_EACH: Final = 100
"""Of one user, so that nobody takes them all."""

router: Final = APIRouter(prefix="/api/v1")


class Failed(BaseModel):
    """Why it was not done."""

    detail: str


REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": Failed, "description": "What was asked for cannot be."},
    401: {"model": Failed, "description": "Nobody knows who asks."},
    403: {"model": Failed, "description": "They have no right to it."},
    404: {"model": Failed, "description": "There is no such object."},
    409: {"model": Failed, "description": "Somebody else changed it meanwhile."},
    421: {"model": Failed, "description": "The dashboard is not known by this name."},
    422: {"model": Failed, "description": "A field is not what it has to be."},
    429: {"model": Failed, "description": "Too many tokens were tried."},
    503: {"model": Failed, "description": "The API server, the controllers or Prometheus do not answer."},
}


class Camel(BaseModel):
    """Names as in the objects."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class Namespaced(StrEnum):
    """Those whose objects are in namespaces."""

    INFERENCES = "inferences"
    ACCESSES = "modelaccesses"
    FEATURES = "featurecomputes"


class ClusterWide(StrEnum):
    """Those whose objects are not."""

    POOLS = "computepools"
    OVERRIDES = "computeoverrides"
    DECISIONS = "allocationdecisions"


class Me(Camel):
    """Who asks, and what they may do."""

    user: str
    groups: tuple[str, ...]
    may_override: bool
    may_plan: bool


class Count(Camel):
    """Objects of one kind that may be seen."""

    total: int
    not_well: int


class Overview(Camel):
    """How many there are of each kind, and the worst of each."""

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
    """How a pool's compute is shared out."""

    pool: str
    healthy: int
    free: int
    tiers: Mapping[str, int]
    price: float
    """What one more slice would have earned at the last decision, in value per second."""
    budget: RemainingBudget | None
    flows: tuple[Flow, ...]
    """Of the last hour."""
    nodes: tuple[NodeSlots, ...]


class PlanRequest(WhatIf):
    """A WhatIf about a pool."""

    pool: Annotated[str, Field(pattern=_LABEL, max_length=63)]


Name = Annotated[str, Path(pattern=_LABEL, max_length=63)]
Namespace = Annotated[str, Path(pattern=_LABEL, max_length=63)]


@router.get("/me")
async def me(visitor: Known) -> Me:
    """Who asks, and what they may do."""
    return Me(
        user=visitor.identity.user,
        groups=visitor.identity.groups,
        may_override=await visitor.may(acting.CREATE),
        may_plan=await visitor.may(acting.plan_right(visitor)),
    )


@router.get("/overview", responses=REFUSALS)
async def overview(visitor: Known) -> Overview:
    """All kinds that the visitor may list."""
    counts: dict[str, Count] = {}
    worst: dict[str, tuple[Row, ...]] = {}
    for plural in Plural:
        listing = visitor.parts.listings[plural]
        within = await visitor.parts.rights.within(visitor.identity, plural, listing.namespaces())
        if within is not None and not within:
            continue
        total, bad = listing.count(within)
        counts[plural.value] = Count(total=total, not_well=bad)
        worst[plural.value] = listing.page(Asked(size=10), within).rows
    return Overview(counts=counts, worst=worst)


@router.get("/rows/{plural}", responses=REFUSALS)
async def rows(
    visitor: Known,
    plural: Plural,
    q: Annotated[str, Query(max_length=200, description="In the name, the reason or the detail.")] = "",
    namespace: Annotated[str, Query(max_length=63)] = "",
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    size: Annotated[int, Query(ge=1, le=_MOST)] = PAGE_SIZE,
) -> Rows:
    """Objects of a kind as rows, worst first."""
    within = await visitor.sees(plural, namespace)
    found = visitor.parts.listings[plural].page(Asked(q, namespace, page, size), within)
    shown = tuple(visitor.parts.traffic.on(row, ENDPOINTS.get(plural, "")) for row in found.rows)
    return Rows(items=shown, total=found.total, not_well=found.not_well, page=found.number, pages=found.pages)


@router.get("/computepools/{name}/why", responses=REFUSALS)
async def pool_why(visitor: Known, name: Name) -> PoolReport:
    """Why a pool is shared out as it is."""
    found = await visitor.read(visitor.parts.fleet.pools, ObjectKey("", name))
    await visitor.must(LIST_DECISIONS)
    return why_of_pool(visitor.parts, found, await visitor.overrides())


@router.get("/computepools/{name}/power", responses=REFUSALS)
async def power(visitor: Known, name: Name) -> PowerReport:
    """Tiers, flows, budget, price, and who has which slots."""
    found = power_of(visitor.parts, await visitor.read(visitor.parts.fleet.pools, ObjectKey("", name)))
    await visitor.must(LIST_DECISIONS)
    return PowerReport(
        pool=name,
        healthy=found.pool.status.slices.healthy,
        free=found.free,
        tiers=found.tiers,
        price=found.price,
        budget=found.budget,
        flows=found.flows,
        nodes=slots(
            visitor.parts,
            name,
            await visitor.sees_pods(namespaces_of(visitor.parts, name)),
            await visitor.sees_nodes(found.pool),
        ),
    )


@router.get("/computepools/{name}/samples", responses=REFUSALS)
async def samples(visitor: Known, name: Name, window: Window = "1h") -> tuple[SliceSample, ...]:
    """Return how its slices were assigned: at most 241 samples from Prometheus, evenly over the window, the oldest first."""
    await visitor.read(visitor.parts.fleet.pools, ObjectKey("", name))
    return (await visitor.parts.charts.read(name, window)).slices


@router.get("/computepools/{name}/demand", responses=REFUSALS)
async def demand(visitor: Known, name: Name, window: Window = "1h") -> tuple[DemandSample, ...]:
    """Return the demand for its slices, sampled in the same way. The user needs the right to ask the allocator."""
    await visitor.read(visitor.parts.fleet.pools, ObjectKey("", name))
    await visitor.must(acting.plan_right(visitor))
    return (await visitor.parts.charts.read(name, window)).demand


@router.get("/inferences/{namespace}/{name}/why", responses=REFUSALS)
async def inference_why(visitor: Known, namespace: Namespace, name: Name) -> InferenceReport:
    """Why an Inference has its replicas."""
    found = await visitor.read(visitor.parts.fleet.inferences, ObjectKey(namespace, name))
    await visitor.must(LIST_DECISIONS)
    return why_of_inference(visitor.parts, found, await visitor.overrides())


@router.get("/history", responses=REFUSALS)
async def decisions(
    visitor: Known,
    pool: Annotated[str | None, Query(max_length=63)] = None,
    inference: Annotated[str | None, Query(max_length=127, description="namespace/name")] = None,
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    size: Annotated[int, Query(ge=1, le=_MOST)] = PAGE_SIZE,
) -> Decisions:
    """Decisions, the newest first."""
    await visitor.must(LIST_DECISIONS)
    found = page_of(decisions_of(visitor.parts, pool, inference), page, size)
    return Decisions(
        decisions=tuple(map(DecisionReport.of, found.items)),
        total=found.total,
        page=found.number,
        pages=found.pages,
    )


@router.post("/plan", responses=REFUSALS)
async def plan(visitor: Known, asked: PlanRequest) -> PlanReport:
    """What the allocator would decide if it were so: the same solver, on a copy; nothing is changed."""
    question = WhatIf.model_validate(asked.model_dump(exclude={"pool"}))
    return await acting.plan(visitor, asked.pool, question)


@router.post("/overrides", responses=REFUSALS)
async def steer(visitor: Known, steering: Steering) -> SteeringReport:
    """Decides over the allocator, for a while and for a reason."""
    return await acting.steer(visitor, steering)


@router.delete("/overrides/{name}", responses=REFUSALS, status_code=204)
async def end_override(visitor: Known, name: Name) -> None:
    """Ends it now."""
    await acting.end_override(visitor, name)


@router.post("/modelaccesses/{namespace}/{name}/release/{command}", responses=REFUSALS)
async def steer_release(
    visitor: Known, namespace: Namespace, name: Name, command: ReleaseCommand
) -> ReleaseReport:
    """Steers a release, and waits a little until the controllers have acted on it."""
    return await acting.steer_release(visitor, ObjectKey(namespace, name), command)


@router.get("/events", response_class=StreamingResponse, responses=REFUSALS)
async def events(
    visitor: Known,
    topic: Annotated[list[Annotated[str, Field(pattern=_TOPIC)]], Query(min_length=1, max_length=_TOPICS)],
    since: Annotated[str, Query(max_length=40)] = "",
) -> StreamingResponse:
    """Server-sent events: one with the name of a topic (`inferences`, `inferences/ads/ctr`) each time it has changed.

    Open it before you read, or what changes in between is not told. The dashboard's pages, which can only be read
    first, bring `since`: what they were told of the time when they were read.
    """
    for each in topic:
        plural, _, rest = each.partition("/")
        if plural not in visitor.parts.listings and plural != "traffic":
            raise NotThereError(f"there is no topic {each}")
        await _may_follow(visitor, plural, rest)
    changes, user = visitor.parts.changes, visitor.identity.user
    if changes.listeners_of(user) >= _STREAMS_EACH:
        message = f"{_STREAMS_EACH} pages of {user} are open already: close some, and reload in a while"
        raise RetryableError(message)
    if changes.listeners >= _STREAMS:
        message = f"{_STREAMS} pages are open already: reload in a while"
        raise RetryableError(message)
    return StreamingResponse(
        _stream(visitor, topic, since), media_type="text/event-stream", headers={"x-accel-buffering": "no"}
    )


@router.get("/{plural}/{namespace}/{name}", responses=REFUSALS)
async def one_in_namespace(
    visitor: Known, plural: Namespaced, namespace: Namespace, name: Name
) -> dict[str, Any]:
    """An object as the API server has it."""
    return await _body(visitor, plural, ObjectKey(namespace, name))


@router.get("/{plural}/{name}", responses=REFUSALS)
async def one_of_cluster(visitor: Known, plural: ClusterWide, name: Name) -> dict[str, Any]:
    """An object as the API server has it."""
    return await _body(visitor, plural, ObjectKey("", name))


async def _body(visitor: Visitor, plural: str, key: ObjectKey) -> dict[str, Any]:
    await visitor.must_see(plural, key)
    catalogue = visitor.parts.fleet.catalogues()[plural]
    body = catalogue.store.get(key)
    if body is None:
        raise missing(catalogue, key)
    return dict(body)


async def _may_follow(visitor: Visitor, plural: str, rest: str) -> None:
    """Nobody hears of what they may not see."""
    if plural == "traffic":
        return
    if rest:
        await visitor.must_see(plural, ObjectKey.parse(rest))
    else:
        await visitor.sees(plural)


async def _stream(visitor: Visitor, topics: list[str], since: str) -> AsyncGenerator[bytes]:
    yield b": listening\n\n"
    loop = asyncio.get_running_loop()
    ends = loop.time() + _STREAM_S
    async with aclosing(visitor.parts.changes.heard(topics, since, visitor.identity.user)) as changes:
        async for heard in changes:
            if not heard:
                yield b": quiet\n\n"
            for topic in sorted(heard):
                yield f"event: {topic}\ndata: {topic}\n\n".encode()
            if loop.time() >= ends:
                return


def refused(status: int, said: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """As every refusal of the API is told."""
    return JSONResponse({"detail": said}, status, headers=dict(headers or {}))
