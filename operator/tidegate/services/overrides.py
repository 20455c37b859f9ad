"""Make, change and end ComputeOverrides."""

from __future__ import annotations

from datetime import UTC, datetime

from tidegate.api.compute_override import ComputeOverride, OverrideAction, OverrideKind
from tidegate.api.meta import ObjectKey
from tidegate.errors import ConflictError
from tidegate.kube.client import KubeClient
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import COMPUTE_OVERRIDE
from tidegate.planning.pools.override_requests import (
    OverrideContext,
    OverrideRequest,
    OverrideWrite,
    plan_ending,
    plan_override_write,
    preview_override,
)
from tidegate.reports.overrides import SteeringReport, report_applied, report_ended
from tidegate.services.objects import list_overrides, read_target


async def apply_override(
    client: KubeClient,
    kind: OverrideKind,
    key: ObjectKey,
    request: OverrideRequest,
    *,
    dry_run: bool = False,
) -> SteeringReport:
    """Make an override, or change the one made the same way before; with `dry_run`, report it without a write.

    Raises TidegateError or ValueError with the way out.
    """
    context = await _read_context(client, kind, key)
    step = plan_override_write(context, request)
    if dry_run:
        return report_applied(context, step, preview_override(context, step), dry_run=True)
    return report_applied(context, step, await _write_override(client, step))


async def end_overrides(
    client: KubeClient,
    kind: OverrideKind,
    key: ObjectKey,
    *actions: OverrideAction,
    dry_run: bool = False,
) -> SteeringReport:
    """Delete the overrides that `apply_override` made about the target with these actions; with `dry_run`, only report them.

    Raises TidegateError with the way out.
    """
    context = await _read_context(client, kind, key)
    ended = plan_ending(context, *actions)
    if not dry_run:
        for override in ended:
            await delete_override(client, override)
    return report_ended(context, ended, dry_run=dry_run)


async def _read_context(client: KubeClient, kind: OverrideKind, key: ObjectKey) -> OverrideContext:
    inference, pool = await read_target(client, kind, key)
    return OverrideContext(inference, pool, await list_overrides(client), datetime.now(UTC))


async def _write_override(client: KubeClient, write: OverrideWrite) -> ComputeOverride:
    if write.existing is not None:
        key = ObjectKey("", write.existing.metadata.name)
        stored = await client.merge(COMPUTE_OVERRIDE, key, write.body, Fence.unlimited())
        if stored is None:
            message = f"ComputeOverride {key} was deleted meanwhile: try again"
            raise ConflictError(message)
        return ComputeOverride.parse(stored)
    if write.ended is not None:
        await delete_override(client, write.ended)
    return ComputeOverride.parse(await client.create(COMPUTE_OVERRIDE, write.body))


async def delete_override(client: KubeClient, override: ComputeOverride) -> None:
    """Delete an override, unless another one has its name by now."""
    key = ObjectKey("", override.metadata.name)
    await client.delete(COMPUTE_OVERRIDE, key, uid=override.metadata.uid, fence=Fence.unlimited())
