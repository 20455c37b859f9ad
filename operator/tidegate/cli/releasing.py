"""Find the release that `tidegate release` names; read it or send it a command."""

from __future__ import annotations

from datetime import timedelta

from tidegate.api.meta import ObjectKey
from tidegate.api.release import ReleaseCommand
from tidegate.cli.connection import connected
from tidegate.cli.options import Where
from tidegate.operations import releases
from tidegate.reports.release import ReleaseReport


async def release_of(text: str, where: Where) -> ReleaseReport:
    """Return the state of the release. Raises TidegateError or ValueError with the way out."""
    async with connected(where) as (client, default_namespace):
        return await releases.release_of(client, _key(text, where, default_namespace))


async def tell(text: str, where: Where, command: ReleaseCommand, patience: timedelta) -> ReleaseReport:
    """Send the command and wait up to `patience` until the controllers act on it.

    Raises TidegateError or ValueError.
    """
    async with connected(where) as (client, default_namespace):
        return await releases.tell(client, _key(text, where, default_namespace), command, patience)


def _key(text: str, where: Where, usual: str) -> ObjectKey:
    key = ObjectKey.parse(text.removeprefix("modelaccess/").removeprefix("access/"))
    return key if key.namespace else ObjectKey(where.namespace or usual, key.name)
