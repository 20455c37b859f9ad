"""Resolution of host names from tenants, with a check of the addresses; for the clients of every scheme."""

import asyncio
import socket

from tidegate_dataplane.addresses import explain_refusal
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import FailureReason

Address = tuple[socket.AddressFamily, int, str]
"""Family, protocol and address."""


def resolve_addresses(
    host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC, *, allow_loopback: bool
) -> tuple[Address, ...]:
    """Return all addresses of `host`, for connections without a second lookup; blocks.

    Raises:
        ArtefactError: UriNotAllowed if one of the addresses is refused.
        OSError: the name does not resolve.
    """
    results = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
    addresses = tuple((kind, protocol, str(address[0])) for kind, _, protocol, _, address in results)
    for _, _, address in addresses:
        refused = explain_refusal(address, allow_loopback=allow_loopback)
        if refused:
            subject = f"{host} is" if host == address else f"host {host!r} resolves to {address},"
            raise ArtefactError(
                FailureReason.URI_NOT_ALLOWED, f"{subject} {refused}: connections to it are not allowed"
            )
    return addresses


async def checked_addresses(
    host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC, *, allow_loopback: bool
) -> tuple[Address, ...]:
    """Resolve and check the addresses of `host` in a worker thread."""
    return await asyncio.to_thread(resolve_addresses, host, port, family, allow_loopback=allow_loopback)
