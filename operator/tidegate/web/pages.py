"""The dashboard's pages; htmx reloads a whole page and swaps the parts that changed."""

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

_COMMANDS_BY_PHASE: Final[Mapping[ReleasePhase | None, Sequence[ReleaseCommand]]] = {
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
_MESSAGES_BY_CODE: Final = {message.code: (name, message) for name, message in by_name().items()}

router: Final = APIRouter(include_in_schema=False)
router.include_router(pool_pages.router)
router.include_router(steering_pages.router)


@router.get("/")
async def overview(context: Known) -> HTMLResponse:
    """Show the number of objects of each kind, and the worst of each."""
    kinds: list[dict[str, Any]] = []
    for plural in _LISTED:
        namespaces = context.parts.listings[plural].namespaces()
        within = await context.parts.rights.within(context.identity, plural, namespaces)
        if within is None or within:
            page = _page_with_traffic(context, plural, Asked(size=10), within)
            kinds.append({"plural": plural.value, "title": TITLES[plural], "page": page})
    if not kinds:
        await context.sees(Plural.INFERENCES)  # raises an error that names the missing right
    may_decisions = await context.may(LIST_DECISIONS)
    decisions = decisions_of(context.parts)[:5] if may_decisions else ()
    return shown(
        context,
        "overview.html",
        kinds=kinds,
        pools=[
            context.parts.fleet.pools.get(ObjectKey("", name)) for name in _row_names(kinds, Plural.POOLS)
        ],
        decisions=[DecisionReport.of(decision) for decision in decisions],
        may_decisions=may_decisions,
        topics=[kind["plural"] for kind in kinds] + ["allocationdecisions"] * may_decisions + ["traffic"],
    )


@router.get("/list/{plural}")
async def listed(
    context: Known,
    plural: Plural,
    q: Annotated[str, Query(max_length=200)] = "",
    namespace: Annotated[str, Query(max_length=63)] = "",
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
) -> HTMLResponse:
    """Show one page of the objects of a kind, worst first."""
    if plural not in _LISTED:
        raise NotThereError(f"{plural.value} have no list page")
    query = Asked(q, namespace, page)
    within = await context.sees(plural, namespace)
    selected = _page_with_traffic(context, plural, query, within)
    listing = context.parts.listings[plural]
    namespaces = [name for name in listing.namespaces() if name and (within is None or name in within)]
    return shown(
        context,
        "list.html",
        plural=plural.value,
        title=TITLES[plural],
        page=selected,
        asked=query,
        namespaces=namespaces,
        topics=[plural.value, "traffic"],
    )


@router.get("/inferences/{namespace}/{name}")
async def inference(context: Known, namespace: str, name: str, request: Request) -> HTMLResponse:
    """Show an Inference: the reasons of its state, the ModelAccesses that route to it, its pods, events and YAML."""
    key = ObjectKey(namespace, name)
    resource = await context.read(context.parts.fleet.inferences, key)
    may_decisions = await context.may(LIST_DECISIONS)
    return shown(
        context,
        "inference.html",
        key=key,
        inference=resource,
        row=context.parts.listings["inferences"].row(key),
        why=why_of_inference(context.parts, resource, await context.overrides()) if may_decisions else None,
        moves=_decisions_moving(context, resource) if may_decisions else (),
        accesses=await _find_accesses(context, key),
        pods=await pods_of(context, INFERENCE_LABEL, key),
        traffic=context.parts.traffic.of(f"inference/{key}"),
        traffic_known=context.parts.traffic.known,
        overridable=acting.overridable(resource),
        may_override=await context.may(acting.CREATE),
        may_end=await context.may(acting.DELETE),
        **await of_object(context, Plural.INFERENCES, key, request),
    )


@router.get("/modelaccesses/{namespace}/{name}")
async def access(context: Known, namespace: str, name: str, request: Request) -> HTMLResponse:
    """Show a ModelAccess: its current weights, its release and checks, events and YAML."""
    key = ObjectKey(namespace, name)
    resource = await context.read(context.parts.fleet.accesses, key)
    return shown(
        context,
        "access.html",
        key=key,
        access=resource,
        row=context.parts.listings["modelaccesses"].row(key),
        release=_release_report(resource),
        traffic={
            inference: context.parts.traffic.of(f"inference/{namespace}/{inference}")
            for inference in resource.spec.inferences
        },
        traffic_known=context.parts.traffic.known,
        may_release=await context.may(acting.release_right(key)),
        commands=_effective_commands(resource),
        **await of_object(context, Plural.ACCESSES, key, request),
    )


@router.get("/featurecomputes/{namespace}/{name}")
async def features(context: Known, namespace: str, name: str, request: Request) -> HTMLResponse:
    """Show a FeatureCompute."""
    key = ObjectKey(namespace, name)
    resource = await context.read(context.parts.fleet.features, key)
    return shown(
        context,
        "features.html",
        key=key,
        features=resource,
        row=context.parts.listings["featurecomputes"].row(key),
        pods=await pods_of(context, FEATURE_COMPUTE_LABEL, key),
        traffic=context.parts.traffic.of(f"features/{key}"),
        traffic_known=context.parts.traffic.known,
        **await of_object(context, Plural.FEATURES, key, request),
    )


@router.get("/decisions")
async def decisions_page(
    context: Known,
    pool: Annotated[str, Query(max_length=63)] = "",
    inference: Annotated[str, Query(max_length=127)] = "",
    page: Annotated[int, Query(ge=1, le=1_000)] = 1,
) -> HTMLResponse:
    """Show the log of decisions."""
    await context.must(LIST_DECISIONS)
    selected = page_of(decisions_of(context.parts, pool or None, inference or None), page)
    return shown(
        context,
        "decisions.html",
        decisions=[DecisionReport.of(decision) for decision in selected.items],
        total=selected.total,
        number=selected.number,
        pages=selected.pages,
        pool=pool,
        inference=inference,
        pools=[pool.metadata.name for pool in context.parts.fleet.pools.all()],
        topics=["allocationdecisions"],
    )


@router.get("/decisions/{name}")
async def decision(context: Known, name: str) -> HTMLResponse:
    """Show a decision: its inputs, moves, reasons and outcome."""
    key = ObjectKey("", name)
    await context.must_see("allocationdecisions", key)
    resource = context.parts.fleet.decisions.get(key)
    if resource is None:
        raise NotThereError(
            f'AllocationDecision "{name}" not found: only the last 200 decisions of each pool are kept'
        )
    body = context.parts.fleet.decisions.store.get(key) or {}
    return shown(
        context,
        "decision.html",
        decision=resource,
        report=DecisionReport.of(resource),
        body=body,
        topics=[f"allocationdecisions/{name}"],
    )


@router.get("/messages/{code}")
async def message(context: Known, code: str) -> HTMLResponse:
    """Show the meaning of a message code and what to do, as in docs/reference/messages."""
    if code not in _MESSAGES_BY_CODE:
        raise NotThereError(f'message "{code[:20]}" not found: codes look like TG1001')
    name, text = _MESSAGES_BY_CODE[code]
    return shown(context, "message.html", name=name, said=text, topics=[])


def _page_with_traffic(
    context: Visitor, plural: Plural, query: Asked, within: Collection[str] | None
) -> Page:
    page = context.parts.listings[plural].page(query, within)
    rows = tuple(context.parts.traffic.on(row, ENDPOINTS.get(plural, "")) for row in page.rows)
    return Page(rows, page.total, page.not_well, page.number, page.pages)


def _row_names(kinds: Sequence[Mapping[str, Any]], plural: Plural) -> list[str]:
    return [row.name for kind in kinds if kind["plural"] == plural for row in kind["page"].rows]


def _decisions_moving(context: Visitor, inference: Inference) -> Sequence[DecisionReport]:
    """Return the newest decisions of its pool that move an Inference."""
    placement, name = inference.spec.placement, str(inference.key)
    decisions = decisions_of(context.parts, placement.pool if placement else None, name)
    return [DecisionReport.of(decision) for decision in decisions[:_MOVES_SHOWN]]


async def _find_accesses(context: Visitor, key: ObjectKey) -> Sequence[ObjectKey] | None:
    """Return the ModelAccesses that route to an Inference; None if the user may not list ModelAccesses there."""
    if not await context.may(Action("list", Plural.ACCESSES, key.namespace)):
        return None
    accesses = context.parts.fleet.accesses.all()
    return [
        access.key
        for access in accesses
        if access.key.namespace == key.namespace and key.name in access.spec.inferences
    ]


def _effective_commands(access: ModelAccess) -> list[str]:
    """Return the commands that have an effect in the current phase of the release."""
    phase = access.status.release.phase if access.status.release is not None else None
    return [command.value for command in _COMMANDS_BY_PHASE.get(phase, (ReleaseCommand.PAUSE,))]


def _release_report(access: ModelAccess) -> ReleaseReport | None:
    try:
        return ReleaseReport.of(access, Acted.NOTHING_ASKED)
    except (TidegateError, ValueError):
        return None
