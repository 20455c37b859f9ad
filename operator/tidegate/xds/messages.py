"""Discovery requests and responses of both protocols, as plain values and on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate.routing import protos, wire
from tidegate.xds.resources import XdsResource

_SOTW_REQUEST: Final = "envoy.service.discovery.v3.DiscoveryRequest"
_DELTA_REQUEST: Final = "envoy.service.discovery.v3.DeltaDiscoveryRequest"

# Field numbers of DiscoveryResponse and DeltaDiscoveryResponse; version_info is called system_version_info in the latter.
_VERSION_INFO: Final = 1
_RESOURCES: Final = 2
_TYPE_URL: Final = 4
_NONCE: Final = 5
_REMOVED_RESOURCES: Final = 6

# Of the Resource in a DeltaDiscoveryResponse.
_RESOURCE_VERSION: Final = 1
_RESOURCE_BODY: Final = 2
_RESOURCE_NAME: Final = 3
_RESOURCE_TTL: Final = 6
_DURATION: Final = "google.protobuf.Duration"


@dataclass(frozen=True, slots=True)
class DeltaRequest:
    """A gateway's request: the names that it adds to its subscription and removes from it, and its answer to a response.

    `versions`, in the first request of a type, are those of the resources that the gateway has from an earlier stream.
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


@dataclass(frozen=True, slots=True)
class SotwRequest:
    """A gRPC client's request: all names that it subscribes to, and its answer to a response.

    `version`, in the first request of a type, is not empty if the client has resources from an earlier stream.
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
    """What changed of one type, and the names that are deleted; in state of the world instead all clusters or all listeners."""

    type_url: str
    version: str
    nonce: str
    resources: tuple[XdsResource, ...]
    removed: tuple[str, ...] = ()


def decode_delta_request(data: bytes) -> DeltaRequest:
    """Read a request from the wire. Raises google.protobuf.message.DecodeError."""
    message = protos.decode(_DELTA_REQUEST, data)
    return DeltaRequest(
        type_url=message.type_url,
        subscribe=frozenset(message.resource_names_subscribe),
        unsubscribe=frozenset(message.resource_names_unsubscribe),
        versions=dict(message.initial_resource_versions),
        nonce=message.response_nonce,
        error=_nack_reason(message),
        node=message.node.id,
        user_agent=message.node.user_agent_name,
    )


def decode_sotw_request(data: bytes) -> SotwRequest:
    """Read a request from the wire. Raises google.protobuf.message.DecodeError."""
    message = protos.decode(_SOTW_REQUEST, data)
    return SotwRequest(
        type_url=message.type_url,
        names=frozenset(message.resource_names),
        version=message.version_info,
        nonce=message.response_nonce,
        error=_nack_reason(message),
        node=message.node.id,
        user_agent=message.node.user_agent_name,
    )


def _nack_reason(request: Any) -> str | None:
    if not request.HasField("error_detail"):
        return None
    return request.error_detail.message or f"code {request.error_detail.code}"


def encode_delta_response(response: DiscoveryResponse) -> bytes:
    """Join resources that are already serialised: the cost is that of copying them."""
    return b"".join(
        (
            wire.encode_field(_VERSION_INFO, response.version.encode()),
            wire.encode_fields(_RESOURCES, map(_encode_resource, response.resources)),
            wire.encode_field(_TYPE_URL, response.type_url.encode()),
            wire.encode_field(_NONCE, response.nonce.encode()),
            wire.encode_fields(_REMOVED_RESOURCES, (name.encode() for name in response.removed)),
        )
    )


def _encode_resource(resource: XdsResource) -> bytes:
    return b"".join(
        (
            wire.encode_field(_RESOURCE_VERSION, resource.version.encode()),
            wire.encode_field(_RESOURCE_BODY, resource.body),
            wire.encode_field(_RESOURCE_NAME, resource.name.encode()),
            b"" if resource.ttl_s is None else _encode_ttl(resource.ttl_s),
        )
    )


def _encode_ttl(seconds: float) -> bytes:
    return wire.encode_field(_RESOURCE_TTL, protos.encode(_DURATION, protos.seconds(seconds)))


def encode_sotw_response(response: DiscoveryResponse) -> bytes:
    """Join resources that are already serialised: the cost is that of copying them."""
    return b"".join(
        (
            wire.encode_field(_VERSION_INFO, response.version.encode()),
            wire.encode_fields(_RESOURCES, (resource.body for resource in response.resources)),
            wire.encode_field(_TYPE_URL, response.type_url.encode()),
            wire.encode_field(_NONCE, response.nonce.encode()),
        )
    )
