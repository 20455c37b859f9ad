"""Finds what `tidegate hold`, `override` and `resume` name, and has it steered."""

from __future__ import annotations

from tidegate.api.compute_override import OverrideKind
from tidegate.cli.connection import connected
from tidegate.cli.options import Where
from tidegate.cli.targets import find
from tidegate.operations import overrides
from tidegate.reports.standing import OverrideAction
from tidegate.reports.steered import SteeringReport, Wanted


async def steer(text: str, where: Where, wanted: Wanted) -> SteeringReport:
    """Makes an override, or changes the one that it made before. Raises TidegateError or ValueError with the way out."""
    only = None if wanted.action is OverrideAction.HOLD else OverrideKind.INFERENCE
    async with connected(where) as (client, usual):
        target = await find(client, text, where, usual, only=only)
        return await overrides.steer(client, target.kind, target.key, wanted)


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
        target = await find(client, text, where, usual, only=only)
        return await overrides.end(client, target.kind, target.key, *actions)
