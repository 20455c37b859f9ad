"""Finds the release that `tidegate release` names, and has it looked at or steered."""

from __future__ import annotations

from datetime import timedelta

from tidegate.api.meta import ObjectKey
from tidegate.api.release import ReleaseCommand
from tidegate.cli.connection import connected
from tidegate.cli.options import Where
from tidegate.operations import releases
from tidegate.reports.release import ReleaseReport


async def release_of(text: str, where: Where) -> ReleaseReport:
    """How far it is. Raises TidegateError or ValueError with the way out."""
    async with connected(where) as (client, usual):
        return await releases.release_of(client, _key(text, where, usual))


async def tell(text: str, where: Where, command: ReleaseCommand, patience: timedelta) -> ReleaseReport:
    """Says it, and waits until the controllers have acted on it, at most so long. Raises TidegateError or ValueError."""
    async with connected(where) as (client, usual):
        return await releases.tell(client, _key(text, where, usual), command, patience)


def _key(text: str, where: Where, usual: str) -> ObjectKey:
    key = ObjectKey.parse(text.removeprefix("modelaccess/").removeprefix("access/"))
    return key if key.namespace else ObjectKey(where.namespace or usual, key.name)
