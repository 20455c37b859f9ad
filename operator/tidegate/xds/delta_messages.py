"""Delta discovery requests as plain values, and discovery responses as delta has them on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate.routing import protos, wire
from tidegate.routing.snapshot import Resource
from tidegate.xds.messages import DiscoveryResponse, reason

_REQUEST: Final = "envoy.service.discovery.v3.DeltaDiscoveryRequest"

# Field numbers of envoy.service.discovery.v3.DeltaDiscoveryResponse, and of the Resource in it.
_SYSTEM_VERSION_INFO: Final = 1
_RESOURCES: Final = 2
_TYPE_URL: Final = 4
_NONCE: Final = 5
_REMOVED_RESOURCES: Final = 6
_RESOURCE_VERSION: Final = 1
_RESOURCE_BODY: Final = 2
_RESOURCE_NAME: Final = 3


@dataclass(frozen=True, slots=True)
class DeltaRequest:
    """What a proxy says: what more it wants and what less, and, with the nonce of a response, what it thinks of that.

    `versions` is in the first request of a type and says what the proxy has from an earlier stream.
    `node` and `user_agent` are empty in all but the first request of a stream. `error` is the reason of a NACK, else None.
    """

    type_url: str
    subscribe: frozenset[str] = frozenset()
    unsubscribe: frozenset[str] = frozenset()
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    nonce: str = ""
    error: str | None = None
    node: str = ""
    user_agent: str = ""


def decode_delta_request(data: bytes) -> DeltaRequest:
    """Reads a request from the wire; raises google.protobuf.message.DecodeError."""
    message = protos.decode(_REQUEST, data)
    return DeltaRequest(
        type_url=message.type_url,
        subscribe=frozenset(message.resource_names_subscribe),
        unsubscribe=frozenset(message.resource_names_unsubscribe),
        versions=dict(message.initial_resource_versions),
        nonce=message.response_nonce,
        error=reason(message),
        node=message.node.id,
        user_agent=message.node.user_agent_name,
    )


def encode_delta_response(response: DiscoveryResponse) -> bytes:
    """Joins resources that are already serialised: the cost is that of copying them."""
    return b"".join(
        (
            wire.field(_SYSTEM_VERSION_INFO, response.version.encode()),
            wire.fields(_RESOURCES, map(_resource, response.resources)),
            wire.field(_TYPE_URL, response.type_url.encode()),
            wire.field(_NONCE, response.nonce.encode()),
            wire.fields(_REMOVED_RESOURCES, (name.encode() for name in response.removed)),
        )
    )


def _resource(resource: Resource) -> bytes:
    return b"".join(
        (
            wire.field(_RESOURCE_VERSION, resource.version.encode()),
            wire.field(_RESOURCE_BODY, resource.body),
            wire.field(_RESOURCE_NAME, resource.name.encode()),
        )
    )
