"""Reads what `tidegate status` is about, once or until it is as it should be."""

from __future__ import annotations

from datetime import timedelta

import typer

from tidegate.cli.connection import connected
from tidegate.cli.naming import find_object
from tidegate.cli.options import Where
from tidegate.cli.waiting import settled
from tidegate.operations.fleet import fleet_of
from tidegate.operations.status import status_of
from tidegate.reports.fleet import FleetReport
from tidegate.reports.status import StatusReport


async def read_status(
    text: str | None, where: Where, patience: timedelta | None
) -> FleetReport | StatusReport:
    """How an object is, or the fleet. Waits for it where there is patience. Raises TidegateError or ValueError."""
    async with connected(where) as (client, usual):
        if text is None:

            async def look() -> FleetReport | StatusReport:
                return await fleet_of(client, where.namespace, usual)

        else:
            found = await find_object(client, text, where, usual)
            if found.others:
                _say(f"{found.kind} {found.key} is shown; say {' or '.join(found.others)} for the other")

            async def look() -> FleetReport | StatusReport:
                return await status_of(client, found.kind, found.key)

        return await (look() if patience is None else settled(look, patience, _say))


def _say(line: str) -> None:
    typer.echo(f"tidegate: {line}", err=True)
