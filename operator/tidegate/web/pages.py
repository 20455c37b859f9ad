"""The dashboard's pages; htmx reloads a whole page and swaps the parts that changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from tidegate.api.allocation_decision import DecisionTrigger
from tidegate.api.compute_pool import PolicyMode
from tidegate.api.durations import parse_duration
from tidegate.api.inference import Inference, Tier
from tidegate.api.messages.catalogue import messages_by_name
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.api.shared_names import format_shared_name, list_shared_namespaces, resolve_shared_name
from tidegate.reports.decision import DecisionReport
from tidegate.resources.names import FEATURE_COMPUTE_LABEL, INFERENCE_LABEL
from tidegate.telemetry.prometheus import ClusterTraffic
from tidegate.web import actions, change_pages, pool_pages, release_pages, simulation_pages
from tidegate.web.access.rights import Action
from tidegate.web.chart_parts import chart_variables, render_charts
from tidegate.web.charts import WINDOWS, Window
from tidegate.web.explanations import list_recent_decisions, report_inference
from tidegate.web.feature_usage import list_used_features
from tidegate.web.listing import Plural, RowQuery, SortOrder, select_page
from tidegate.web.object_pages import list_pods, object_variables
from tidegate.web.override_form import make_form
from tidegate.web.release_pages import report_release
from tidegate.web.rendering import render_page
from tidegate.web.request_context import (
    LIST_DECISIONS,
    AuthenticatedContext,
    ObjectNotFoundError,
    RequestContext,
)
from tidegate.web.row_pages import read_row_page
from tidegate.web.traffic_charts import read_inference_charts

_MOVES_SHOWN: Final = 10
_LISTED: Final = (Plural.INFERENCES, Plural.ACCESSES, Plural.FEATURES, Plural.POOLS)
TITLES: Final[Mapping[str, str]] = {
    "inferences": "Inferences",
    "modelaccesses": "ModelAccesses",
    "featurecomputes": "FeatureComputes",
    "computepools": "ComputePools",
}

_MESSAGES_BY_CODE: Final = {message.code: (name, message) for name, message in messages_by_name().items()}

SearchText = Annotated[str, Query(max_length=200)]
NamespaceFilter = Annotated[str, Query(max_length=63)]

router: Final = APIRouter(include_in_schema=False)
router.include_router(pool_pages.router)
router.include_router(simulation_pages.router)
router.include_router(change_pages.router)
router.include_router(release_pages.router)


@router.get("/")
async def overview_page(
    context: AuthenticatedContext, q: SearchText = "", namespace: NamespaceFilter = ""
) -> HTMLResponse:
    """Show the number of objects of each kind, and the worst of each; `q` searches all kinds."""
    kinds: list[dict[str, Any]] = []
    namespaces: set[str] = set()
    for plural in _LISTED:
        listed = context.app.listings[plural].list_namespaces()
        within = await context.app.rights.filter_namespaces(context.identity, plural, listed)
        if within is None or within:
            # A pool is in no namespace: the filter leaves pools alone.
            query = RowQuery(q, "" if plural is Plural.POOLS else namespace, size=10)
            page = read_row_page(context.app, plural, query, within)
            kinds.append({"plural": plural.value, "title": TITLES[plural], "page": page})
            namespaces.update(name for name in listed if name and (within is None or name in within))
    if not kinds:
        await context.list_namespaces(Plural.INFERENCES)  # raises an error that names the missing right
    may_decisions = await context.is_allowed(LIST_DECISIONS)
    decisions = list_recent_decisions(context.app)[:5] if may_decisions else ()
    return render_page(
        context,
        "overview.html",
        kinds=kinds,
        pools=[context.app.fleet.pools.get(ObjectKey("", name)) for name in _row_names(kinds, Plural.POOLS)],
        decisions=[DecisionReport.from_decision(decision) for decision in decisions],
        may_decisions=may_decisions,
        asked=RowQuery(q, namespace),
        namespaces=sorted(namespaces),
        topics=[kind["plural"] for kind in kinds] + ["allocationdecisions"] * may_decisions + ["traffic"],
    )


@router.get("/list/{plural}")
async def list_page(
    context: AuthenticatedContext,
    plural: Plural,
    q: SearchText = "",
    namespace: NamespaceFilter = "",
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    sort: SortOrder = "state",
) -> HTMLResponse:
    """Show one page of the objects of a kind, worst first unless `sort` names another column."""
    if plural not in _LISTED:
        raise ObjectNotFoundError(f"{plural.value} have no list page")
    query = RowQuery(q, namespace, page, order=sort)
    within = await context.list_namespaces(plural, namespace)
    selected = read_row_page(context.app, plural, query, within)
    listing = context.app.listings[plural]
    namespaces = [name for name in listing.list_namespaces() if name and (within is None or name in within)]
    return render_page(
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
async def inference_page(
    context: AuthenticatedContext, namespace: str, name: str, request: Request, window: Window = "1h"
) -> HTMLResponse:
    """Show an Inference: its charts over `window`, the reasons of its state, what routes to it, its pods, events and YAML."""
    key = ObjectKey(namespace, name)
    resource = await context.read_object(context.app.fleet.inferences, key)
    may_decisions = await context.is_allowed(LIST_DECISIONS)
    return render_page(
        context,
        "inference.html",
        key=key,
        inference=resource,
        row=context.app.listings["inferences"].get_row(key),
        why=report_inference(context.app, resource, await context.list_overrides())
        if may_decisions
        else None,
        moves=_decisions_moving(context, resource) if may_decisions else (),
        accesses=await _find_accesses(context, key),
        pods=await list_pods(context, INFERENCE_LABEL, key),
        traffic=context.app.traffic.get_traffic(f"inference/{key}"),
        traffic_known=context.app.traffic.is_configured,
        override_form=await make_form(context, key, {}),
        may_override=await context.is_allowed(actions.CREATE_OVERRIDE),
        may_end=await context.is_allowed(actions.DELETE_OVERRIDE),
        **chart_variables(context.app, window, context.app.links.link_inference(key, window)),
        **await object_variables(context, Plural.INFERENCES, key, request),
    )


@router.get("/inferences/{namespace}/{name}/charts")
async def inference_charts(
    context: AuthenticatedContext, namespace: str, name: str, window: Window = "1h"
) -> HTMLResponse:
    """Show the charts of an Inference over a window; a part of its page."""
    resource = await context.read_object(context.app.fleet.inferences, ObjectKey(namespace, name))
    drawn = read_inference_charts(context.app.charts, resource, window)
    return await render_charts(context, f"/inferences/{resource.key}", str(resource.key), drawn, window)


@router.get("/modelaccesses/{namespace}/{name}")
async def access_page(
    context: AuthenticatedContext, namespace: str, name: str, request: Request
) -> HTMLResponse:
    """Show a ModelAccess: its current weights, its release and checks, events and YAML."""
    key = ObjectKey(namespace, name)
    resource = await context.read_object(context.app.fleet.accesses, key)
    return render_page(
        context,
        "access.html",
        key=key,
        access=resource,
        row=context.app.listings["modelaccesses"].get_row(key),
        release=report_release(resource),
        traffic=await _read_target_traffic(context, resource),
        traffic_known=context.app.traffic.is_configured,
        **await object_variables(context, Plural.ACCESSES, key, request),
    )


async def _read_target_traffic(
    context: RequestContext, access: ModelAccess
) -> Mapping[str, ClusterTraffic | None]:
    """Return the traffic of each Inference that an access names; without those of other namespaces that the user may not see."""
    targets = {name: resolve_shared_name(name, access.key.namespace) for name in access.spec.inference_names}
    return {
        name: context.app.traffic.get_traffic(f"inference/{target}")
        for name, target in targets.items()
        if target.namespace == access.key.namespace
        or await context.is_allowed(Action("get", Plural.INFERENCES, target.namespace, target.name))
    }


@router.get("/featurecomputes/{namespace}/{name}")
async def features_page(
    context: AuthenticatedContext, namespace: str, name: str, request: Request
) -> HTMLResponse:
    """Show a FeatureCompute."""
    key = ObjectKey(namespace, name)
    resource = await context.read_object(context.app.fleet.features, key)
    return render_page(
        context,
        "features.html",
        key=key,
        features=resource,
        used=await list_used_features(context, resource),
        row=context.app.listings["featurecomputes"].get_row(key),
        pods=await list_pods(context, FEATURE_COMPUTE_LABEL, key),
        traffic=context.app.traffic.get_traffic(f"features/{key}"),
        traffic_known=context.app.traffic.is_configured,
        **await object_variables(context, Plural.FEATURES, key, request),
    )


@router.get("/decisions")
async def decisions_page(
    context: AuthenticatedContext,
    pool: Annotated[str, Query(max_length=63)] = "",
    inference: Annotated[str, Query(max_length=127)] = "",
    trigger: DecisionTrigger | Literal[""] = "",
    mode: PolicyMode | Literal[""] = "",
    tier: Tier | Literal[""] = "",
    age: Window | Literal[""] = "",
    page: Annotated[int, Query(ge=1, le=1_000)] = 1,
) -> HTMLResponse:
    """Show the log of decisions; `tier` is that of an Inference that moves, and `age` the longest time since then."""
    await context.require(LIST_DECISIONS)
    oldest = context.app.now() - parse_duration(age) if age else None
    decisions = [
        decision
        for decision in list_recent_decisions(context.app, pool or None, inference or None)
        if (not trigger or decision.spec.trigger is trigger)
        and (not mode or decision.spec.mode is mode)
        and (not tier or any(move.tier is tier for move in decision.spec.moves))
        and (oldest is None or decision.spec.at >= oldest)
    ]
    selected = select_page(decisions, page)
    return render_page(
        context,
        "decisions.html",
        decisions=[DecisionReport.from_decision(decision) for decision in selected.items],
        total=selected.total,
        number=selected.number,
        pages=selected.pages,
        pool=pool,
        inference=inference,
        chosen={"trigger": trigger, "mode": mode, "tier": tier, "age": age},
        choices={
            "trigger": list(DecisionTrigger),
            "mode": list(PolicyMode),
            "tier": list(Tier),
            "age": WINDOWS,
        },
        pools=[pool.metadata.name for pool in context.app.fleet.pools.list_all()],
        topics=["allocationdecisions"],
    )


@router.get("/decisions/{name}")
async def decision_page(context: AuthenticatedContext, name: str) -> HTMLResponse:
    """Show a decision: its inputs, moves, reasons and outcome."""
    key = ObjectKey("", name)
    await context.require_get("allocationdecisions", key)
    resource = context.app.fleet.decisions.get(key)
    if resource is None:
        raise ObjectNotFoundError(
            f'AllocationDecision "{name}" not found: only the last 200 decisions of each pool are kept'
        )
    body = context.app.fleet.decisions.store.get(key) or {}
    return render_page(
        context,
        "decision.html",
        decision=resource,
        report=DecisionReport.from_decision(resource),
        body=body,
        topics=[f"allocationdecisions/{name}"],
    )


@router.get("/messages/{code}")
async def message_page(context: AuthenticatedContext, code: str) -> HTMLResponse:
    """Show the meaning of a message code and what to do, as in docs/reference/messages."""
    if code not in _MESSAGES_BY_CODE:
        raise ObjectNotFoundError(f'message "{code[:20]}" not found: codes look like TG1001')
    name, text = _MESSAGES_BY_CODE[code]
    return render_page(context, "message.html", name=name, message=text, topics=[])


def _row_names(kinds: Sequence[Mapping[str, Any]], plural: Plural) -> list[str]:
    return [row.name for kind in kinds if kind["plural"] == plural for row in kind["page"].rows]


def _decisions_moving(context: RequestContext, inference: Inference) -> Sequence[DecisionReport]:
    """Return the newest decisions that move an Inference, of all its pools."""
    decisions = list_recent_decisions(context.app, inference=str(inference.key))
    return [DecisionReport.from_decision(decision) for decision in decisions[:_MOVES_SHOWN]]


async def _find_accesses(context: RequestContext, key: ObjectKey) -> Sequence[ObjectKey] | None:
    """Return the ModelAccesses that route to an Inference; None if the user may not list ModelAccesses there.

    Those of other namespaces are left out where the user may not list them.
    """
    if not await context.is_allowed(Action("list", Plural.ACCESSES, key.namespace)):
        return None
    inference = context.app.fleet.inferences.get(key)
    shared = list_shared_namespaces(inference) if inference is not None else ()
    listed = {key.namespace}
    for namespace in shared:
        if await context.is_allowed(Action("list", Plural.ACCESSES, namespace)):
            listed.add(namespace)
    return [
        access.key
        for access in context.app.fleet.accesses.list_all()
        if access.key.namespace in listed
        and format_shared_name(key, access.key.namespace) in access.spec.inference_names
    ]
