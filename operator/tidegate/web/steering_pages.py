"""The pages that change something: overrides and releases, each shown before it is done."""

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
from tidegate.web.visitor import LIST_OVERRIDES, Known, Visitor

_SEE_OTHER: Final = 303

router: Final = APIRouter(include_in_schema=False)


@router.get("/overrides")
async def overrides_page(visitor: Known, request: Request) -> HTMLResponse:
    """All ComputeOverrides, and a form for another."""
    await visitor.must(LIST_OVERRIDES)
    asked = request.query_params
    found = overrides_of(visitor.parts)
    now = visitor.parts.now()
    return shown(
        visitor,
        "overrides.html",
        alive=[OverrideReport.of(each) for each in found if each.ends > now],
        over=[OverrideReport.of(each) for each in found if each.ends <= now],
        target={name: asked.get(name, "") for name in ("kind", "namespace", "name")},
        may_override=await visitor.may(acting.CREATE),
        may_end=await visitor.may(acting.DELETE),
        topics=["computeoverrides"],
    )


@router.post("/overrides/confirm")
async def confirm(visitor: Known, fields: Fields) -> HTMLResponse:
    """Shows what is about to be done, before it is."""
    await visitor.must(acting.CREATE)
    steering = _steering(fields)
    seen = await _seen(visitor, steering)
    step = plan_steering(seen, steering.wanted)
    report = _foreseen(seen, step)
    return shown(visitor, "confirm.html", steering=steering, seen=seen, step=step, report=report, topics=[])


@router.post("/overrides")
async def steer(visitor: Known, fields: Fields) -> HTMLResponse:
    """Makes or changes an override, and shows what came of it."""
    report = await acting.steer(visitor, _steering(fields))
    return shown(visitor, "steered.html", report=report, topics=[])


@router.post("/overrides/{name}/end")
async def end_override(visitor: Known, name: str, fields: Fields) -> RedirectResponse:
    """Ends it."""
    await acting.end_override(visitor, name)
    return RedirectResponse("/overrides", _SEE_OTHER)


@router.post("/modelaccesses/{namespace}/{name}/release")
async def steer_release(visitor: Known, namespace: str, name: str, fields: Fields) -> RedirectResponse:
    """Steers a release."""
    command = fields.get("command", "")
    if command not in {each.value for each in ReleaseCommand}:
        message = f"command: '{command[:40]}' is none of {', '.join(ReleaseCommand)}"
        raise PermanentError(message)
    await acting.steer_release(visitor, ObjectKey(namespace, name), ReleaseCommand(command))
    return RedirectResponse(f"/modelaccesses/{quote(namespace)}/{quote(name)}", _SEE_OTHER)


async def _seen(visitor: Visitor, steering: Steering) -> Steered:
    """The target as the caches have it."""
    fleet, now = visitor.parts.fleet, visitor.parts.now()
    if steering.kind is OverrideKind.COMPUTE_POOL:
        pool = await visitor.read(fleet.pools, steering.key)
        return Steered(None, pool, await visitor.overrides(), now)
    found = await visitor.read(fleet.inferences, steering.key)
    return Steered(found, pool_of(visitor.parts, found), await visitor.overrides(), now)


def _foreseen(seen: Steered, step: Step) -> SteeringReport:
    """What would be told if it were done now."""
    there: Mapping[str, Any] = step.existing.dump() if step.existing is not None else step.body
    spec = {**there["spec"], **step.body["spec"]}
    metadata = {"creationTimestamp": timestamp(seen.now), **there["metadata"]}
    body = {
        **there,
        "metadata": metadata,
        "spec": {name: value for name, value in spec.items() if value is not None},
    }
    return told(seen, step, ComputeOverride.parse(body))


def _steering(fields: Mapping[str, str]) -> Steering:
    given = {name: value.strip() for name, value in fields.items() if value.strip()}
    names = {"kind", "namespace", "name", "action", "replicas", "reason", "lasting"}
    body = {name: value for name, value in given.items() if name in names}
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
