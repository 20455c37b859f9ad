"""The dashboard's pages. Each can be had again by itself: htmx takes from it the part that has changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from tidegate.api.inference import Inference
from tidegate.api.messages.catalogue import by_name
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.api.release import ReleaseCommand, ReleasePhase
from tidegate.errors import TidegateError
from tidegate.reports.decision import DecisionReport
from tidegate.reports.release import Acted, ReleaseReport
from tidegate.resources.names import FEATURE_COMPUTE_LABEL, INFERENCE_LABEL
from tidegate.web import acting, pool_pages, steering_pages
from tidegate.web.access.rights import Action
from tidegate.web.listing import Asked, Page
from tidegate.web.object_pages import of_object, pods_of
from tidegate.web.paging import page_of
from tidegate.web.plurals import ENDPOINTS, Plural
from tidegate.web.rendering import shown
from tidegate.web.views.standing import decisions_of, why_of_inference
from tidegate.web.visitor import LIST_DECISIONS, Known, NotThereError, Visitor

_MOVES_SHOWN: Final = 10
_LISTED: Final = (Plural.INFERENCES, Plural.ACCESSES, Plural.FEATURES, Plural.POOLS)
TITLES: Final[Mapping[str, str]] = {
    "inferences": "Inferences",
    "modelaccesses": "ModelAccesses",
    "featurecomputes": "FeatureComputes",
    "computepools": "ComputePools",
}

_STEERED_BY: Final[Mapping[ReleasePhase | None, Sequence[ReleaseCommand]]] = {
    ReleasePhase.PROGRESSING: (
        ReleaseCommand.PAUSE,
        ReleaseCommand.PROMOTE,
        ReleaseCommand.ABORT,
        ReleaseCommand.RESTART,
    ),
    ReleasePhase.PAUSED: (
        ReleaseCommand.RESUME,
        ReleaseCommand.PROMOTE,
        ReleaseCommand.ABORT,
        ReleaseCommand.RESTART,
    ),
    ReleasePhase.PROMOTED: (ReleaseCommand.ABORT, ReleaseCommand.RESTART),
    ReleasePhase.ROLLED_BACK: (ReleaseCommand.RESTART,),
}
_SAID: Final = {message.code: (name, message) for name, message in by_name().items()}

router: Final = APIRouter(include_in_schema=False)
router.include_router(pool_pages.router)
router.include_router(steering_pages.router)


@router.get("/")
async def overview(visitor: Known) -> HTMLResponse:
    """How many there are of each kind, and the worst of each."""
    kinds: list[dict[str, Any]] = []
    for plural in _LISTED:
        namespaces = visitor.parts.listings[plural].namespaces()
        within = await visitor.parts.rights.within(visitor.identity, plural, namespaces)
        if within is None or within:
            page = _page(visitor, plural, Asked(size=10), within)
            kinds.append({"plural": plural.value, "title": TITLES[plural], "page": page})
    if not kinds:
        await visitor.sees(Plural.INFERENCES)  # says which right is missing
    may_decisions = await visitor.may(LIST_DECISIONS)
    decisions = decisions_of(visitor.parts)[:5] if may_decisions else ()
    return shown(
        visitor,
        "overview.html",
        kinds=kinds,
        pools=[visitor.parts.fleet.pools.get(ObjectKey("", name)) for name in _names(kinds, Plural.POOLS)],
        decisions=[DecisionReport.of(each) for each in decisions],
        may_decisions=may_decisions,
        topics=[kind["plural"] for kind in kinds] + ["allocationdecisions"] * may_decisions + ["traffic"],
    )


@router.get("/list/{plural}")
async def listed(
    visitor: Known,
    plural: Plural,
    q: Annotated[str, Query(max_length=200)] = "",
    namespace: Annotated[str, Query(max_length=63)] = "",
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
) -> HTMLResponse:
    """All objects of a kind, a page at a time, worst first."""
    if plural not in _LISTED:
        raise NotThereError(f"there is no list of {plural.value}")
    asked = Asked(q, namespace, page)
    within = await visitor.sees(plural, namespace)
    found = _page(visitor, plural, asked, within)
    listing = visitor.parts.listings[plural]
    namespaces = [name for name in listing.namespaces() if name and (within is None or name in within)]
    return shown(
        visitor,
        "list.html",
        plural=plural.value,
        title=TITLES[plural],
        page=found,
        asked=asked,
        namespaces=namespaces,
        topics=[plural.value, "traffic"],
    )


@router.get("/inferences/{namespace}/{name}")
async def inference(visitor: Known, namespace: str, name: str, request: Request) -> HTMLResponse:
    """One Inference: why it is as it is, who routes to it, its pods, events and YAML."""
    key = ObjectKey(namespace, name)
    found = await visitor.read(visitor.parts.fleet.inferences, key)
    may_decisions = await visitor.may(LIST_DECISIONS)
    return shown(
        visitor,
        "inference.html",
        key=key,
        inference=found,
        row=visitor.parts.listings["inferences"].row(key),
        why=why_of_inference(visitor.parts, found, await visitor.overrides()) if may_decisions else None,
        moves=_moves_of(visitor, found) if may_decisions else (),
        accesses=await _routing_to(visitor, key),
        pods=await pods_of(visitor, INFERENCE_LABEL, key),
        traffic=visitor.parts.traffic.of(f"inference/{key}"),
        traffic_known=visitor.parts.traffic.known,
        overridable=acting.overridable(found),
        may_override=await visitor.may(acting.CREATE),
        may_end=await visitor.may(acting.DELETE),
        **await of_object(visitor, Plural.INFERENCES, key, request),
    )


@router.get("/modelaccesses/{namespace}/{name}")
async def access(visitor: Known, namespace: str, name: str, request: Request) -> HTMLResponse:
    """One ModelAccess: its live split, its release and what that says, events and YAML."""
    key = ObjectKey(namespace, name)
    found = await visitor.read(visitor.parts.fleet.accesses, key)
    return shown(
        visitor,
        "access.html",
        key=key,
        access=found,
        row=visitor.parts.listings["modelaccesses"].row(key),
        release=_release(found),
        traffic={
            name: visitor.parts.traffic.of(f"inference/{namespace}/{name}") for name in found.spec.inferences
        },
        traffic_known=visitor.parts.traffic.known,
        may_release=await visitor.may(acting.release_right(key)),
        commands=_does_something(found),
        **await of_object(visitor, Plural.ACCESSES, key, request),
    )


@router.get("/featurecomputes/{namespace}/{name}")
async def features(visitor: Known, namespace: str, name: str, request: Request) -> HTMLResponse:
    """One FeatureCompute."""
    key = ObjectKey(namespace, name)
    found = await visitor.read(visitor.parts.fleet.features, key)
    return shown(
        visitor,
        "features.html",
        key=key,
        features=found,
        row=visitor.parts.listings["featurecomputes"].row(key),
        pods=await pods_of(visitor, FEATURE_COMPUTE_LABEL, key),
        traffic=visitor.parts.traffic.of(f"features/{key}"),
        traffic_known=visitor.parts.traffic.known,
        **await of_object(visitor, Plural.FEATURES, key, request),
    )


@router.get("/decisions")
async def decisions_page(
    visitor: Known,
    pool: Annotated[str, Query(max_length=63)] = "",
    inference: Annotated[str, Query(max_length=127)] = "",
    page: Annotated[int, Query(ge=1, le=1_000)] = 1,
) -> HTMLResponse:
    """The decision log."""
    await visitor.must(LIST_DECISIONS)
    found = page_of(decisions_of(visitor.parts, pool or None, inference or None), page)
    return shown(
        visitor,
        "decisions.html",
        decisions=[DecisionReport.of(each) for each in found.items],
        total=found.total,
        number=found.number,
        pages=found.pages,
        pool=pool,
        inference=inference,
        pools=[each.metadata.name for each in visitor.parts.fleet.pools.all()],
        topics=["allocationdecisions"],
    )


@router.get("/decisions/{name}")
async def decision(visitor: Known, name: str) -> HTMLResponse:
    """One decision: its inputs, moves, reasons and what came of it."""
    key = ObjectKey("", name)
    await visitor.must_see("allocationdecisions", key)
    found = visitor.parts.fleet.decisions.get(key)
    if found is None:
        raise NotThereError(f"there is no AllocationDecision {name}: the last 200 of each pool are kept")
    body = visitor.parts.fleet.decisions.store.get(key) or {}
    return shown(
        visitor,
        "decision.html",
        decision=found,
        report=DecisionReport.of(found),
        body=body,
        topics=[f"allocationdecisions/{name}"],
    )


@router.get("/messages/{code}")
async def message(visitor: Known, code: str) -> HTMLResponse:
    """What a code means and what to do about it, as docs/reference/messages has it."""
    if code not in _SAID:
        raise NotThereError(f"there is no message {code[:20]}: their codes are like TG1001")
    name, said = _SAID[code]
    return shown(visitor, "message.html", name=name, said=said, topics=[])


def _page(visitor: Visitor, plural: Plural, asked: Asked, within: Collection[str] | None) -> Page:
    found = visitor.parts.listings[plural].page(asked, within)
    rows = tuple(visitor.parts.traffic.on(row, ENDPOINTS.get(plural, "")) for row in found.rows)
    return Page(rows, found.total, found.not_well, found.number, found.pages)


def _names(kinds: Sequence[Mapping[str, Any]], plural: Plural) -> list[str]:
    return [row.name for kind in kinds if kind["plural"] == plural for row in kind["page"].rows]


def _moves_of(visitor: Visitor, inference: Inference) -> Sequence[DecisionReport]:
    """What its pool's newest decisions did with it."""
    placement, name = inference.spec.placement, str(inference.key)
    decisions = decisions_of(visitor.parts, placement.pool if placement else None, name)
    return [DecisionReport.of(each) for each in decisions[:_MOVES_SHOWN]]


async def _routing_to(visitor: Visitor, key: ObjectKey) -> Sequence[ObjectKey] | None:
    """The ModelAccesses that name an Inference; None where the visitor may not list them there."""
    if not await visitor.may(Action("list", Plural.ACCESSES, key.namespace)):
        return None
    accesses = visitor.parts.fleet.accesses.all()
    return [
        each.key
        for each in accesses
        if each.key.namespace == key.namespace and key.name in each.spec.inferences
    ]


def _does_something(access: ModelAccess) -> list[str]:
    """The commands that change something of a release where it is now."""
    phase = access.status.release.phase if access.status.release is not None else None
    return [command.value for command in _STEERED_BY.get(phase, (ReleaseCommand.PAUSE,))]


def _release(access: ModelAccess) -> ReleaseReport | None:
    try:
        return ReleaseReport.of(access, Acted.NOTHING_ASKED)
    except (TidegateError, ValueError):
        return None
