"""Simulate the Prometheus of the fleet: answer the queries that Tidegate sends, and no others.

The controllers' own metrics are real and scraped; everything else is generated.
"""

import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from tidegate_localcluster.fleet_demo.day import DemoClock
from tidegate_localcluster.fleet_demo.kubelet import ReadyPods
from tidegate_localcluster.fleet_demo.pool_metrics import ScrapedPools
from tidegate_localcluster.fleet_demo.workload import NEARLINE, REALTIME, FleetModel

GATEWAY_POD: Final = "tidegate-gateway-simulated"
SLO_S: Final = {REALTIME: 0.05, NEARLINE: 2.0}
RULES: Final = Path("charts/tidegate/files/prometheus-rules.yaml")
"""The chart's recording rules, generated from the controllers' queries."""
SCRAPE_AGE: Final = "time() - max by (instance, pod) (timestamp(envoy_server_uptime))"
GATEWAY_UPTIME: Final = "min by (instance, pod) (envoy_server_uptime)"
CLUSTER_RATES: Final = "sum by (envoy_cluster_name) (rate(envoy_cluster_upstream_rq_total[1m]))"
CLUSTER_P99_MS: Final = (
    "histogram_quantile(0.99, sum by (envoy_cluster_name, le) "
    "(rate(envoy_cluster_upstream_rq_time_bucket[1m])))"
)
_INFERENCE_CHARTS: Final = re.compile(
    r'"\(inference/(?P<namespace>[^|]+)\|release/[^)]+\)/(?P<name>[^(]+)\(.*"series", "offered"'
)
"""A query for the charts of one Inference."""
SCRAPE_EVERY_S: Final = 5.0
RETENTION_S: Final = 3600.0
MAX_VALUES: Final = 500_000
"""Limit of one answer to a range query."""
_WARM_S: Final = 86_400.0
"""The gateways of the simulated day have run since the day before."""


@dataclass(frozen=True, slots=True)
class VectorSample:
    """One value of an instant vector."""

    metric: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class SimulatedLoad:
    """One model at one time: the requests it gets, and its ready replicas."""

    model: FleetModel
    offered_per_s: float
    ready: int

    @property
    def utilisation(self) -> float:
        """Return demand over the capacity of the ready replicas; above 1 it exceeds them."""
        can = self.ready * self.model.capacity_per_s
        return self.offered_per_s / can if can else float("inf")

    @property
    def served_per_s(self) -> float:
        """Return the requests that are answered per second."""
        return min(self.offered_per_s, self.ready * self.model.capacity_per_s)

    @property
    def p99_s(self) -> float:
        """Return the latency: within the SLO while the replicas suffice, and far above it when they do not."""
        share = (
            0.3 + 0.5 * self.utilisation**3
            if self.utilisation <= 1
            else min(1.0 + 4 * (self.utilisation - 1), 10.0)
        )
        return SLO_S[self.model.tier] * share

    @property
    def queue_s(self) -> float:
        """Return the mean time in the queue."""
        return SLO_S[self.model.tier] * 0.2 * min(self.utilisation, 2.0) ** 3


QueryAnswer = Callable[[float], Iterator[VectorSample]]


class SimulatedPrometheus:
    """Answers for the fleet. It has no series and no PromQL: each known query has its own answer."""

    def __init__(
        self,
        models: Sequence[FleetModel],
        namespace: str,
        day: DemoClock,
        pods: ReadyPods,
        rules: Mapping[str, str],
    ) -> None:
        """Take the recorded names and expressions of RULES as `rules`."""
        self._models = tuple(model for model in models if model.tier in SLO_S)
        self._namespace = namespace
        self._day = day
        self._pods = pods
        self._scrapes: list[tuple[float, array[int]]] = []
        self.pools = ScrapedPools()
        answers: Mapping[str, QueryAnswer] = {
            "tidegate:inference_routed:rate1m": self._by_inference(lambda load: load.offered_per_s),
            "tidegate:inference_demand:rate1m": self._by_inference(lambda load: load.offered_per_s),
            "tidegate:inference_offered:rate1m": self._by_inference(lambda load: load.offered_per_s),
            "tidegate:inference_served:rate1m": self._by_inference(lambda load: load.served_per_s),
            "tidegate:inference_latency_seconds:p99_1m": self._by_ready_inference(lambda load: load.p99_s),
            "tidegate:route_unserved:rate1m": _no_samples,
            "tidegate:pod_queue_seconds:mean1m": self._by_pod(lambda load: load.queue_s),
            "tidegate:pod_busy:ratio1m": self._by_pod(lambda load: min(load.utilisation, 1.0)),
        }
        self._answers: dict[str, QueryAnswer] = {
            SCRAPE_AGE: self._by_gateway(lambda _: 1.0),
            GATEWAY_UPTIME: self._by_gateway(self._running_for),
            CLUSTER_RATES: self._by_cluster(lambda load: load.offered_per_s),
            CLUSTER_P99_MS: self._by_cluster(lambda load: load.p99_s * 1000, ready_only=True),
            **answers,
            **{_normalise_query(rules[name]): answer for name, answer in answers.items() if name in rules},
        }

    def record_replicas(self, time_s: float) -> None:
        """Record how many replicas are ready, for queries about the past."""
        counts = (len(self._pods.by_owner.get((self._namespace, model.name), ())) for model in self._models)
        self._scrapes.append((time_s, array("H", counts)))
        while self._scrapes[0][0] < time_s - RETENTION_S:
            self._scrapes.pop(0)

    def knows_query(self, query: str) -> bool:
        """Return whether Tidegate sends this query."""
        return (
            _normalise_query(query) in self._answers
            or self.pools.knows_query(query)
            or _INFERENCE_CHARTS.search(query) is not None
        )

    def query_instant(self, query: str, time_s: float) -> Sequence[VectorSample]:
        """Return the samples at a time; empty for an unknown query."""
        return tuple(self._find_answer(query)(time_s))

    def query_range(
        self, query: str, begin: float, end: float, step: float
    ) -> Sequence[tuple[Mapping[str, str], Sequence[tuple[float, float]]]]:
        """Return values from `begin` on, every `step` seconds, by series; none from before the first scrape."""
        answer = self._find_answer(query)
        series: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
        time_s, values = begin, 0
        while time_s <= end and values < MAX_VALUES:
            if self._scrapes and self._scrapes[0][0] <= time_s:
                for sample in answer(time_s):
                    series.setdefault(tuple(sorted(sample.metric.items())), []).append((time_s, sample.value))
                    values += 1
            time_s += step
        return tuple((dict(metric), tuple(points)) for metric, points in series.items())

    def _find_answer(self, query: str) -> QueryAnswer:
        if self.pools.knows_query(query):
            return lambda time_s: (
                VectorSample(*labelled_value) for labelled_value in self.pools.answer_query(query, time_s)
            )
        charts = _INFERENCE_CHARTS.search(query)
        if charts is not None:
            return self._by_series(charts["namespace"], charts["name"])
        return self._answers.get(_normalise_query(query), _no_samples)

    def _iter_loads(self, time_s: float) -> Iterator[SimulatedLoad]:
        hour = self._day.hours_at(time_s)
        counts = next(
            (counts for scraped_at, counts in reversed(self._scrapes) if scraped_at <= time_s), None
        )
        for number, model in enumerate(self._models):
            yield SimulatedLoad(model, model.demand_per_s(hour), counts[number] if counts is not None else 0)

    def _by_inference(
        self, value: Callable[[SimulatedLoad], float], *, ready_only: bool = False
    ) -> QueryAnswer:
        def answer(time_s: float) -> Iterator[VectorSample]:
            for load in self._iter_loads(time_s):
                if load.ready or not ready_only:
                    metric = {"namespace": self._namespace, "inference": load.model.name}
                    yield VectorSample(metric, value(load))

        return answer

    def _by_ready_inference(self, value: Callable[[SimulatedLoad], float]) -> QueryAnswer:
        return self._by_inference(value, ready_only=True)

    def _by_cluster(
        self, value: Callable[[SimulatedLoad], float], *, ready_only: bool = False
    ) -> QueryAnswer:
        def answer(time_s: float) -> Iterator[VectorSample]:
            for load in self._iter_loads(time_s):
                if load.ready or not ready_only:
                    name = f"inference/{self._namespace}/{load.model.name}/grpc"
                    yield VectorSample({"envoy_cluster_name": name}, value(load))

        return answer

    def _by_series(self, namespace: str, name: str) -> QueryAnswer:
        """Answer with the series of one Inference's charts."""

        def answer_series(time_s: float) -> Iterator[VectorSample]:
            for load in self._iter_loads(time_s):
                if (self._namespace, load.model.name) != (namespace, name):
                    continue
                values = {"offered": load.offered_per_s, "served": load.served_per_s, "ready": load.ready}
                if load.ready:
                    values |= {"p50": 0.4 * load.p99_s, "p99": load.p99_s}
                yield from (VectorSample({"series": series}, value) for series, value in values.items())

        return answer_series

    def _by_pod(self, value: Callable[[SimulatedLoad], float]) -> QueryAnswer:
        """Answer by pods that are ready now, because pods of the past are not recorded."""

        def answer(time_s: float) -> Iterator[VectorSample]:
            for load in self._iter_loads(time_s):
                pod_value = value(load)
                for pod in self._pods.list_names((self._namespace, load.model.name)) if load.ready else ():
                    yield VectorSample({"namespace": self._namespace, "pod": pod}, pod_value)

        return answer

    def _by_gateway(self, value: Callable[[float], float]) -> QueryAnswer:
        def answer(time_s: float) -> Iterator[VectorSample]:
            yield VectorSample({"instance": "simulated", "pod": GATEWAY_POD}, value(time_s))

        return answer

    def _running_for(self, time_s: float) -> float:
        return _WARM_S + self._day.hours_at(time_s) * 3600


def _no_samples(_: float) -> Iterator[VectorSample]:
    return iter(())


def _normalise_query(query: str) -> str:
    """Collapse white space: the rules file has line breaks where the controllers have spaces."""
    return " ".join(query.split())


def read_rules(root: Path) -> Mapping[str, str]:
    """Return expressions by recorded name, from the chart of a source tree."""
    groups = yaml.safe_load((root / RULES).read_text())["groups"]
    return {rule["record"]: rule["expr"] for group in groups for rule in group["rules"]}
