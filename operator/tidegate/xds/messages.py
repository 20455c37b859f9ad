"""Discovery requests and responses, as plain values and on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tidegate.routing import protos, wire
from tidegate.routing.snapshot import Resource

_REQUEST: Final = "envoy.service.discovery.v3.DiscoveryRequest"

# Field numbers of envoy.service.discovery.v3.DiscoveryResponse.
_VERSION_INFO: Final = 1
_RESOURCES: Final = 2
_TYPE_URL: Final = 4
_NONCE: Final = 5


@dataclass(frozen=True, slots=True)
class DiscoveryRequest:
    """What a proxy says: which resources it wants, and what it thinks of the last response.

    `node` and `user_agent` are empty in all but the first request of a stream. `error` is the reason of a NACK, else None.
    """

    type_url: str
    names: frozenset[str] = frozenset()
    version: str = ""
    nonce: str = ""
    error: str | None = None
    node: str = ""
    user_agent: str = ""


@dataclass(frozen=True, slots=True)
class DiscoveryResponse:
    """What the server says: all resources of the type (CDS, LDS), or those that changed (EDS, RDS).

    With delta always those that changed, and `removed` names those that are deleted.
    """

    type_url: str
    version: str
    nonce: str
    resources: tuple[Resource, ...]
    removed: tuple[str, ...] = ()


def decode_request(data: bytes) -> DiscoveryRequest:
    """Reads a request from the wire; raises google.protobuf.message.DecodeError."""
    message = protos.decode(_REQUEST, data)
    return DiscoveryRequest(
        type_url=message.type_url,
        names=frozenset(message.resource_names),
        version=message.version_info,
        nonce=message.response_nonce,
        error=reason(message),
        node=message.node.id,
        user_agent=message.node.user_agent_name,
    )


def reason(request: Any) -> str | None:
    """Why a request on the wire refuses what it answers; None when it does not."""
    if not request.HasField("error_detail"):
        return None
    return request.error_detail.message or f"code {request.error_detail.code}"


def encode_response(response: DiscoveryResponse) -> bytes:
    """Joins resources that are already serialised: the cost is that of copying them."""
    return b"".join(
        (
            wire.field(_VERSION_INFO, response.version.encode()),
            wire.fields(_RESOURCES, (resource.body for resource in response.resources)),
            wire.field(_TYPE_URL, response.type_url.encode()),
            wire.field(_NONCE, response.nonce.encode()),
        )
    )
