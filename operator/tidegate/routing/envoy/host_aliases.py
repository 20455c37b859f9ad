"""Requests that name a host and no access: two filters that map the host to the access, disabled for all others.

The scope of hosts (envoy/routes.py) enables them. The first writes the name of the route into the header by which scopes are selected.
The second only makes Envoy select the route again, which the first cannot.
"""

from __future__ import annotations

from typing import Final

from tidegate.routing import protos, wire

# The listener writes it too (envoy/listener.py); the scoped routes read it.
TARGET_HEADER: Final = "x-tidegate-target"

_REWRITE: Final = "tidegate.by_host"
_RESELECT: Final = "tidegate.by_host.again"
_HEADER_MUTATION: Final = "envoy.extensions.filters.http.header_mutation.v3.HeaderMutation"
_REWRITE_PER_ROUTE: Final = "envoy.extensions.filters.http.header_mutation.v3.HeaderMutationPerRoute"
_SET_FILTER_STATE: Final = "envoy.extensions.filters.http.set_filter_state.v3.Config"

# Newer than the Python package of Envoy's messages, so written by hand.
_CLEAR_ROUTE_CACHE: Final = 2


def disabled_filters() -> list[dict[str, object]]:
    """Return the disabled filters for the listener; they precede every filter that virtual hosts configure."""
    state = {
        "object_key": "tidegate.by_host",
        "factory_key": "envoy.string",
        "format_string": {"text_format_source": {"inline_string": "1"}},
    }
    again = protos.encode(_SET_FILTER_STATE, {"on_request_headers": [state]})
    again += wire.encode_number(_CLEAR_ROUTE_CACHE, 1)
    typed = {"type_url": protos.TYPE_URL_PREFIX + _SET_FILTER_STATE, "value": again}
    return [
        {**protos.extension_config(_REWRITE, _HEADER_MUTATION), "disabled": True},
        {"name": _RESELECT, "typed_config": typed, "disabled": True},
    ]


def enable_filters() -> dict[str, object]:
    """Return the configuration with which the scope of hosts enables the filters."""
    name = {"key": TARGET_HEADER, "value": "%ROUTE_NAME%"}
    mutation = {"append": {"header": name, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}}
    return {
        _REWRITE: protos.pack_any(_REWRITE_PER_ROUTE, {"mutations": {"request_mutations": [mutation]}}),
        _RESELECT: protos.pack_any("envoy.config.route.v3.FilterConfig", {"config": {}}),
    }
