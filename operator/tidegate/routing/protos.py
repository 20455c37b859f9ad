"""The only module that uses Envoy's generated protobuf classes, which have no types.

All other modules write a message as nested mappings in the .proto's own field names: `{"name": "a", "connect_timeout": seconds(1)}`.
The protobuf constructor takes these as they are (8 µs for a cluster), rejects unknown fields, and reads enums by name.
Wrapper types (UInt32Value …) are written `{"value": 3}`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from typing import Any, Final, cast

from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.message import Message

from tidegate.routing import wire

TYPE_URL_PREFIX: Final = "type.googleapis.com/"

# A message can be built, or shown inside an Any, only once its module is imported.
_MODULES: Final = (
    "envoy.config.accesslog.v3.accesslog_pb2",
    "envoy.config.bootstrap.v3.bootstrap_pb2",
    "envoy.config.cluster.v3.cluster_pb2",
    "envoy.config.endpoint.v3.endpoint_pb2",
    "envoy.config.listener.v3.listener_pb2",
    "envoy.config.route.v3.route_pb2",
    "envoy.config.route.v3.scoped_route_pb2",
    "envoy.config.trace.v3.opentelemetry_pb2",
    "envoy.extensions.access_loggers.stream.v3.stream_pb2",
    "envoy.extensions.access_loggers.filters.cel.v3.cel_pb2",
    "envoy.extensions.access_loggers.stats.v3.stats_pb2",
    "envoy.extensions.common.matching.v3.extension_matcher_pb2",
    "envoy.extensions.filters.common.matcher.action.v3.skip_action_pb2",
    "envoy.extensions.filters.http.admission_control.v3.admission_control_pb2",
    "envoy.extensions.filters.http.api_key_auth.v3.api_key_auth_pb2",
    "envoy.extensions.filters.http.composite.v3.composite_pb2",
    "envoy.extensions.filters.http.grpc_stats.v3.config_pb2",
    "envoy.extensions.filters.http.header_mutation.v3.header_mutation_pb2",
    "envoy.extensions.filters.http.jwt_authn.v3.config_pb2",
    "envoy.extensions.filters.http.local_ratelimit.v3.local_rate_limit_pb2",
    "envoy.extensions.filters.http.rbac.v3.rbac_pb2",
    "envoy.extensions.filters.http.router.v3.router_pb2",
    "envoy.extensions.filters.http.set_filter_state.v3.set_filter_state_pb2",
    "envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2",
    "envoy.extensions.http.early_header_mutation.header_mutation.v3.header_mutation_pb2",
    "envoy.extensions.rbac.principals.mtls_authenticated.v3.mtls_authenticated_pb2",
    "envoy.extensions.resource_monitors.downstream_connections.v3.downstream_connections_pb2",
    "envoy.extensions.resource_monitors.fixed_heap.v3.fixed_heap_pb2",
    "envoy.extensions.retry.host.previous_hosts.v3.previous_hosts_pb2",
    "envoy.extensions.tracers.opentelemetry.samplers.v3.parent_based_sampler_pb2",
    "envoy.extensions.tracers.opentelemetry.samplers.v3.trace_id_ratio_based_sampler_pb2",
    "envoy.extensions.transport_sockets.tls.v3.secret_pb2",
    "envoy.extensions.transport_sockets.tls.v3.tls_pb2",
    "envoy.extensions.upstreams.http.v3.http_protocol_options_pb2",
    "envoy.service.discovery.v3.discovery_pb2",
    "envoy.service.runtime.v3.rtds_pb2",
    "envoy.type.matcher.v3.http_inputs_pb2",
)

_annotations: Final[Any] = importlib.import_module("udpa.annotations.sensitive_pb2")

Fields = Mapping[str, object]


@cache
def message_type(name: str) -> type[Message]:
    """Return the class of a message, such as envoy.config.cluster.v3.Cluster.

    Raises KeyError when none of the modules above defines it.
    """
    for module in _MODULES:
        importlib.import_module(module)
    return message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(name))


def build_message(name: str, fields: Fields) -> Message:
    """Build the message `name`, to be shared as a field of many others; callers must not change it.

    Raises ValueError or TypeError for a field that the message does not have or that has another type.
    """
    constructor = cast(Any, message_type(name))
    return cast(Message, constructor(**fields))


def encode(name: str, fields: Fields) -> bytes:
    """Serialise the message `name`: equal fields give equal bytes, in every process.

    Raises ValueError or TypeError as `build_message` does.
    """
    return build_message(name, fields).SerializeToString(deterministic=True)


def decode(name: str, data: bytes) -> Any:
    """Parse the message `name` from `data`. Raises google.protobuf.message.DecodeError."""
    decoded = message_type(name)()
    decoded.ParseFromString(data)
    return decoded


def pack_any(name: str, fields: Fields) -> dict[str, object]:
    """Pack a message into an Any, as a field of another message."""
    return {"type_url": TYPE_URL_PREFIX + name, "value": encode(name, fields)}


def extension_config(extension_name: str, message: str, fields: Fields | None = None) -> dict[str, object]:
    """Build Envoy's TypedExtensionConfig, or a message of the same form: a name and a typed_config."""
    return {"name": extension_name, "typed_config": pack_any(message, fields or {})}


def to_redacted_json(any_bytes: bytes) -> dict[str, object]:
    """Return a serialised Any as JSON, as Envoy's configuration dump shows it, with credentials redacted."""
    decoded = decode("google.protobuf.Any", any_bytes)
    plain = json_format.MessageToDict(decoded, preserving_proto_field_name=True)
    return cast("dict[str, object]", _redact_value(plain, None))


def _redact_value(value: Any, kind: Any) -> Any:
    """Redact the sensitive fields of `value`, a message of type `kind` in JSON; None: its `@type` names the type."""
    if isinstance(value, list):
        return [_redact_value(item, kind) for item in value]  # pyright: ignore[reportUnknownVariableType]  JSON
    if not isinstance(value, dict):
        return value
    parts = cast("dict[str, Any]", value)
    if "@type" in parts:
        kind = message_type(str(parts["@type"]).removeprefix(TYPE_URL_PREFIX)).DESCRIPTOR
    fields = {} if kind is None else kind.fields_by_name
    return {name: _redact_field(part, fields.get(name)) for name, part in parts.items()}


def _redact_field(value: Any, field: Any) -> Any:
    if field is None:
        return _redact_value(value, None)
    if field.GetOptions().Extensions[_annotations.sensitive]:
        return "[redacted]"
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        entry = kind.fields_by_name["value"]
        return {key: _redact_field(part, entry) for key, part in value.items()}
    return _redact_value(value, kind)


def encode_any(name: str, *serialised: bytes) -> bytes:
    """Wrap the serialised message `name` in an Any; the message may come in pieces."""
    return wire.encode_any(TYPE_URL_PREFIX + name, *serialised)


def duration(length: timedelta) -> dict[str, int]:
    """Build a google.protobuf.Duration."""
    microseconds = length // timedelta(microseconds=1)
    return {"seconds": microseconds // 1_000_000, "nanos": microseconds % 1_000_000 * 1_000}


def seconds(count: float) -> dict[str, int]:
    """Build a google.protobuf.Duration of `count` seconds."""
    return duration(timedelta(seconds=count))


def wrap_value(value: float | bool | str) -> dict[str, object]:
    """Build one of protobuf's wrapper types."""
    return {"value": value}


ADS_CONFIG: Final[Fields] = {"ads": {}, "resource_api_version": "V3"}
