"""Makes and ends ComputeOverrides for `tidegate hold`, `override` and `resume`."""

from __future__ import annotations

from datetime import UTC, datetime

from tidegate.api.compute_override import ComputeOverride, OverrideKind
from tidegate.api.meta import ObjectKey
from tidegate.cli.connection import connected
from tidegate.cli.options import Where
from tidegate.cli.reading import overrides, read_target
from tidegate.cli.reports.standing import OverrideAction
from tidegate.cli.reports.steered import (
    Steered,
    SteeringReport,
    Step,
    Wanted,
    plan_end,
    plan_steering,
    told,
    told_end,
)
from tidegate.cli.targets import find
from tidegate.errors import ConflictError
from tidegate.kube.client import KubeClient
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import COMPUTE_OVERRIDE


async def steer(text: str, where: Where, wanted: Wanted) -> SteeringReport:
    """Makes an override, or changes the one that it made before. Raises TidegateError or ValueError with the way out."""
    only = None if wanted.action is OverrideAction.HOLD else OverrideKind.INFERENCE
    async with connected(where) as (client, usual):
        seen = await _seen(client, text, where, usual, only)
        step = plan_steering(seen, wanted)
        written = await _write(client, step)
    return told(seen, step, written)


async def resumed(text: str, where: Where) -> SteeringReport:
    """Ends the hold that `tidegate hold` made. Raises TidegateError with the way out."""
    return await _ended(text, where, None, OverrideAction.HOLD)


async def override_ended(text: str, where: Where) -> SteeringReport:
    """Ends what `tidegate override` made. Raises TidegateError with the way out."""
    return await _ended(text, where, OverrideKind.INFERENCE, OverrideAction.PIN, OverrideAction.FLOOR)


async def _ended(
    text: str, where: Where, only: OverrideKind | None, *actions: OverrideAction
) -> SteeringReport:
    async with connected(where) as (client, usual):
        seen = await _seen(client, text, where, usual, only)
        ended = plan_end(seen, *actions)
        for each in ended:
            await _delete(client, each)
    return told_end(seen, ended)


async def _seen(
    client: KubeClient, text: str, where: Where, usual: str, only: OverrideKind | None
) -> Steered:
    inference, pool = await read_target(client, await find(client, text, where, usual, only=only))
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
