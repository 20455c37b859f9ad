"""Builds the sources of the allocator's signals: Prometheus or the gateways, and the pods of streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.kube.store import ObjectStore, key_of
from tidegate.kube.typed_cache import TypedCache, ViewCache
from tidegate.planning.access.value_classes import RouteDemands, index_routes, index_shared
from tidegate.planning.pods import PodView
from tidegate.resources.names import INFERENCE_LABEL, to_label_value
from tidegate.telemetry.gateway_traffic import GatewayTraffic
from tidegate.telemetry.gateways import ScrapeTarget
from tidegate.telemetry.prometheus_traffic import Owners, PrometheusTraffic
from tidegate.telemetry.signals import MergedSignalReader, SignalReader, SignalSource
from tidegate.telemetry.stream_traffic import AgentReader, StreamTraffic
from tidegate_controllers.stores import Stores


def make_signal_watch(
    prometheus_url: str,
    gateways: Callable[[], Sequence[ScrapeTarget]],
    stores: Stores,
    agents: AgentReader,
    now: Callable[[], datetime],
) -> MergedSignalReader:
    """Return the signals of all Inferences, read on request."""
    routes = make_route_index(stores)
    source: SignalSource = GatewayTraffic(gateways, routes)
    if prometheus_url:
        source = PrometheusTraffic(prometheus_url, gateways, routes, lambda: find_pod_owners(stores.pods))
    streams = StreamTraffic(lambda: find_stream_pods(stores.inferences, stores.pod_views), agents)
    return MergedSignalReader(SignalReader(source, now), SignalReader(streams, now))


def make_route_index(
    stores: Stores, matches: Callable[[ModelAccess], bool] = lambda _: True
) -> Callable[[], RouteDemands]:
    """Return a function for how the requests of each route are attributed, of the ModelAccesses that match."""
    parsed = TypedCache(ModelAccess, stores.accesses)

    def index_present_routes() -> RouteDemands:
        annotated = (
            (key_of(body), annotations)
            for body in stores.inferences
            if (annotations := body["metadata"].get("annotations"))
        )
        return index_routes(filter(matches, parsed.list_all()), index_shared(annotated))

    return index_present_routes


def find_stream_pods(
    inferences: ObjectStore, pods: ViewCache[PodView]
) -> Mapping[ObjectKey, Sequence[PodView]]:
    """Return the pods of every Inference that consumes a stream."""
    keys = (key_of(body) for body in inferences if (body.get("spec") or {}).get("nearline"))
    return {
        key: pods.by_label(INFERENCE_LABEL, to_label_value(key.name), namespace=key.namespace) for key in keys
    }


def find_pod_owners(pods: Iterable[Mapping[str, Any]]) -> Owners:
    """Return the Inference of each pod; its name is a DNS label, and therefore equals the label's value."""
    return {
        ObjectKey(body["metadata"]["namespace"], body["metadata"]["name"]): ObjectKey(
            body["metadata"]["namespace"], name
        )
        for body in pods
        if (name := (body["metadata"].get("labels") or {}).get(INFERENCE_LABEL))
    }
