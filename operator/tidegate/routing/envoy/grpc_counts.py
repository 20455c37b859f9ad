"""Counts gRPC answers by their status, which stands behind the body where Envoy's own counters do not look; only where asked for."""

from __future__ import annotations

from typing import Final

from tidegate.routing import protos

NAME: Final = "envoy.filters.http.grpc_stats"
_TYPE: Final = "envoy.extensions.filters.http.grpc_stats.v3.FilterConfig"


def sleeping_filter() -> dict[str, object]:
    """The HTTP filter of the listener: no request passes through it whose virtual host does not wake it up."""
    return {**protos.extension(NAME, _TYPE, {}), "disabled": True}


def for_host() -> dict[str, object]:
    """What a virtual host says about the filter: `cluster.<name>.grpc.success` and `.failure` are counted, on all of its routes."""
    return {NAME: protos.packed("envoy.config.route.v3.FilterConfig", {"config": {}})}
