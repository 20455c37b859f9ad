"""The pages that change overrides and releases, after a confirmation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import ValidationError

from tidegate.api.compute_override import ComputeOverride, OverrideKind
from tidegate.api.conditions import timestamp
from tidegate.api.meta import ObjectKey
from tidegate.api.release import ReleaseCommand
from tidegate.errors import PermanentError
from tidegate.reports.standing import OverrideReport
from tidegate.reports.steered import Steered, SteeringReport, Step, plan_steering, told
from tidegate.web import acting
from tidegate.web.acting import Steering
from tidegate.web.forms import Fields
from tidegate.web.rendering import shown
from tidegate.web.views.standing import overrides_of, pool_of
from tidegate.web.visitor import LIST_OVERRIDES, ForbiddenError, Known, NotThereError, Visitor

_SEE_OTHER: Final = 303
_BAD_REQUEST: Final = 400
_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_FIELDS: Final = ("kind", "namespace", "name", "action", "replicas", "reason", "lasting")

router: Final = APIRouter(include_in_schema=False)


@router.get("/overrides")
async def overrides_page(context: Known, request: Request) -> HTMLResponse:
    """Show all ComputeOverrides, and a form for a new one."""
    return await _render_overrides(context, request.query_params)


async def _render_overrides(
    context: Visitor, fields: Mapping[str, str], error: str = "", status: int = 200
) -> HTMLResponse:
    """Return the page of overrides, with the `fields` that the user typed and the error in them."""
    if not error:
        await context.must(LIST_OVERRIDES)
    overrides = overrides_of(context.parts) if await context.may(LIST_OVERRIDES) else ()
    now = context.parts.now()
    return shown(
        context,
        "overrides.html",
        status,
        said=error,
        typed={name: fields[name] for name in _FIELDS if fields.get(name)},
        alive=[OverrideReport.of(override) for override in overrides if override.ends > now],
        over=[OverrideReport.of(override) for override in overrides if override.ends <= now],
        may_override=await context.may(acting.CREATE),
        may_end=await context.may(acting.DELETE),
        topics=["computeoverrides"],
    )


@router.post("/overrides/confirm")
async def confirm(context: Known, fields: Fields) -> HTMLResponse:
    """Show what an override will do, and ask for confirmation."""
    await context.must(acting.CREATE)
    try:
        override_request = _parse_override(fields)
        target = await _observe_target(context, override_request)
        step = plan_steering(target, override_request.wanted)
        report = _preview_report(target, step)
    except ForbiddenError as error:
        return await _render_overrides(context, fields, str(error), _FORBIDDEN)
    except NotThereError as error:
        return await _render_overrides(context, fields, str(error), _NOT_FOUND)
    except PermanentError as error:
        return await _render_overrides(context, fields, str(error), _BAD_REQUEST)
    return shown(
        context, "confirm.html", steering=override_request, seen=target, step=step, report=report, topics=[]
    )


@router.post("/overrides")
async def steer(context: Known, fields: Fields) -> HTMLResponse:
    """Create or change an override, and show the result."""
    report = await acting.steer(context, _parse_override(fields))
    return shown(context, "steered.html", report=report, topics=[])


@router.post("/overrides/{name}/end")
async def end_override(context: Known, name: str, fields: Fields) -> RedirectResponse:
    """End an override."""
    await acting.end_override(context, name)
    return RedirectResponse("/overrides", _SEE_OTHER)


@router.post("/modelaccesses/{namespace}/{name}/release")
async def steer_release(context: Known, namespace: str, name: str, fields: Fields) -> RedirectResponse:
    """Send a command to a release."""
    command = fields.get("command", "")
    if command not in {known_command.value for known_command in ReleaseCommand}:
        message = f"command: '{command[:40]}' is not one of {', '.join(ReleaseCommand)}"
        raise PermanentError(message)
    await acting.steer_release(context, ObjectKey(namespace, name), ReleaseCommand(command))
    return RedirectResponse(f"/modelaccesses/{quote(namespace)}/{quote(name)}", _SEE_OTHER)


async def _observe_target(context: Visitor, override_request: Steering) -> Steered:
    """Return the target of an override as the caches have it."""
    fleet, now = context.parts.fleet, context.parts.now()
    if override_request.kind is OverrideKind.COMPUTE_POOL:
        pool = await context.read(fleet.pools, override_request.key)
        return Steered(None, pool, await context.overrides(), now)
    inference = await context.read(fleet.inferences, override_request.key)
    return Steered(inference, pool_of(context.parts, inference), await context.overrides(), now)


def _preview_report(target: Steered, step: Step) -> SteeringReport:
    """Return the report that the override would produce now."""
    base: Mapping[str, Any] = step.existing.dump() if step.existing is not None else step.body
    spec = {**base["spec"], **step.body["spec"]}
    metadata = {"creationTimestamp": timestamp(target.now), **base["metadata"]}
    body = {
        **base,
        "metadata": metadata,
        "spec": {name: value for name, value in spec.items() if value is not None},
    }
    return told(target, step, ComputeOverride.parse(body))


def _parse_override(fields: Mapping[str, str]) -> Steering:
    body = {name: value.strip() for name, value in fields.items() if value.strip() and name in _FIELDS}
    if body.get("action") == "hold":
        body.pop("replicas", None)
    if body.get("kind") == OverrideKind.COMPUTE_POOL.value:
        body.pop("namespace", None)
    try:
        return Steering.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
        raise PermanentError(message) from error
