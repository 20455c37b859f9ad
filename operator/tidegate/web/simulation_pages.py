"""The page on which a past time of a pool is simulated, with other policies and changes, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from markupsafe import Markup

from tidegate.api.inference import Inference, NodeLossMode, Tier
from tidegate.errors import PermanentError, TidegateError
from tidegate.reports.day_charts import render_day_charts
from tidegate.services.recorded_day import RecordedObjects, count_simulated_slices, select_placed
from tidegate.services.what_if import parse_question
from tidegate.simulation.next_hours import MAX_FORECASTS
from tidegate.simulation.policies import DESCRIPTIONS, ORACLE
from tidegate.web import actions
from tidegate.web.forms import VerifiedForm, parse_change_fields
from tidegate.web.rendering import render_page, render_template
from tidegate.web.request_context import AuthenticatedContext, RequestContext
from tidegate.web.simulations import DayComparison, DayRequest

_SETTINGS: Final = frozenset(
    {"factor", "slices", "nodes", "dwell", "nodeLoss", "end", "hours", "historyDays", "interval"}
)
_ANSWER_PLACE: Final = "<!-- the answer -->"
_ROWS_SHOWN: Final = 50

router: Final = APIRouter(include_in_schema=False)


@router.get("/computepools/{name}/simulate")
async def simulation_page(context: AuthenticatedContext, name: str) -> HTMLResponse:
    """Show the form."""
    return await _render_form(context, name, {}, "")


@router.get("/computepools/{name}/next-hours")
async def next_hours_part(context: AuthenticatedContext, name: str) -> HTMLResponse:
    """Show the demand and the plan of the next hours; a part of the pool's page."""
    await actions.require_simulation(context, name)
    report, message = None, ""
    try:
        report = await context.app.simulations.plan_next_hours(name)
    except (TidegateError, ValueError) as error:
        message = str(error)
    drawn = await asyncio.to_thread(report.render_charts) if report is not None else ""
    charts = Markup(drawn)  # noqa: S704 - it escapes what it draws
    return render_page(
        context,
        "next_hours.html",
        pool=name,
        report=report,
        charts=charts,
        message=message,
        most=MAX_FORECASTS,
        topics=[],
    )


@router.post("/computepools/{name}/simulate")
async def submit_simulation(context: AuthenticatedContext, name: str, fields: VerifiedForm) -> Response:
    """Simulate, and send the page as the simulation proceeds; it ends when the browser goes away."""
    try:
        request = parse_question(DayRequest, _parse_day_fields(name, fields))
    except PermanentError as error:
        return await _render_form(context, name, fields, str(error))
    page = await _render_form(context, name, fields, "")
    before, _, after = bytes(page.body).decode().partition(_ANSWER_PLACE)
    return StreamingResponse(
        _stream_page(context, request, before, after),
        media_type="text/html",
        headers={"x-accel-buffering": "no"},
    )


async def _stream_page(
    context: RequestContext, request: DayRequest, before: str, after: str
) -> AsyncGenerator[str]:
    yield f'{before}<ol class="progress" role="log" aria-label="Progress">'
    comparison: DayComparison | None = None
    message = last = ""
    try:
        async with aclosing(actions.simulate_day(context, request, compare=True)) as steps:
            async for step in steps:
                if isinstance(step, DayComparison):
                    comparison = step
                elif step != last:
                    last = step
                    yield f"<li>{Markup.escape(step)}</li>\n"
    except (TidegateError, ValueError) as error:
        message = str(error)
    drawn = ""
    if comparison is not None:
        drawn = await asyncio.to_thread(render_day_charts, comparison.labelled_reports)
    charts = Markup(drawn)  # noqa: S704 - it escapes what it draws
    answer = {"comparison": comparison, "message": message, "charts": charts}
    yield f"</ol>{render_template('parts/simulation.html', answer)}{after}"


async def _render_form(
    context: RequestContext, name: str, fields: Mapping[str, str], message: str
) -> HTMLResponse:
    pool = await actions.require_simulation(context, name)
    inferences = select_placed(name, context.app.fleet.inferences.list_all())
    return render_page(
        context,
        "simulate.html",
        status=400 if message else 200,
        pool=pool,
        tiers=[tier.value for tier in Tier],
        modes=[mode.value for mode in NodeLossMode],
        policies=[(policy, text) for policy, text in DESCRIPTIONS.items() if policy != ORACLE],
        chosen=_select_policies(fields),
        inferences=_select_shown(inferences, fields),
        total=len(inferences),
        slices=count_simulated_slices(RecordedObjects(pool, inferences)),
        fields=fields,
        message=message,
        problem=context.app.simulations.history_problem,
        now=context.app.now(),
        topics=[],
    )


def _parse_day_fields(name: str, fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the body of a DayRequest from the form; empty fields change nothing."""
    events = [
        {"event": field.partition(":")[2], "factor": text.strip()}
        for field, text in fields.items()
        if field.startswith("event:") and text.strip()
    ]
    changes = {field: text for field, text in fields.items() if not field.startswith("event:")}
    lost = {
        part: changes[f"lost.{part}"] for part in ("nodes", "after", "lasting") if changes.get(f"lost.{part}")
    }
    return {
        **parse_change_fields(changes, _SETTINGS),
        "pool": name,
        "end": f"{fields['end'].strip()}Z" if fields.get("end", "").strip() else None,
        "policies": _select_policies(fields),
        "events": events,
        "lostNodes": [lost] if lost.get("nodes", "0").strip() != "0" else [],
    }


def _select_policies(fields: Mapping[str, str]) -> Sequence[str]:
    """Return the policies that are ticked; those of a new form without any."""
    ticked = [policy for policy in DESCRIPTIONS if f"policy.{policy}" in fields]
    return ticked or list(DayRequest.model_fields["policies"].default)


def _select_shown(inferences: Sequence[Inference], fields: Mapping[str, str]) -> Sequence[Inference]:
    """Return the Inferences of the form: those that are changed first."""
    changed = {field.partition(":")[2] for field, text in fields.items() if ":" in field and text.strip()}
    return sorted(inferences, key=lambda item: (str(item.key) not in changed, item.key))[:_ROWS_SHOWN]
