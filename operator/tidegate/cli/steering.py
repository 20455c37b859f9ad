"""Find the object that `tidegate hold`, `override` and `resume` name, and write or delete its overrides."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.cli.connection import connected
from tidegate.cli.options import Where
from tidegate.cli.targets import EITHER, find
from tidegate.kube.kinds import INFERENCE, Kind
from tidegate.operations import overrides
from tidegate.reports.standing import OverrideAction
from tidegate.reports.steered import SteeringReport, Wanted


async def steer(text: str, where: Where, wanted: Wanted) -> SteeringReport:
    """Make an override, or change the one that this command made before.

    Raises TidegateError or ValueError with the way out.
    """
    allowed_kinds = EITHER if wanted.action is OverrideAction.HOLD else (INFERENCE,)
    async with connected(where) as (client, default_namespace):
        target = await find(client, text, where, default_namespace, among=allowed_kinds)
        return await overrides.steer(client, target.kind, target.key, wanted)


async def resumed(text: str, where: Where) -> SteeringReport:
    """End the hold that `tidegate hold` made. Raises TidegateError with the way out."""
    return await _ended(text, where, EITHER, OverrideAction.HOLD)


async def override_ended(text: str, where: Where) -> SteeringReport:
    """End the override that `tidegate override` made. Raises TidegateError with the way out."""
    return await _ended(text, where, (INFERENCE,), OverrideAction.PIN, OverrideAction.FLOOR)


async def _ended(text: str, where: Where, among: Sequence[Kind], *actions: OverrideAction) -> SteeringReport:
    async with connected(where) as (client, default_namespace):
        target = await find(client, text, where, default_namespace, among=among)
        return await overrides.end(client, target.kind, target.key, *actions)
