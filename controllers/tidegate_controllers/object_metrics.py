"""What every object of our kinds says of itself, as metrics: what an alert on `Ready=False for 10m` is made from."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tidegate.api.conditions import ConditionStatus, ConditionType
from tidegate.kube.kinds import FEATURE_COMPUTE, INFERENCE, Kind
from tidegate.kube.store import ObjectStore

_LABELS: Final = ("kind", "namespace", "name")
_SCALED: Final[frozenset[Kind]] = frozenset({INFERENCE, FEATURE_COMPUTE})


class ObjectMetrics(Collector):
    """Reads the caches when Prometheus asks; only the leader answers, or each object would count once per replica."""

    def __init__(self, stores: Sequence[ObjectStore], leading: Callable[[], bool]) -> None:
        self._stores = stores
        self._leading = leading

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The families of Ready, Stalled, SamplesLogged, Consuming and replicas, in that order."""
        bodies = [(store.kind, body) for store in self._stores for body in store] if self._leading() else []
        yield _conditions(
            "tidegate_object_ready", "1 when the object is Ready, else 0.", ConditionType.READY, bodies
        )
        yield _conditions(
            "tidegate_object_stalled",
            "1 when only a changed spec or another object can help, else 0.",
            ConditionType.STALLED,
            bodies,
        )
        yield _conditions(
            "tidegate_object_samples_logged",
            "1 when the sample log of the object is written, else 0; only where its spec asks for one.",
            ConditionType.SAMPLES_LOGGED,
            bodies,
        )
        yield _conditions(
            "tidegate_object_consuming",
            "1 when the near-line stream of the object is consumed, else 0; only where its spec names one.",
            ConditionType.CONSUMING,
            bodies,
        )
        yield _replicas(bodies)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing: the names are known without reading the caches."""
        return ()


def _conditions(
    name: str, text: str, kind_of: ConditionType, bodies: Sequence[tuple[Kind, Mapping[str, Any]]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=(*_LABELS, "reason"))
    for kind, body in bodies:
        conditions = (body.get("status") or {}).get("conditions") or ()
        found = next((item for item in conditions if item.get("type") == kind_of.value), None)
        if found is not None:
            value = float(found.get("status") == ConditionStatus.TRUE.value)
            family.add_metric((*_labels(kind, body), found.get("reason", "")), value)
    return family


def _replicas(bodies: Sequence[tuple[Kind, Mapping[str, Any]]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "tidegate_object_replicas", "Pods of the object, by state.", labels=(*_LABELS, "state")
    )
    for kind, body in bodies:
        if kind not in _SCALED:
            continue
        status = body.get("status") or {}
        counts = {
            "wanted": _wanted(body["spec"], status),
            "existing": status.get("replicas", 0),
            "ready": status.get("readyReplicas", 0),
            **({"spare": status["spareReplicas"]} if "spareReplicas" in status else {}),
        }
        for state, count in counts.items():
            family.add_metric((*_labels(kind, body), state), count)
    return family


def _wanted(spec: Mapping[str, Any], status: Mapping[str, Any]) -> int:
    """With a range, what the allocator has decided."""
    if "scaling" not in spec:
        return int(spec.get("replicas", 1))
    allocation = status.get("allocation") or {}
    return int(allocation.get("replicas", spec["scaling"]["minReplicas"]))


def _labels(kind: Kind, body: Mapping[str, Any]) -> tuple[str, str, str]:
    metadata = body["metadata"]
    return str(kind), metadata.get("namespace", ""), metadata["name"]
