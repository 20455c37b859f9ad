"""Exports the demand of every pool and the price of its slices as metrics; the dashboard's charts use them."""

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
    """Reads the caches on each scrape. Only the leader exports, or each pool would count once per replica."""

    def __init__(
        self,
        pools: ObjectStore,
        decisions: ObjectStore,
        questions: Questions,
        leading: Callable[[], bool],
    ) -> None:
        """Create the collector; `questions` has the allocator's latest inputs, which include the demand."""
        self._pools = Parsed(ComputePool, pools)
        self._decisions = Parsed(AllocationDecision, decisions)
        self._questions = questions
        self._leading = leading
        self._demand: dict[ObjectKey, tuple[Question, tuple[TierDemand, ...]]] = {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the prices of the newest decisions, then the demand that the allocator solved for last."""
        pools = self._pools.all() if self._leading() else ()
        yield self._priced(pools)
        yield from self._asked(pools)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return nothing: the names are known without reading the caches."""
        return ()

    def _priced(self, pools: Sequence[ComputePool]) -> GaugeMetricFamily:
        price = _PRICE.family()
        for pool in pools:
            newest = self._decisions.get(ObjectKey("", pool.status.last_decision or ""))
            if newest is not None:
                price.add_metric((pool.metadata.name,), newest.spec.price)
        return price

    def _asked(self, pools: Sequence[ComputePool]) -> Iterator[GaugeMetricFamily]:
        wanted_slices, shared_out, unknown = _WANTED.family(), _SHARED_OUT.family(), _UNKNOWN.family()
        demand, servable = _DEMAND.family(), _SERVABLE.family()
        for pool, question in self._in_question(pools):
            name = pool.metadata.name
            shared_out.add_metric((name,), question.snapshot.pools[0].slices)
            for tier_demand in self._demand_of(pool, question):
                labels = name, tier_demand.tier.value
                wanted_slices.add_metric(labels, tier_demand.wanted)
                unknown.add_metric(labels, tier_demand.unknown)
                if tier_demand.tier is not Tier.OFFLINE:  # its demand is in slices
                    demand.add_metric(labels, tier_demand.demand)
                    servable.add_metric(labels, tier_demand.serves)
        yield from (wanted_slices, shared_out, demand, servable, unknown)

    def _in_question(self, pools: Sequence[ComputePool]) -> Iterator[tuple[ComputePool, Question]]:
        """Yield the pools that the allocator decides about, each with its latest input."""
        for dropped in self._demand.keys() - self._questions.known():
            del self._demand[dropped]
        for pool in pools:
            question = self._questions.get(pool.key)
            if question is not None:
                yield pool, question

    def _demand_of(self, pool: ComputePool, question: Question) -> tuple[TierDemand, ...]:
        """Return a pool's demand by tier, computed once per solver input: there may be a thousand Inferences."""
        computed = self._demand.get(pool.key)
        if computed is None or computed[0] is not question:
            reports = [
                AskedReport.of(Asked(model, model.current_replicas, model.current_replicas))
                for model in question.snapshot.inferences
            ]
            computed = self._demand[pool.key] = question, tiers_of(reports, pool)
        return computed[1]
