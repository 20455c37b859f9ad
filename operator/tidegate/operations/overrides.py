"""Make, change and end ComputeOverrides."""

from __future__ import annotations

from datetime import UTC, datetime

from tidegate.api.compute_override import ComputeOverride, OverrideKind
from tidegate.api.meta import ObjectKey
from tidegate.errors import ConflictError
from tidegate.kube.client import KubeClient
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import COMPUTE_OVERRIDE
from tidegate.operations.objects import overrides, read_target
from tidegate.reports.standing import OverrideAction
from tidegate.reports.steered import (
    Steered,
    SteeringReport,
    Step,
    Wanted,
    plan_end,
    plan_steering,
    told,
    told_end,
)


async def steer(client: KubeClient, kind: OverrideKind, key: ObjectKey, wanted: Wanted) -> SteeringReport:
    """Make an override, or change the one made the same way before.

    Raises TidegateError or ValueError with the way out.
    """
    context = await _seen(client, kind, key)
    step = plan_steering(context, wanted)
    return told(context, step, await _write(client, step))


async def end(
    client: KubeClient, kind: OverrideKind, key: ObjectKey, *actions: OverrideAction
) -> SteeringReport:
    """Delete the overrides that `steer` made about the target with these actions.

    Raises TidegateError with the way out.
    """
    context = await _seen(client, kind, key)
    ended = plan_end(context, *actions)
    for override in ended:
        await _delete(client, override)
    return told_end(context, ended)


async def _seen(client: KubeClient, kind: OverrideKind, key: ObjectKey) -> Steered:
    inference, pool = await read_target(client, kind, key)
    return Steered(inference, pool, await overrides(client), datetime.now(UTC))


async def _write(client: KubeClient, step: Step) -> ComputeOverride:
    if step.existing is not None:
        key = ObjectKey("", step.existing.metadata.name)
        stored = await client.merge(COMPUTE_OVERRIDE, key, step.body, Fence.unlimited())
        if stored is None:
            message = f"ComputeOverride {key} was deleted meanwhile: try again"
            raise ConflictError(message)
        return ComputeOverride.parse(stored)
    if step.ended is not None:
        await _delete(client, step.ended)
    return ComputeOverride.parse(await client.create(COMPUTE_OVERRIDE, step.body))


async def _delete(client: KubeClient, override: ComputeOverride) -> None:
    key = ObjectKey("", override.metadata.name)
    await client.delete(COMPUTE_OVERRIDE, key, uid=override.metadata.uid, fence=Fence.unlimited())
