"""The pages of a pool: the assignment of its compute, the demand for it, and what-ifs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from tidegate.api.inference import Tier
from tidegate.api.meta import ObjectKey
from tidegate.errors import PermanentError, TidegateError
from tidegate.operations.what_if import question
from tidegate.planning.freeze import next_begin
from tidegate.reports.decision import DecisionReport
from tidegate.reports.demand import tiers_of
from tidegate.reports.plan import PlanReport
from tidegate.reports.standing import OverrideReport
from tidegate.web import acting
from tidegate.web.charts import NOT_CONFIGURED
from tidegate.web.forms import Fields
from tidegate.web.object_pages import of_object
from tidegate.web.plurals import Plural
from tidegate.web.rendering import shown
from tidegate.web.views.power import SlotsAsked, namespaces_of, power_of, slot_page
from tidegate.web.views.questions import editable
from tidegate.web.views.standing import decisions_of, why_of_pool
from tidegate.web.visitor import LIST_DECISIONS, LIST_NODES, Known, Visitor

_SEE_OTHER: Final = 303

router: Final = APIRouter(include_in_schema=False)


@router.get("/power")
async def power_index(context: Known) -> Response:
    """Redirect to the only pool, or to the list of pools."""
    await context.sees(Plural.POOLS)
    pools = context.parts.fleet.pools.all()
    if len(pools) == 1:
        return RedirectResponse(f"/computepools/{pools[0].metadata.name}", _SEE_OTHER)
    return RedirectResponse("/list/computepools", _SEE_OTHER)


@router.get("/computepools/{name}")
async def pool(
    context: Known,
    name: str,
    request: Request,
    on: Annotated[str, Query(max_length=127)] = "",
    nodes: Annotated[int, Query(ge=1, le=100_000)] = 1,
) -> HTMLResponse:
    """Show the assignment of a pool's compute; `on` filters the slots by Inference, `nodes` is the page of nodes."""
    resource = await context.read(context.parts.fleet.pools, ObjectKey("", name))
    await context.must(LIST_DECISIONS)
    overrides = await context.overrides()
    decisions = decisions_of(context.parts, name)
    power = power_of(context.parts, resource)
    query = SlotsAsked(on.strip(), nodes)
    may_plan, node_slices = (
        await context.may(acting.plan_right(context)),
        await context.sees_nodes(resource),
    )
    return shown(
        context,
        "power.html",
        key=resource.key,
        pool=resource,
        row=context.parts.listings["computepools"].row(resource.key),
        power=power,
        why=why_of_pool(context.parts, resource, overrides),
        asked=query,
        slots=slot_page(
            context.parts,
            name,
            query,
            await context.sees_pods(namespaces_of(context.parts, name)),
            node_slices,
        ),
        nodes_known=node_slices is not None,
        nodes_watched=context.parts.nodes.watched,
        may_nodes=await context.may(LIST_NODES),
        no_charts="" if context.parts.charts.configured else NOT_CONFIGURED,
        decisions=[DecisionReport.of(decision) for decision in decisions[:10]],
        overrides=[
            OverrideReport.of(override)
            for override in overrides
            if (override.spec.target.kind.value, override.spec.target.key) == (resource.KIND, resource.key)
            and override.ends > context.parts.now()
        ],
        next_freeze=next_begin(resource.spec.policy.freeze, context.parts.now()),
        may_override=await context.may(acting.CREATE),
        may_end=await context.may(acting.DELETE),
        may_plan=may_plan,
        **await of_object(context, Plural.POOLS, resource.key, request),
    )


@router.get("/computepools/{name}/demand")
async def demand(context: Known, name: str) -> HTMLResponse:
    """Show the demand and the slices of each tier, from the allocator's solver; a part of the pool's page."""
    resource = await context.read(context.parts.fleet.pools, ObjectKey("", name))
    await context.must(acting.plan_right(context))
    report, message = None, ""
    try:
        report = await acting.plan(context, name, question({}))
    except (TidegateError, ValueError) as error:
        message = str(error)
    tiers = tiers_of(report.asked, resource) if report is not None else ()
    return shown(context, "demand.html", pool=name, report=report, tiers=tiers, said=message, topics=[])


@router.get("/plan/{pool}")
async def plan_page(context: Known, pool: str) -> HTMLResponse:
    """Show what the allocator would decide now, and a form for other assumptions."""
    await context.read(context.parts.fleet.pools, ObjectKey("", pool))
    await context.must(acting.plan_right(context))
    return await _render_plan(context, pool, {})


@router.post("/plan/{pool}")
async def planned(context: Known, pool: str, fields: Fields) -> HTMLResponse:
    """Show what the allocator would decide under the assumptions of the form."""
    return await _render_plan(context, pool, fields)


async def _render_plan(context: Visitor, pool: str, fields: Mapping[str, str]) -> HTMLResponse:
    resource = await context.read(context.parts.fleet.pools, ObjectKey("", pool))
    message, report = "", None
    try:
        report = await acting.plan(context, pool, question(_parse_what_if(fields)))
    except (PermanentError, ValueError) as error:
        message = str(error)
        report = None if not fields else await _current_plan(context, pool)
    return shown(
        context,
        "plan.html",
        status=400 if message else 200,
        pool=pool,
        found=resource,
        tiers=[tier.value for tier in Tier],
        report=report,
        said=message,
        fields=fields,
        editable=editable(report, fields) if report is not None else None,
        topics=[],
    )


async def _current_plan(context: Visitor, pool: str) -> PlanReport | None:
    try:
        return await acting.plan(context, pool, question({}))
    except (PermanentError, ValueError):
        return None


def _parse_what_if(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return a WhatIf from fields like `factor`, `floor.offline` and `demand:ads/ctr`; empty fields change nothing."""
    assumptions: dict[str, Any] = {}
    inferences: dict[str, dict[str, Any]] = {}
    tiers: dict[str, dict[str, Any]] = {}
    for field, text in fields.items():
        value = text.strip()
        if not value:
            continue
        if field in {"factor", "slices"}:
            assumptions[field] = value
        elif field == "withoutBudget":
            assumptions[field] = True
        elif field.startswith(("floor.", "ceiling.")):
            bound, _, tier = field.partition(".")
            tiers.setdefault(tier, {"tier": tier})[bound] = value
        elif ":" in field:
            setting, _, name = field.partition(":")
            key = "factor" if setting == "demand" and value.startswith("x") else setting
            inferences.setdefault(name, {"inference": name})[key] = value.removeprefix("x")
    return {**assumptions, "inferences": list(inferences.values()), "tiers": list(tiers.values())}
