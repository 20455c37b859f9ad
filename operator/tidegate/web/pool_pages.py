"""The pages of a pool: the assignment of its compute, the demand for it, and what-ifs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from tidegate.api.compute_override import OverrideKind
from tidegate.api.inference import Tier
from tidegate.api.meta import ObjectKey
from tidegate.errors import PermanentError, TidegateError
from tidegate.planning.allocator.freeze import find_next_begin
from tidegate.planning.pools.overrides import select_active_for
from tidegate.reports.decision import DecisionReport
from tidegate.reports.plan import InferenceOutcomeReport, PlanReport, sum_demand
from tidegate.reports.shared import OverrideReport
from tidegate.services.what_if import parse_what_if
from tidegate.web import actions
from tidegate.web.chart_parts import chart_variables
from tidegate.web.charts import Window
from tidegate.web.explanations import list_recent_decisions, report_pool
from tidegate.web.forms import VerifiedForm, parse_change_fields
from tidegate.web.listing import Plural
from tidegate.web.object_pages import object_variables
from tidegate.web.override_form import make_form
from tidegate.web.pool_power import SlotQuery, get_slot_page, list_pod_namespaces, summarise_power
from tidegate.web.rendering import render_page
from tidegate.web.request_context import LIST_DECISIONS, LIST_NODES, AuthenticatedContext, RequestContext

_SEE_OTHER: Final = 303
_ROWS_SHOWN: Final = 50
"""The most Inferences that the form of a what-if shows."""

router: Final = APIRouter(include_in_schema=False)


@router.get("/power")
async def power_index(context: AuthenticatedContext) -> Response:
    """Redirect to the only pool, or to the list of pools."""
    await context.list_namespaces(Plural.POOLS)
    pools = context.app.fleet.pools.list_all()
    if len(pools) == 1:
        return RedirectResponse(
            f"/computepools/{pools[0].metadata.name}{context.namespace_query}", _SEE_OTHER
        )
    return RedirectResponse(f"/list/computepools{context.namespace_query}", _SEE_OTHER)


@router.get("/computepools/{name}")
async def pool_page(
    context: AuthenticatedContext,
    name: str,
    request: Request,
    on: Annotated[str, Query(max_length=127)] = "",
    nodes: Annotated[int, Query(ge=1, le=100_000)] = 1,
    window: Window = "1h",
) -> HTMLResponse:
    """Show the assignment of a pool's compute.

    `on` filters the slots by Inference, `nodes` is the page of nodes, and `window` is that of the charts.
    """
    resource = await context.read_object(context.app.fleet.pools, ObjectKey("", name))
    await context.require(LIST_DECISIONS)
    overrides = await context.list_overrides()
    decisions = list_recent_decisions(context.app, name)
    power = summarise_power(context.app, resource)
    query = SlotQuery(on.strip(), nodes)
    may_plan, node_slices = (
        await context.is_allowed(actions.plan_right(context)),
        await context.get_node_slices(resource),
    )
    return render_page(
        context,
        "power.html",
        key=resource.key,
        pool=resource,
        row=context.app.listings["computepools"].get_row(resource.key),
        power=power,
        why=report_pool(context.app, resource, overrides),
        asked=query,
        slots=get_slot_page(
            context.app,
            name,
            query,
            await context.list_pod_namespaces(list_pod_namespaces(context.app, name)),
            node_slices,
        ),
        nodes_known=node_slices is not None,
        nodes_watched=context.app.nodes.watched,
        may_nodes=await context.is_allowed(LIST_NODES),
        no_history=context.app.simulations.history_problem,
        **chart_variables(context.app, window, context.app.links.link_pool(name, window)),
        decisions=[DecisionReport.from_decision(decision) for decision in decisions[:10]],
        overrides=[
            OverrideReport.from_override(override)
            for override in select_active_for(
                overrides, OverrideKind.COMPUTE_POOL, resource.key, context.app.now()
            )
        ],
        next_freeze=find_next_begin(resource.spec.policy.freeze, context.app.now()),
        override_form=await make_form(context, resource.key, {}),
        may_override=await context.is_allowed(actions.CREATE_OVERRIDE),
        may_end=await context.is_allowed(actions.DELETE_OVERRIDE),
        may_plan=may_plan,
        **await object_variables(context, Plural.POOLS, resource.key, request),
    )


@router.get("/computepools/{name}/demand")
async def demand_part(context: AuthenticatedContext, name: str) -> HTMLResponse:
    """Show the demand and the slices of each tier, and the value of what clients sent; a part of the pool's page."""
    resource = await context.read_object(context.app.fleet.pools, ObjectKey("", name))
    await context.require(actions.plan_right(context))
    report, message = None, ""
    try:
        report = await actions.plan_pool(context, name, parse_what_if({}))
    except (TidegateError, ValueError) as error:
        message = str(error)
    tiers = sum_demand(report.asked, resource) if report is not None else ()
    worths = {row.inference: row for row in report.asked} if report is not None else {}
    return render_page(
        context,
        "demand.html",
        pool=name,
        report=report,
        tiers=tiers,
        worths=worths,
        message=message,
        topics=[],
    )


@router.get("/plan/{pool}")
async def plan_page(context: AuthenticatedContext, pool: str) -> HTMLResponse:
    """Show what the allocator would decide now, and a form for other assumptions."""
    await context.read_object(context.app.fleet.pools, ObjectKey("", pool))
    await context.require(actions.plan_right(context))
    return await _render_plan(context, pool, {})


@router.post("/plan/{pool}")
async def submit_plan(context: AuthenticatedContext, pool: str, fields: VerifiedForm) -> HTMLResponse:
    """Show what the allocator would decide under the assumptions of the form."""
    return await _render_plan(context, pool, fields)


async def _render_plan(context: RequestContext, pool: str, fields: Mapping[str, str]) -> HTMLResponse:
    resource = await context.read_object(context.app.fleet.pools, ObjectKey("", pool))
    message, report = "", None
    try:
        report = await actions.plan_pool(context, pool, parse_what_if(_read_question(fields)))
    except (PermanentError, ValueError) as error:
        message = str(error)
        report = None if not fields else await _current_plan(context, pool)
    return render_page(
        context,
        "plan.html",
        status=400 if message else 200,
        pool=pool,
        found=resource,
        tiers=[tier.value for tier in Tier],
        report=report,
        message=message,
        fields=fields,
        editable=_select_editable_rows(report, fields) if report is not None else None,
        topics=[],
    )


async def _current_plan(context: RequestContext, pool: str) -> PlanReport | None:
    try:
        return await actions.plan_pool(context, pool, parse_what_if({}))
    except (PermanentError, ValueError):
        return None


def _read_question(fields: Mapping[str, str]) -> dict[str, Any]:
    question = parse_change_fields(fields, {"factor", "slices"})
    return {**question, "withoutBudget": True} if fields.get("withoutBudget") else question


@dataclass(frozen=True, slots=True)
class _EditableRows:
    """The rows of the form, and the fields that stay hidden."""

    rows: tuple[InferenceOutcomeReport, ...]
    """Rows changed in the question first, then those that would move, then those with the most unserved demand."""
    total: int
    """Rows that match the filter."""
    of_all: int
    filter: str
    hidden_fields: tuple[tuple[str, str], ...]
    """Changed fields of rows that are not shown, which stay part of the question."""
    changed: int
    """The number of Inferences that the question changes."""


def _select_editable_rows(report: PlanReport, fields: Mapping[str, str]) -> _EditableRows:
    """Return the rows that match the field `filter` of the form."""
    text = fields.get("filter", "").strip().lower()
    changed_fields = {name: value for name, value in fields.items() if ":" in name and value.strip()}
    changed = {name.partition(":")[2] for name in changed_fields}
    matching = [row for row in report.asked if text in f"{row.inference} {row.tier}".lower()]
    rows = _most_relevant(matching, changed)
    shown = {row.inference for row in rows}
    hidden = tuple(
        (name, value) for name, value in changed_fields.items() if name.partition(":")[2] not in shown
    )
    return _EditableRows(rows, len(matching), len(report.asked), text, hidden, len(changed))


def _most_relevant(
    rows: Sequence[InferenceOutcomeReport], changed: set[str]
) -> tuple[InferenceOutcomeReport, ...]:
    def sort_key(row: InferenceOutcomeReport) -> tuple[bool, bool, float, str]:
        unserved = max((row.demand or 0.0) - row.serves, 0.0)
        return row.inference not in changed, row.before == row.after, -unserved, row.inference

    return tuple(sorted(rows, key=sort_key)[:_ROWS_SHOWN])
