"""The page of a release: its steps, both sides against their limits, and the commands that steer it."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.api.release_commands import RELEASE_COMMANDS, ReleaseCommand
from tidegate.errors import PermanentError, TidegateError
from tidegate.reports.release import ReleaseCommandResult, ReleaseReport
from tidegate.reports.release_figures import ReleaseFigures
from tidegate.web import actions
from tidegate.web.chart_parts import chart_variables, render_charts
from tidegate.web.charts import Window
from tidegate.web.forms import VerifiedForm
from tidegate.web.listing import Plural
from tidegate.web.object_pages import object_variables
from tidegate.web.rendering import render_page
from tidegate.web.request_context import AuthenticatedContext, ObjectNotFoundError
from tidegate.web.traffic_charts import read_release_charts

_SEE_OTHER: Final = 303

router: Final = APIRouter(include_in_schema=False)


@router.get("/modelaccesses/{namespace}/{name}/release")
async def release_page(
    context: AuthenticatedContext, namespace: str, name: str, request: Request, window: Window = "1h"
) -> HTMLResponse:
    """Show the release of a ModelAccess; `window` is that of its charts."""
    key = ObjectKey(namespace, name)
    resource = await context.read_object(context.app.fleet.accesses, key)
    spec, release = resource.spec.release, report_release(resource)
    if spec is None or release is None:
        raise ObjectNotFoundError(f"ModelAccess {key} has no spec.release: nothing is released there")
    return render_page(
        context,
        "release.html",
        key=key,
        release=release,
        interval=spec.interval,
        on_failure=spec.on_failure.value,
        figures=ReleaseFigures.from_access(resource),
        released_routes=[route for route in resource.status.routes if route.name == release.route],
        may_release=await context.is_allowed(actions.release_right(key)),
        commands=_effective_commands(resource),
        **chart_variables(context.app, window, context.app.links.link_release(key, window)),
        **await object_variables(context, Plural.ACCESSES, key, request),
    )


@router.get("/modelaccesses/{namespace}/{name}/release/charts")
async def release_charts(
    context: AuthenticatedContext, namespace: str, name: str, window: Window = "1h"
) -> HTMLResponse:
    """Show the charts of both sides of a release over a window; a part of its page."""
    key = ObjectKey(namespace, name)
    resource = await context.read_object(context.app.fleet.accesses, key)
    release = resource.spec.release
    if release is None:
        raise ObjectNotFoundError(f"ModelAccess {key} has no spec.release: nothing is released there")
    drawn = read_release_charts(context.app.charts, resource, release.target, window)
    return await render_charts(context, f"/modelaccesses/{key}/release", f"release of {key}", drawn, window)


@router.post("/modelaccesses/{namespace}/{name}/release")
async def steer_release(
    context: AuthenticatedContext, namespace: str, name: str, fields: VerifiedForm
) -> RedirectResponse:
    """Send a command to a release."""
    command = fields.get("command", "")
    if command not in {known_command.value for known_command in ReleaseCommand}:
        message = f"command: '{command[:40]}' is not one of {', '.join(ReleaseCommand)}"
        raise PermanentError(message)
    await actions.steer_release(context, ObjectKey(namespace, name), ReleaseCommand(command))
    page = f"/modelaccesses/{quote(namespace)}/{quote(name)}/release"
    return RedirectResponse(page + context.namespace_query, _SEE_OTHER)


def report_release(access: ModelAccess) -> ReleaseReport | None:
    """Return the report of a release; None if the access has none."""
    try:
        return ReleaseReport.from_access(access, ReleaseCommandResult.NOTHING_ASKED)
    except (TidegateError, ValueError):
        return None


def _effective_commands(access: ModelAccess) -> list[str]:
    """Return the commands that have an effect in the current phase of the release."""
    phase = access.status.release.phase if access.status.release is not None else None
    return [command.value for command, rule in RELEASE_COMMANDS.items() if phase in rule.effective_in]
