"""Admission by price: the share of each route's requests that gateways admit, as a layer of Envoy's runtime (RTDS, ADR 71).

A priced route has entries in Envoy for the admitted share of the requests, for each cheaper answer, and for the others, which
are refused.
The shares are not in the routes, so a new share changes no route; without the layer each route admits everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidegate.routing import protos
from tidegate.routing.envoy_names import SHARES_LAYER
from tidegate.routing.ir import InferenceProtocol

TYPE: Final = "envoy.service.runtime.v3.Runtime"

REFUSED_BODY: Final = (
    "the target has no capacity for requests of this value now (protection.admissionControl)\n"
)

_ROUTE_MATCH: Final = "envoy.config.route.v3.RouteMatch"
_ROUTE: Final = "envoy.config.route.v3.Route"
_KEY_PREFIX: Final = "tidegate.admitted."
_DENOMINATOR: Final = 1_000_000
_GRPC_RESOURCE_EXHAUSTED: Final = "8"


def encode_match_fraction(route: str) -> bytes:
    """Serialise the part of a RouteMatch that matches the admitted share of `route` (`access/<namespace>/<name>/<route>`)."""
    everything = {"numerator": 100, "denominator": "HUNDRED"}
    fraction = {"runtime_key": _KEY_PREFIX + route, "default_value": everything}
    return protos.encode(_ROUTE_MATCH, {"runtime_fraction": fraction})


def encode_refusal(protocol: InferenceProtocol) -> bytes:
    """Serialise the answer to requests that are not admitted: 503, and RESOURCE_EXHAUSTED for gRPC."""
    status = {
        "header": {"key": "grpc-status", "value": _GRPC_RESOURCE_EXHAUSTED},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }
    answer = {"status": 503, "body": {"inline_string": REFUSED_BODY}}
    headers = [status] if protocol is InferenceProtocol.GRPC else []
    return protos.encode(_ROUTE, {"direct_response": answer, "response_headers_to_add": headers})


def encode_layer(shares: Mapping[str, float]) -> bytes:
    """Serialise the layer as an Any. `shares`: by route, the admitted share, from 0 to 1; other routes admit everything.

    Raises ValueError for a share outside of that.
    """
    for route, share in shares.items():
        if not 0 <= share <= 1:
            message = f"{route}: the admitted share is {share}; it must be from 0 to 1"
            raise ValueError(message)
    layer = {
        _KEY_PREFIX + route: {"numerator": round(share * _DENOMINATOR), "denominator": "MILLION"}
        for route, share in sorted(shares.items())
    }
    return protos.encode_any(TYPE, protos.encode(TYPE, {"name": SHARES_LAYER, "layer": layer}))
