"""What is asked of every pool, and what a slice of it is worth, as metrics: the dashboard draws its charts from them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Tier
from tidegate.api.meta import ObjectKey
from tidegate.kube.parsed import Parsed
from tidegate.kube.store import ObjectStore
from tidegate.planning.what_if import Asked
from tidegate.reports.demand import TierDemand, tiers_of
from tidegate.reports.plan import AskedReport
from tidegate_controllers.questions import Question, Questions
from tidegate_dataplane.contract.metrics import Catalog

POOLS: Final = Catalog("tidegate_pool_")
_PRICE = POOLS.gauge(
    "slice_price",
    "What one more slice would have earned at the newest decision, in value per second.",
    "pool",
)
_WANTED = POOLS.gauge(
    "wanted_slices",
    "Slices that would serve all that is asked of the tier's Inferences with spec.scaling, of those whose demand is known.",
    "pool",
    "tier",
)
_SHARED_OUT = POOLS.gauge("shared_out_slices", "Slices that the allocator shares out among them.", "pool")
_DEMAND = POOLS.gauge(
    "demand_requests_per_second",
    "Requests per second that are asked of them; not of tier offline, of which slices are asked.",
    "pool",
    "tier",
)
_SERVABLE = POOLS.gauge(
    "servable_requests_per_second",
    "Those of them that the replicas which are there serve within the SLO.",
    "pool",
    "tier",
)
_UNKNOWN = POOLS.gauge("demand_unknown", "Inferences whose demand nobody knows.", "pool", "tier")


class PoolMetrics(Collector):
    """Reads the caches when Prometheus asks; only the leader answers, or each pool would count once per replica."""

    def __init__(
        self,
        pools: ObjectStore,
        decisions: ObjectStore,
        questions: Questions,
        leading: Callable[[], bool],
    ) -> None:
        """`questions` are those of the allocator, which knows what is asked."""
        self._pools = Parsed(ComputePool, pools)
        self._decisions = Parsed(AllocationDecision, decisions)
        self._questions = questions
        self._leading = leading
        self._demand: dict[ObjectKey, tuple[Question, tuple[TierDemand, ...]]] = {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """First what the newest decisions say, then what the allocator was asked last."""
        pools = self._pools.all() if self._leading() else ()
        yield self._priced(pools)
        yield from self._asked(pools)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing: the names are known without reading the caches."""
        return ()

    def _priced(self, pools: Sequence[ComputePool]) -> GaugeMetricFamily:
        price = _PRICE.family()
        for pool in pools:
            newest = self._decisions.get(ObjectKey("", pool.status.last_decision or ""))
            if newest is not None:
                price.add_metric((pool.metadata.name,), newest.spec.price)
        return price

    def _asked(self, pools: Sequence[ComputePool]) -> Iterator[GaugeMetricFamily]:
        wanted, shared_out, unknown = _WANTED.family(), _SHARED_OUT.family(), _UNKNOWN.family()
        demand, servable = _DEMAND.family(), _SERVABLE.family()
        for pool, question in self._in_question(pools):
            name = pool.metadata.name
            shared_out.add_metric((name,), question.snapshot.pools[0].slices)
            for each in self._demand_of(pool, question):
                labels = name, each.tier.value
                wanted.add_metric(labels, each.wanted)
                unknown.add_metric(labels, each.unknown)
                if each.tier is not Tier.OFFLINE:  # what is asked of it are slices
                    demand.add_metric(labels, each.demand)
                    servable.add_metric(labels, each.serves)
        yield from (wanted, shared_out, demand, servable, unknown)

    def _in_question(self, pools: Sequence[ComputePool]) -> Iterator[tuple[ComputePool, Question]]:
        """Those about which the allocator decides."""
        for gone in self._demand.keys() - self._questions.known():
            del self._demand[gone]
        for pool in pools:
            question = self._questions.get(pool.key)
            if question is not None:
                yield pool, question

    def _demand_of(self, pool: ComputePool, question: Question) -> tuple[TierDemand, ...]:
        """Added up once for each question: there may be a thousand Inferences, and several who scrape."""
        known = self._demand.get(pool.key)
        if known is None or known[0] is not question:
            asked = [
                AskedReport.of(Asked(one, one.current_replicas, one.current_replicas))
                for one in question.snapshot.inferences
            ]
            known = self._demand[pool.key] = question, tiers_of(asked, pool)
        return known[1]
