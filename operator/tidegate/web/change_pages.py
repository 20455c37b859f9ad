"""The pages that change overrides, after a preview."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import ValidationError

from tidegate.api.compute_override import OverrideKind
from tidegate.errors import PermanentError
from tidegate.planning.pools.override_requests import OverrideContext, plan_override_write, preview_override
from tidegate.reports.overrides import report_applied
from tidegate.reports.shared import OverrideReport
from tidegate.web import actions
from tidegate.web.actions import OverrideInput
from tidegate.web.explanations import find_pool, list_overrides
from tidegate.web.forms import VerifiedForm
from tidegate.web.override_form import choose_target, suggest_targets
from tidegate.web.rendering import render_page
from tidegate.web.request_context import (
    LIST_OVERRIDES,
    AuthenticatedContext,
    ForbiddenError,
    ObjectNotFoundError,
    RequestContext,
)

_SEE_OTHER: Final = 303
_BAD_REQUEST: Final = 400
_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_FIELDS: Final = ("kind", "namespace", "name", "action", "replicas", "reason", "lasting")
_MAX_TARGET: Final = 317
"""A namespace of 63 characters, a slash and a name of 253."""

router: Final = APIRouter(include_in_schema=False)


@router.get("/overrides")
async def overrides_page(context: AuthenticatedContext, request: Request) -> HTMLResponse:
    """Show all ComputeOverrides, and a form for a new one."""
    return await _render_overrides(context, request.query_params)


async def _render_overrides(
    context: RequestContext, fields: Mapping[str, str], error: str = "", status: int = 200
) -> HTMLResponse:
    """Return the page of overrides, with the `fields` that the user typed and the error in them."""
    if not error:
        await context.require(LIST_OVERRIDES)
    overrides = list_overrides(context.app) if await context.is_allowed(LIST_OVERRIDES) else ()
    now = context.app.now()
    may_override = await context.is_allowed(actions.CREATE_OVERRIDE)
    typed = {name: fields[name] for name in _FIELDS if fields.get(name)}
    choice = await choose_target(context, {**typed, "target": fields.get("target", "")[:_MAX_TARGET]})
    return render_page(
        context,
        "overrides.html",
        status,
        message=error or choice.message,
        typed=typed,
        choice=choice,
        suggested=await suggest_targets(context) if may_override and choice.form is None else (),
        active=[OverrideReport.from_override(override) for override in overrides if override.end_time > now],
        expired=[
            OverrideReport.from_override(override) for override in overrides if override.end_time <= now
        ],
        may_override=may_override,
        may_end=await context.is_allowed(actions.DELETE_OVERRIDE),
        topics=["computeoverrides"],
    )


@router.post("/overrides/confirm")
async def confirm_override(context: AuthenticatedContext, fields: VerifiedForm) -> HTMLResponse:
    """Show what an override will do, and ask for confirmation."""
    await context.require(actions.CREATE_OVERRIDE)
    try:
        override_request = _parse_override(fields)
        target = await _observe_target(context, override_request)
        step = plan_override_write(target, override_request.desired_override)
        report = report_applied(target, step, preview_override(target, step))
    except ForbiddenError as error:
        return await _render_overrides(context, fields, str(error), _FORBIDDEN)
    except ObjectNotFoundError as error:
        return await _render_overrides(context, fields, str(error), _NOT_FOUND)
    except PermanentError as error:
        return await _render_overrides(context, fields, str(error), _BAD_REQUEST)
    return render_page(
        context,
        "confirm.html",
        override_request=override_request,
        target=target,
        step=step,
        report=report,
        topics=[],
    )


@router.post("/overrides")
async def submit_override(context: AuthenticatedContext, fields: VerifiedForm) -> HTMLResponse:
    """Create or change an override, and show the result."""
    report = await actions.apply_override(context, _parse_override(fields))
    return render_page(context, "override_applied.html", report=report, topics=[])


@router.post("/overrides/{name}/end")
async def end_override(context: AuthenticatedContext, name: str, fields: VerifiedForm) -> RedirectResponse:
    """End an override."""
    await actions.end_override(context, name)
    return RedirectResponse(f"/overrides{context.namespace_query}", _SEE_OTHER)


async def _observe_target(context: RequestContext, override_request: OverrideInput) -> OverrideContext:
    """Return the target of an override as the caches have it."""
    fleet, now = context.app.fleet, context.app.now()
    if override_request.kind is OverrideKind.COMPUTE_POOL:
        pool = await context.read_object(fleet.pools, override_request.key)
        return OverrideContext(None, pool, await context.list_overrides(), now)
    inference = await context.read_object(fleet.inferences, override_request.key)
    return OverrideContext(inference, find_pool(context.app, inference), await context.list_overrides(), now)


def _parse_override(fields: Mapping[str, str]) -> OverrideInput:
    body = {name: value.strip() for name, value in fields.items() if value.strip() and name in _FIELDS}
    if body.get("action") == "hold":
        body.pop("replicas", None)
    if body.get("kind") == OverrideKind.COMPUTE_POOL.value:
        body.pop("namespace", None)
    try:
        return OverrideInput.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
        raise PermanentError(message) from error
