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
from tidegate.web.visitor import LIST_OVERRIDES, ForbiddenError, Known, NotThereError, Visitor

_SEE_OTHER: Final = 303
_BAD_REQUEST: Final = 400
_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_FIELDS: Final = ("kind", "namespace", "name", "action", "replicas", "reason", "lasting")

router: Final = APIRouter(include_in_schema=False)


@router.get("/overrides")
async def overrides_page(visitor: Known, request: Request) -> HTMLResponse:
    """All ComputeOverrides, and a form for another."""
    return await _overrides(visitor, request.query_params)


async def _overrides(
    visitor: Visitor, typed: Mapping[str, str], said: str = "", status: int = 200
) -> HTMLResponse:
    """The page with a form as it was `typed`, and what is wrong with that."""
    if not said:
        await visitor.must(LIST_OVERRIDES)
    found = overrides_of(visitor.parts) if await visitor.may(LIST_OVERRIDES) else ()
    now = visitor.parts.now()
    return shown(
        visitor,
        "overrides.html",
        status,
        said=said,
        typed={name: typed[name] for name in _FIELDS if typed.get(name)},
        alive=[OverrideReport.of(each) for each in found if each.ends > now],
        over=[OverrideReport.of(each) for each in found if each.ends <= now],
        may_override=await visitor.may(acting.CREATE),
        may_end=await visitor.may(acting.DELETE),
        topics=["computeoverrides"],
    )


@router.post("/overrides/confirm")
async def confirm(visitor: Known, fields: Fields) -> HTMLResponse:
    """Shows what is about to be done, before it is."""
    await visitor.must(acting.CREATE)
    try:
        steering = _steering(fields)
        seen = await _seen(visitor, steering)
        step = plan_steering(seen, steering.wanted)
        report = _foreseen(seen, step)
    except ForbiddenError as error:
        return await _overrides(visitor, fields, str(error), _FORBIDDEN)
    except NotThereError as error:
        return await _overrides(visitor, fields, str(error), _NOT_FOUND)
    except PermanentError as error:
        return await _overrides(visitor, fields, str(error), _BAD_REQUEST)
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
    body = {name: value for name, value in given.items() if name in _FIELDS}
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
