"""The xDS server's own metrics, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tidegate.routing.gateway_secrets import HeldSecret
from tidegate.routing.snapshot import TypeUrl
from tidegate.xds.steps import Counters

_LABELS = {
    TypeUrl.CLUSTER: "cluster",
    TypeUrl.ENDPOINT: "endpoint",
    TypeUrl.LISTENER: "listener",
    TypeUrl.SCOPE: "route",
    TypeUrl.SECRET: "secret",
}


class XdsMetrics:
    """Every series that the server writes; `registry` decides where they are shown."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.connected_proxies = Gauge(
            "tidegate_xds_connected_proxies", "Proxies with an open stream.", registry=registry
        )
        self.connected_clients = Gauge(
            "tidegate_xds_connected_grpc_clients",
            "gRPC clients with an open stream, which call the models without a gateway.",
            registry=registry,
        )
        self.pushes = Counter(
            "tidegate_xds_pushes", "Responses sent to proxies.", ["type"], registry=registry
        )
        self.acks = Counter(
            "tidegate_xds_acks", "Responses that proxies accepted.", ["type"], registry=registry
        )
        self.nacks = Counter(
            "tidegate_xds_nacks",
            "Responses that proxies refused; each refuses until the configuration changes.",
            ["type"],
            registry=registry,
        )
        self.gate_misses = Counter(
            "tidegate_xds_gate_deadline_misses",
            "Routes sent although the proxy had not accepted their clusters in time.",
            registry=registry,
        )
        self.refused_proxies = Counter(
            "tidegate_xds_refused_proxies",
            "Streams of proxies whose certificate is not for the node id that they gave.",
            registry=registry,
        )
        self.push_seconds = Histogram(
            "tidegate_xds_push_seconds",
            "From a new snapshot to its full acceptance by one proxy.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=registry,
        )
        self.build_seconds = Histogram(
            "tidegate_xds_snapshot_build_seconds",
            "Time to plan and render one snapshot.",
            buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
            registry=registry,
        )
        self.gateway_secret_usable = Gauge(
            "tidegate_xds_gateway_secret_usable",
            "1 when the gateways' TLS port has the newest content of the Secret, 0 when it goes on without.",
            ["secret", "role"],
            registry=registry,
        )
        self.gateway_secret_expires = Gauge(
            "tidegate_xds_gateway_secret_expires_timestamp_seconds",
            "When what the gateways have of the Secret expires; 0 when they have nothing.",
            ["secret", "role"],
            registry=registry,
        )
        for label in _LABELS.values():
            for counter in (self.pushes, self.acks, self.nacks):
                counter.labels(label)

    def show_gateway_secret(self, held: HeldSecret) -> None:
        """How a Secret of the gateways' TLS port stands."""
        labels = held.name, held.role.value
        self.gateway_secret_usable.labels(*labels).set(held.problem is None)
        self.gateway_secret_expires.labels(*labels).set(held.expires.timestamp() if held.expires else 0)

    def take(self, counters: Counters) -> None:
        """Adds what happened on a stream since the last time, and sets its counters back."""
        for counter, counts in (
            (self.pushes, counters.pushes),
            (self.acks, counters.acks),
            (self.nacks, counters.nacks),
        ):
            for type_url, count in counts.items():
                counter.labels(_LABELS[type_url]).inc(count)
            counts.clear()
        self.gate_misses.inc(counters.gate_misses)
        counters.gate_misses = 0
