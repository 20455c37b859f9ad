"""Read what `tidegate status` shows, once or until it is ready."""

from __future__ import annotations

from datetime import timedelta

import typer

from tidegate.cli.connection import open_client
from tidegate.cli.options import KubeOptions
from tidegate.cli.run.object_names import find_object
from tidegate.cli.run.wait import wait_until_settled
from tidegate.reports.fleet import FleetReport
from tidegate.reports.status import StatusReport
from tidegate.services.fleet import read_fleet
from tidegate.services.status import read_object_status


async def read_status(
    text: str | None, options: KubeOptions, patience: timedelta | None
) -> FleetReport | StatusReport:
    """Return the status of an object, or of the fleet; with `patience`, wait until it settles.

    Raises TidegateError or ValueError.
    """
    async with open_client(options) as (client, default_namespace):
        if text is None:

            async def read() -> FleetReport | StatusReport:
                return await read_fleet(client, options.namespace, default_namespace)

        else:
            match = await find_object(client, text, options, default_namespace)
            if match.alternatives:
                _print_progress(
                    f"{match.kind} {match.key} is shown; say {' or '.join(match.alternatives)} for the other"
                )

            async def read() -> FleetReport | StatusReport:
                return await read_object_status(client, match.kind, match.key)

        return await (read() if patience is None else wait_until_settled(read, patience, _print_progress))


def _print_progress(line: str) -> None:
    typer.echo(f"tidegate: {line}", err=True)
