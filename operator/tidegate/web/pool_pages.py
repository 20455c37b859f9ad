"""The pages of a pool: how its compute is shared out, what is asked of it, and what would be if."""

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
async def power_index(visitor: Known) -> Response:
    """The only pool, or a list of them."""
    await visitor.sees(Plural.POOLS)
    pools = visitor.parts.fleet.pools.all()
    if len(pools) == 1:
        return RedirectResponse(f"/computepools/{pools[0].metadata.name}", _SEE_OTHER)
    return RedirectResponse("/list/computepools", _SEE_OTHER)


@router.get("/computepools/{name}")
async def pool(
    visitor: Known,
    name: str,
    request: Request,
    on: Annotated[str, Query(max_length=127)] = "",
    nodes: Annotated[int, Query(ge=1, le=100_000)] = 1,
) -> HTMLResponse:
    """How a pool's compute is shared out, over time and now; `on` and `nodes` say whose slots, and which page of them."""
    found = await visitor.read(visitor.parts.fleet.pools, ObjectKey("", name))
    await visitor.must(LIST_DECISIONS)
    overrides = await visitor.overrides()
    decisions = decisions_of(visitor.parts, name)
    power = power_of(visitor.parts, found)
    asked = SlotsAsked(on.strip(), nodes)
    may_plan, nodes_known = await visitor.may(acting.plan_right(visitor)), await visitor.sees_nodes(found)
    return shown(
        visitor,
        "power.html",
        key=found.key,
        pool=found,
        row=visitor.parts.listings["computepools"].row(found.key),
        power=power,
        why=why_of_pool(visitor.parts, found, overrides),
        asked=asked,
        slots=slot_page(
            visitor.parts,
            name,
            asked,
            await visitor.sees_pods(namespaces_of(visitor.parts, name)),
            nodes_known,
        ),
        nodes_known=nodes_known is not None,
        nodes_watched=visitor.parts.nodes.watched,
        may_nodes=await visitor.may(LIST_NODES),
        no_charts="" if visitor.parts.charts.configured else NOT_CONFIGURED,
        decisions=[DecisionReport.of(each) for each in decisions[:10]],
        overrides=[
            OverrideReport.of(each)
            for each in overrides
            if (each.spec.target.kind.value, each.spec.target.key) == (found.KIND, found.key)
            and each.ends > visitor.parts.now()
        ],
        next_freeze=next_begin(found.spec.policy.freeze, visitor.parts.now()),
        may_override=await visitor.may(acting.CREATE),
        may_end=await visitor.may(acting.DELETE),
        may_plan=may_plan,
        **await of_object(visitor, Plural.POOLS, found.key, request),
    )


@router.get("/computepools/{name}/demand")
async def demand(visitor: Known, name: str) -> HTMLResponse:
    """What is asked of each tier against what it has: a part of the pool's page, which asks the allocator's own solver."""
    found = await visitor.read(visitor.parts.fleet.pools, ObjectKey("", name))
    await visitor.must(acting.plan_right(visitor))
    report, said = None, ""
    try:
        report = await acting.plan(visitor, name, question({}))
    except (TidegateError, ValueError) as error:
        said = str(error)
    tiers = tiers_of(report.asked, found) if report is not None else ()
    return shown(visitor, "demand.html", pool=name, report=report, tiers=tiers, said=said, topics=[])


@router.get("/plan/{pool}")
async def plan_page(visitor: Known, pool: str) -> HTMLResponse:
    """What would be decided as things are, and fields to change it."""
    await visitor.read(visitor.parts.fleet.pools, ObjectKey("", pool))
    await visitor.must(acting.plan_right(visitor))
    return await _planned(visitor, pool, {})


@router.post("/plan/{pool}")
async def planned(visitor: Known, pool: str, fields: Fields) -> HTMLResponse:
    """What would be decided if it were as the form says."""
    return await _planned(visitor, pool, fields)


async def _planned(visitor: Visitor, pool: str, fields: Mapping[str, str]) -> HTMLResponse:
    found = await visitor.read(visitor.parts.fleet.pools, ObjectKey("", pool))
    said, report = "", None
    try:
        report = await acting.plan(visitor, pool, question(_what_if(fields)))
    except (PermanentError, ValueError) as error:
        said = str(error)
        report = None if not fields else await _as_it_is(visitor, pool)
    return shown(
        visitor,
        "plan.html",
        status=400 if said else 200,
        pool=pool,
        found=found,
        tiers=[tier.value for tier in Tier],
        report=report,
        said=said,
        fields=fields,
        editable=editable(report, fields) if report is not None else None,
        topics=[],
    )


async def _as_it_is(visitor: Visitor, pool: str) -> PlanReport | None:
    try:
        return await acting.plan(visitor, pool, question({}))
    except (PermanentError, ValueError):
        return None


def _what_if(fields: Mapping[str, str]) -> dict[str, Any]:
    """A WhatIf from fields like `factor`, `floor.offline` and `demand:ads/ctr`; what is empty is as it is."""
    asked: dict[str, Any] = {}
    inferences: dict[str, dict[str, Any]] = {}
    tiers: dict[str, dict[str, Any]] = {}
    for field, text in fields.items():
        value = text.strip()
        if not value:
            continue
        if field in {"factor", "slices"}:
            asked[field] = value
        elif field == "withoutBudget":
            asked[field] = True
        elif field.startswith(("floor.", "ceiling.")):
            what, _, tier = field.partition(".")
            tiers.setdefault(tier, {"tier": tier})[what] = value
        elif ":" in field:
            what, _, name = field.partition(":")
            key = "factor" if what == "demand" and value.startswith("x") else what
            inferences.setdefault(name, {"inference": name})[key] = value.removeprefix("x")
    return {**asked, "inferences": list(inferences.values()), "tiers": list(tiers.values())}
