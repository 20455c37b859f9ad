"""What visitors change: in their own name, after their right to it has been asked for."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tidegate.api.compute_override import OverrideKind
from tidegate.api.fields import MAX_REPLICAS
from tidegate.api.inference import Inference
from tidegate.api.meta import DNS_LABEL, ObjectKey
from tidegate.api.release import ReleaseCommand
from tidegate.api.what_if import WhatIf
from tidegate.errors import PermanentError
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import COMPUTE_OVERRIDE
from tidegate.operations import overrides, releases, what_if
from tidegate.operations.what_if import LastQuestion
from tidegate.reports.plan import PlanReport
from tidegate.reports.release import ReleaseReport
from tidegate.reports.steered import SteeringReport, Wanted
from tidegate.web.access.rights import Action
from tidegate.web.visitor import NotThereError, Visitor

CREATE: Final = Action("create", "computeoverrides")
DELETE: Final = Action("delete", "computeoverrides")
_PATIENCE: Final = timedelta(seconds=10)
_PLAN_GOOD_FOR_S: Final = 5.0
"""Open pages ask the same every few seconds."""


class Steering(BaseModel):
    """An override that somebody wants; with neither pin nor floor it holds."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")

    kind: OverrideKind = OverrideKind.INFERENCE
    namespace: Annotated[str, Field(pattern=f"^({DNS_LABEL})?$", description="Of an Inference.")] = ""
    name: Annotated[str, Field(pattern=f"^{DNS_LABEL}$")]
    action: Annotated[Literal["hold", "pin", "floor"], Field(description="What it does.")]
    replicas: Annotated[int | None, Field(ge=0, le=MAX_REPLICAS, description="Of a pin or a floor.")] = None
    reason: Annotated[str, Field(min_length=1, max_length=512, description="Why, for those who find it.")]
    lasting: Annotated[str, Field(max_length=16, description="How long, from 1m to 168h, like 30m or 2h.")]

    @property
    def key(self) -> ObjectKey:
        """Of the target."""
        return ObjectKey(self.namespace if self.kind is OverrideKind.INFERENCE else "", self.name)

    @property
    def wanted(self) -> Wanted:
        """As operations take it. Raises PermanentError where the number is missing."""
        if self.action == "hold":
            return Wanted(self.lasting, self.reason)
        if self.replicas is None:
            message = f"replicas: how many is it to have? {self.action} needs a number"
            raise PermanentError(message)
        if self.action == "pin":
            return Wanted(self.lasting, self.reason, pin=self.replicas)
        return Wanted(self.lasting, self.reason, floor=self.replicas)


async def steer(visitor: Visitor, steering: Steering) -> SteeringReport:
    """Makes an override, or changes the one that was so made before. Raises TidegateError or ValueError."""
    await visitor.must(CREATE)
    return await overrides.steer(visitor.client, steering.kind, steering.key, steering.wanted)


async def end_override(visitor: Visitor, name: str) -> None:
    """Ends it now. Raises NotThereError where there is none."""
    await visitor.must(replace(DELETE, name=name))
    there = visitor.parts.fleet.overrides.get(ObjectKey("", name))
    if there is None:
        message = f"there is no ComputeOverride {name}: it may have ended"
        raise NotThereError(message)
    await visitor.client.delete(COMPUTE_OVERRIDE, there.key, uid=there.metadata.uid, fence=Fence.unlimited())


def release_right(key: ObjectKey) -> Action:
    """The right to steer a ModelAccess's release."""
    return Action("patch", "modelaccesses", key.namespace, key.name)


async def steer_release(visitor: Visitor, key: ObjectKey, command: ReleaseCommand) -> ReleaseReport:
    """Says it to the controllers, and waits a little until they have acted on it."""
    await visitor.must(release_right(key))
    return await releases.tell(visitor.client, key, command, _PATIENCE)


def plan_right(visitor: Visitor) -> Action:
    """The right to ask the allocator: to reach the controllers' own port, which says what requests are worth."""
    installation = visitor.parts.installation
    if installation.controllers:
        return Action("create", "computeoverrides")
    return Action("create", "pods", installation.namespace, subresource="portforward", group="")


async def plan(visitor: Visitor, pool: str, asked: WhatIf) -> PlanReport:
    """What the allocator would decide if it were so. Raises TidegateError with the way out."""
    await visitor.must_see("computepools", ObjectKey("", pool))
    await visitor.must(plan_right(visitor))
    key = (pool, asked.model_dump_json())
    known = visitor.parts.plans.get(key)
    if known is None:
        # One at a time: each takes a core for a second or two where there are many Inferences.
        async with visitor.parts.solving:
            known = visitor.parts.plans.get(key)
            if known is None:
                known = await what_if.plan_otherwise(pool, asked, await _last_question(visitor, pool))
                visitor.parts.plans.put(key, known, _PLAN_GOOD_FOR_S)
    return known


async def _last_question(visitor: Visitor, pool: str) -> LastQuestion:
    installation = visitor.parts.installation
    if installation.controllers:
        return await what_if.at_address(installation.controllers, pool)
    return await what_if.of_leader(visitor.client, pool, installation.release, installation.namespace)


def overridable(inference: Inference) -> bool:
    """Whether the allocator decides about it, so that an override has something to decide over."""
    return inference.spec.scaling is not None
