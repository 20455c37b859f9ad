"""Apply changes for users, with their own identity and after a check of their rights."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tidegate.api.compute_override import OverrideKind
from tidegate.api.compute_pool import ComputePool
from tidegate.api.fields import MAX_REPLICAS
from tidegate.api.inference import Inference
from tidegate.api.meta import DNS_LABEL, ObjectKey
from tidegate.api.release_commands import ReleaseCommand
from tidegate.api.what_if import WhatIf
from tidegate.errors import PermanentError
from tidegate.planning.pools.override_requests import OverrideRequest
from tidegate.reports.overrides import SteeringReport
from tidegate.reports.plan import PlanReport
from tidegate.reports.release import ReleaseReport
from tidegate.services import overrides, releases, what_if
from tidegate.services.what_if import LastSolverInput, NoLeaderError
from tidegate.web.access.rights import Action
from tidegate.web.request_context import LIST_DECISIONS, ObjectNotFoundError, RequestContext
from tidegate.web.simulations import DayComparison, DayRequest

CREATE_OVERRIDE: Final = Action("create", "computeoverrides")
DELETE_OVERRIDE: Final = Action("delete", "computeoverrides")
_RELEASE_TIMEOUT: Final = timedelta(seconds=10)
_PLAN_CACHE_S: Final = 5.0
"""Open pages ask the same question every few seconds."""


class OverrideInput(BaseModel):
    """Request for a ComputeOverride; with neither a pin nor a floor, it holds the target."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")

    kind: OverrideKind = OverrideKind.INFERENCE
    namespace: Annotated[str, Field(pattern=f"^({DNS_LABEL})?$", description="Of an Inference.")] = ""
    name: Annotated[str, Field(pattern=f"^{DNS_LABEL}$")]
    action: Annotated[Literal["hold", "pin", "floor"], Field(description="What the override does.")]
    replicas: Annotated[int | None, Field(ge=0, le=MAX_REPLICAS, description="Of a pin or a floor.")] = None
    reason: Annotated[
        str, Field(min_length=1, max_length=512, description="Why, for other people who see the override.")
    ]
    lasting: Annotated[str, Field(max_length=16, description="How long, from 1m to 168h, like 30m or 2h.")]

    @property
    def key(self) -> ObjectKey:
        """Return the key of the target."""
        return ObjectKey(self.namespace if self.kind is OverrideKind.INFERENCE else "", self.name)

    @property
    def desired_override(self) -> OverrideRequest:
        """Return the override in the form of the service. Raises PermanentError if the number of replicas is missing."""
        if self.action == "hold":
            return OverrideRequest(self.lasting, self.reason)
        if self.replicas is None:
            message = f"replicas: {self.action} needs a number of replicas"
            raise PermanentError(message)
        if self.action == "pin":
            return OverrideRequest(self.lasting, self.reason, pin=self.replicas)
        return OverrideRequest(self.lasting, self.reason, floor=self.replicas)


async def apply_override(context: RequestContext, request: OverrideInput) -> SteeringReport:
    """Create an override, or change the one created for this target before. Raises TidegateError or ValueError."""
    await context.require(CREATE_OVERRIDE)
    return await overrides.apply_override(context.client, request.kind, request.key, request.desired_override)


async def end_override(context: RequestContext, name: str) -> None:
    """Delete an override. Raises ObjectNotFoundError if it does not exist."""
    await context.require(replace(DELETE_OVERRIDE, name=name))
    override = context.app.fleet.overrides.get(ObjectKey("", name))
    if override is None:
        message = f'ComputeOverride "{name}" not found: it may have ended'
        raise ObjectNotFoundError(message)
    await overrides.delete_override(context.client, override)


def release_right(key: ObjectKey) -> Action:
    """Return the right to steer the release of a ModelAccess."""
    return Action("patch", "modelaccesses", key.namespace, key.name)


async def steer_release(context: RequestContext, key: ObjectKey, command: ReleaseCommand) -> ReleaseReport:
    """Send a command to the controllers, and wait up to ten seconds until they have acted on it."""
    await context.require(release_right(key))
    return await releases.send_command(context.client, key, command, _RELEASE_TIMEOUT)


def plan_right(context: RequestContext) -> Action:
    """Return the right to ask the allocator a what-if: to reach the controllers' own port, which shows values of requests."""
    installation = context.app.installation
    if installation.controllers_address:
        return Action("create", "computeoverrides")
    return Action("create", "pods", installation.namespace, subresource="portforward", group="")


async def plan_pool(context: RequestContext, pool: str, question: WhatIf) -> PlanReport:
    """Return what the allocator would decide under the assumptions of `question`. Raises TidegateError."""
    await context.require_get("computepools", ObjectKey("", pool))
    await context.require(plan_right(context))
    key = (pool, question.model_dump_json())
    report = context.app.plans.get(key)
    if report is None:
        # One at a time: with many Inferences, each takes a core for a second or two.
        async with context.app.plan_limit:
            report = context.app.plans.get(key)
            if report is None:
                report = await what_if.plan_what_if(pool, question, await _last_question(context, pool))
                context.app.plans.put(key, report, _PLAN_CACHE_S)
    return report


async def _last_question(context: RequestContext, pool: str) -> LastSolverInput:
    installation = context.app.installation
    if installation.controllers_address:
        return await what_if.fetch_from_address(installation.controllers_address, pool)
    try:
        return await what_if.fetch_from_leader(
            context.client, pool, installation.release, installation.namespace
        )
    except NoLeaderError as error:
        message = (
            f"{error}: the allocator decides nothing until a replica of the controllers is ready and leads"
        )
        raise PermanentError(message) from error


async def simulate_day(
    context: RequestContext, request: DayRequest, *, compare: bool
) -> AsyncGenerator[str | DayComparison]:
    """Yield the progress of a simulation, then its reports. Raises TidegateError."""
    await require_simulation(context, request.pool)
    async with aclosing(context.app.simulations.run_simulation(request, compare=compare)) as steps:
        async for step in steps:
            yield step


async def require_simulation(context: RequestContext, pool: str) -> ComputePool:
    """Return a pool. Raises ForbiddenError for users who may not see its page or ask a what-if, and ObjectNotFoundError."""
    resource = await context.read_object(context.app.fleet.pools, ObjectKey("", pool))
    await context.require(LIST_DECISIONS)
    await context.require(plan_right(context))
    return resource


def is_overridable(inference: Inference) -> bool:
    """Return whether the allocator decides about the Inference, so that an override has an effect."""
    return inference.spec.scaling is not None
