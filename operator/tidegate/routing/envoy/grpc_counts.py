"""Counters of gRPC answers by status, for routes of a release only.

The status follows the body, where Envoy's own counters do not read it.
"""

from __future__ import annotations

from typing import Final

from tidegate.routing import protos

NAME: Final = "envoy.filters.http.grpc_stats"
_TYPE: Final = "envoy.extensions.filters.http.grpc_stats.v3.FilterConfig"


def disabled_filter() -> dict[str, object]:
    """Return the HTTP filter of the listener, disabled: only virtual hosts that enable it send requests through it."""
    return {**protos.extension_config(NAME, _TYPE, {}), "disabled": True}


def configure_host() -> dict[str, object]:
    """Return the configuration that counts gRPC answers on all routes of a virtual host.

    The counters are `cluster.<name>.grpc.success` and `.failure`.
    """
    return {NAME: protos.pack_any("envoy.config.route.v3.FilterConfig", {"config": {}})}
