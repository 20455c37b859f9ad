"""Builds the sources of the allocator's signals: Prometheus or the gateways, and the pods of streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.kube.parsed import Parsed
from tidegate.kube.store import ObjectStore, key_of
from tidegate.kube.views import Views
from tidegate.planning.pods import PodView
from tidegate.planning.traffic import Shares, shares_of
from tidegate.resources.names import INFERENCE_LABEL, label_value
from tidegate.telemetry.gateway_traffic import GatewayTraffic
from tidegate.telemetry.gateways import Gateway
from tidegate.telemetry.prometheus_traffic import Owners, PrometheusTraffic
from tidegate.telemetry.signals import SignalSource, SignalWatch, TieredWatch
from tidegate.telemetry.stream_traffic import Reports, StreamTraffic
from tidegate_controllers.stores import Stores


def signal_watch(
    prometheus_url: str,
    gateways: Callable[[], Sequence[Gateway]],
    stores: Stores,
    agents: Reports,
    now: Callable[[], datetime],
) -> TieredWatch:
    """Return the signals of all Inferences, read on request."""
    parsed = Parsed(ModelAccess, stores.accesses)

    def shares() -> Shares:
        return shares_of(parsed.all())

    source: SignalSource = GatewayTraffic(gateways, shares)
    if prometheus_url:
        source = PrometheusTraffic(prometheus_url, gateways, shares, lambda: owners_of(stores.pods))
    streams = StreamTraffic(lambda: pods_of_streams(stores.inferences, stores.pod_views), agents)
    return TieredWatch(SignalWatch(source, now), SignalWatch(streams, now))


def pods_of_streams(inferences: ObjectStore, pods: Views[PodView]) -> Mapping[ObjectKey, Sequence[PodView]]:
    """Return the pods of every Inference that consumes a stream."""
    keys = (key_of(body) for body in inferences if (body.get("spec") or {}).get("nearline"))
    return {
        key: pods.by_label(INFERENCE_LABEL, label_value(key.name), namespace=key.namespace) for key in keys
    }


def owners_of(pods: Iterable[Mapping[str, Any]]) -> Owners:
    """Return the Inference of each pod; its name is a DNS label, and therefore equals the label's value."""
    return {
        ObjectKey(body["metadata"]["namespace"], body["metadata"]["name"]): ObjectKey(
            body["metadata"]["namespace"], name
        )
        for body in pods
        if (name := (body["metadata"].get("labels") or {}).get(INFERENCE_LABEL))
    }
