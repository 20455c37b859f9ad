"""Read what `tidegate status` shows, once or until it is ready."""

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
    """Return the status of an object, or of the fleet; with `patience`, wait until it settles.

    Raises TidegateError or ValueError.
    """
    async with connected(where) as (client, default_namespace):
        if text is None:

            async def read() -> FleetReport | StatusReport:
                return await fleet_of(client, where.namespace, default_namespace)

        else:
            match = await find_object(client, text, where, default_namespace)
            if match.others:
                _say(f"{match.kind} {match.key} is shown; say {' or '.join(match.others)} for the other")

            async def read() -> FleetReport | StatusReport:
                return await status_of(client, match.kind, match.key)

        return await (read() if patience is None else settled(read, patience, _say))


def _say(line: str) -> None:
    typer.echo(f"tidegate: {line}", err=True)
