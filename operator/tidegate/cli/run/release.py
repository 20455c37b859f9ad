"""Find the release that `tidegate release` names; read it or send it a command."""

from __future__ import annotations

from datetime import timedelta

from tidegate.api.meta import ObjectKey
from tidegate.api.release import ReleaseCommand
from tidegate.cli.connection import open_client
from tidegate.cli.options import KubeOptions
from tidegate.reports.release import ReleaseReport
from tidegate.services import releases


async def read_release(text: str, options: KubeOptions) -> ReleaseReport:
    """Return the state of the release. Raises TidegateError or ValueError with the way out."""
    async with open_client(options) as (client, default_namespace):
        return await releases.read_release(client, _parse_key(text, options, default_namespace))


async def send_command(
    text: str, options: KubeOptions, command: ReleaseCommand, max_wait: timedelta
) -> ReleaseReport:
    """Send the command and wait up to `max_wait` until the controllers act on it.

    Raises TidegateError or ValueError.
    """
    async with open_client(options) as (client, default_namespace):
        return await releases.send_command(
            client, _parse_key(text, options, default_namespace), command, max_wait
        )


def _parse_key(text: str, options: KubeOptions, default_namespace: str) -> ObjectKey:
    key = ObjectKey.parse(text.removeprefix("modelaccess/").removeprefix("access/"))
    return key if key.namespace else ObjectKey(options.namespace or default_namespace, key.name)
