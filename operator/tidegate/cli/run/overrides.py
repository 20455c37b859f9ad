"""Find the object that `tidegate hold`, `override` and `resume` name, and write or delete its overrides."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.cli.connection import open_client
from tidegate.cli.options import KubeOptions
from tidegate.cli.run.targets import TARGET_KINDS, find_target
from tidegate.kube.kinds import INFERENCE, Kind
from tidegate.reports.overrides import OverrideRequest, SteeringReport
from tidegate.reports.shared import OverrideAction
from tidegate.services import overrides


async def apply_override(text: str, options: KubeOptions, request: OverrideRequest) -> SteeringReport:
    """Make an override, or change the one that this command made before.

    Raises TidegateError or ValueError with the way out.
    """
    allowed_kinds = TARGET_KINDS if request.action is OverrideAction.HOLD else (INFERENCE,)
    async with open_client(options) as (client, default_namespace):
        target = await find_target(client, text, options, default_namespace, allowed_kinds=allowed_kinds)
        return await overrides.apply_override(client, target.kind, target.key, request)


async def end_hold(text: str, options: KubeOptions) -> SteeringReport:
    """End the hold that `tidegate hold` made. Raises TidegateError with the way out."""
    return await _end_overrides(text, options, TARGET_KINDS, OverrideAction.HOLD)


async def end_override(text: str, options: KubeOptions) -> SteeringReport:
    """End the override that `tidegate override` made. Raises TidegateError with the way out."""
    return await _end_overrides(text, options, (INFERENCE,), OverrideAction.PIN, OverrideAction.FLOOR)


async def _end_overrides(
    text: str, options: KubeOptions, allowed_kinds: Sequence[Kind], *actions: OverrideAction
) -> SteeringReport:
    async with open_client(options) as (client, default_namespace):
        target = await find_target(client, text, options, default_namespace, allowed_kinds=allowed_kinds)
        return await overrides.end_overrides(client, target.kind, target.key, *actions)
