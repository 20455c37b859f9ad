"""The xDS server's own metrics, for Prometheus."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry

from tidegate.routing.gateway_secrets import GatewaySecretState
from tidegate.xds.resources import TypeUrl
from tidegate.xds.stream import StreamCounters
from tidegate_dataplane.contract.metrics import MetricCatalog

_LABELS = {
    TypeUrl.CLUSTER: "cluster",
    TypeUrl.ENDPOINT: "endpoint",
    TypeUrl.LISTENER: "listener",
    TypeUrl.SCOPE: "route",
    TypeUrl.SECRET: "secret",
}


XDS: Final = MetricCatalog("tidegate_xds_")
_PROXIES = XDS.add_gauge("connected_proxies", "Gateways with an open stream.")
_CLIENTS = XDS.add_gauge(
    "connected_grpc_clients", "gRPC clients with an open stream, which call the models without a gateway."
)
_PUSHES = XDS.add_counter("pushes_total", "Responses sent to gateways.", "type")
_ACKS = XDS.add_counter("acks_total", "Responses that a gateway accepted.", "type")
_NACKS = XDS.add_counter(
    "nacks_total",
    "Responses that a gateway rejected, and rejects until the configuration changes, because Tidegate rendered it wrongly.",
    "type",
)
_MAKE_TIMEOUTS = XDS.add_counter(
    "gate_deadline_misses_total", "Routes sent although their clusters were not accepted in time."
)
_REFUSED = XDS.add_counter(
    "refused_proxies_total",
    "Streams of proxies whose certificate does not match their node id: the certificates are wrong, or the client "
    "is not a gateway.",
)
_PUSH_SECONDS = XDS.add_histogram(
    "push_seconds",
    "Time from a new snapshot until one gateway has accepted all of it.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
_BUILD_SECONDS = XDS.add_histogram(
    "snapshot_build_seconds",
    "Time to plan and render one snapshot.",
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
)
_BUILT = XDS.add_gauge(
    "snapshot_timestamp_seconds",
    "Time of the newest snapshot, in seconds since 1970; 0 before the first. A snapshot is built only after a change.",
)
_SECRET_USABLE = XDS.add_gauge(
    "gateway_secret_usable",
    "1 if the gateways' TLS port uses the newest content of the Secret, 0 if it uses the last valid content or none.",
    "secret",
    "role",
)
_SECRET_EXPIRES = XDS.add_gauge(
    "gateway_secret_expires_timestamp_seconds",
    "Time at which the content of the Secret that the gateways use expires, in seconds since 1970; 0 if they use none.",
    "secret",
    "role",
)
_CERTIFICATE_EXPIRES = XDS.add_gauge(
    "server_certificate_expires_timestamp_seconds",
    "Time at which the xDS server's certificate expires, in seconds since 1970; 0 without a certificate.",
)

_NOT_UNDERSTOOD = XDS.add_gauge(
    "objects_not_understood",
    "Objects that this version cannot read completely because a newer version wrote them or their CRD: read in_part, as_before or "
    "not_at_all; the last have no routes.",
    "kind",
    "read",
)


_FAILED = XDS.add_gauge(
    "objects_failed",
    "Objects whose last change could not be planned or rendered because of an exception in the xDS server; they keep their "
    "previous routes. The log names them in object_not_routed.",
)


_ADMITTED_SHARE = XDS.add_gauge(
    "admitted_share",
    "Share of the requests of a route that gateways admit, from 0 to 1; of `<route>/reduced`, and of `<route>/reduced/<as>` for one "
    "stage of a funnel, the share that they admit or that gets a cheaper answer. Absent while it is 1.",
    "route",
)


class XdsMetrics:
    """The metrics of the server; `registry` exposes them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.connected_proxies = _PROXIES.register(registry)
        self.connected_clients = _CLIENTS.register(registry)
        self.pushes = _PUSHES.register(registry)
        self.acks = _ACKS.register(registry)
        self.nacks = _NACKS.register(registry)
        self.make_timeouts = _MAKE_TIMEOUTS.register(registry)
        self.refused_proxies = _REFUSED.register(registry)
        self.push_seconds = _PUSH_SECONDS.register(registry)
        self.build_seconds = _BUILD_SECONDS.register(registry)
        self.built = _BUILT.register(registry)
        self.gateway_secret_usable = _SECRET_USABLE.register(registry)
        self.gateway_secret_expires = _SECRET_EXPIRES.register(registry)
        self.certificate_expires = _CERTIFICATE_EXPIRES.register(registry)
        self.not_understood = _NOT_UNDERSTOOD.register(registry)
        self.failed = _FAILED.register(registry)
        self.admitted_share = _ADMITTED_SHARE.register(registry)
        for label in _LABELS.values():
            for counter in (self.pushes, self.acks, self.nacks):
                counter.labels(label)

    def show_gateway_secret(self, secret: GatewaySecretState) -> None:
        """Set the metrics of a Secret of the gateways' TLS port."""
        labels = secret.name, secret.role.value
        self.gateway_secret_usable.labels(*labels).set(secret.problem is None)
        self.gateway_secret_expires.labels(*labels).set(
            secret.expires_at.timestamp() if secret.expires_at else 0
        )

    def add_counts(self, counters: StreamCounters) -> None:
        """Add the counts of a stream since the last call, and reset its counters."""
        for counter, counts in (
            (self.pushes, counters.pushes),
            (self.acks, counters.acks),
            (self.nacks, counters.nacks),
        ):
            for type_url, count in counts.items():
                counter.labels(_LABELS[type_url]).inc(count)
            counts.clear()
        self.make_timeouts.inc(counters.make_timeouts)
        counters.make_timeouts = 0
