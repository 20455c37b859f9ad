"""Where the controllers take signals from: Prometheus where there is one, else the gateways themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.kube.parsed import Parsed
from tidegate.kube.store import ObjectStore
from tidegate.planning.traffic import Shares, shares_of
from tidegate.resources.names import INFERENCE_LABEL
from tidegate.telemetry.gateway_traffic import GatewayTraffic
from tidegate.telemetry.gateways import Gateway
from tidegate.telemetry.prometheus_traffic import Owners, PrometheusTraffic
from tidegate.telemetry.signals import SignalSource, SignalWatch


def signal_watch(
    prometheus_url: str,
    gateways: Callable[[], Sequence[Gateway]],
    accesses: ObjectStore,
    pods: ObjectStore,
    now: Callable[[], datetime],
) -> SignalWatch:
    """Signals of all Inferences, from the caches of ModelAccesses and of models' pods; looks when it is told to."""
    parsed = Parsed(ModelAccess, accesses)

    def shares() -> Shares:
        return shares_of(parsed.all())

    source: SignalSource = GatewayTraffic(gateways, shares)
    if prometheus_url:
        source = PrometheusTraffic(prometheus_url, gateways, shares, lambda: owners_of(pods))
    return SignalWatch(source, now)


def owners_of(pods: Iterable[Mapping[str, Any]]) -> Owners:
    """Whose each pod is: the name of an Inference is a DNS label, and so its own label's value."""
    return {
        ObjectKey(body["metadata"]["namespace"], body["metadata"]["name"]): ObjectKey(
            body["metadata"]["namespace"], name
        )
        for body in pods
        if (name := (body["metadata"].get("labels") or {}).get(INFERENCE_LABEL))
    }
