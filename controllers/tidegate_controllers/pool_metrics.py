"""What every pool's slices are used for and what is asked of it, as metrics: what the dashboard's charts are read back from."""

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
from tidegate.telemetry.pool_series import PoolSeries
from tidegate_controllers.questions import Question, Questions

_BY_POOL: Final = ("pool",)
_BY_TIER: Final = ("pool", "tier")


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
        """First what the pools' status says, then what the allocator was asked last."""
        pools = self._pools.all() if self._leading() else ()
        yield from self._shared_out(pools)
        yield from self._asked(pools)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing: the names are known without reading the caches."""
        return ()

    def _shared_out(self, pools: Sequence[ComputePool]) -> Iterator[GaugeMetricFamily]:
        slices = _family(PoolSeries.SLICES, "Slices that pods of the tier have.", _BY_TIER)
        healthy = _family(PoolSeries.HEALTHY, "Slices on nodes that take pods.", _BY_POOL)
        free = _family(PoolSeries.FREE, "Healthy slices that no pod of the pool has.", _BY_POOL)
        price = _family(
            PoolSeries.PRICE,
            "What one more slice would have earned at the newest decision, in value per second.",
            _BY_POOL,
        )
        for pool in pools:
            name, status = pool.metadata.name, pool.status
            if not status.observed_generation:
                continue  # nobody has looked at it yet: that is not the same as none
            used = {each.name: each.slices for each in status.tiers}
            for tier in Tier:
                slices.add_metric((name, tier.value), used.get(tier.value, 0))
            healthy.add_metric((name,), status.slices.healthy)
            free.add_metric((name,), status.slices.free)
            newest = self._decisions.get(ObjectKey("", status.last_decision or ""))
            if newest is not None:
                price.add_metric((name,), newest.spec.price)
        yield from (slices, healthy, free, price)

    def _asked(self, pools: Sequence[ComputePool]) -> Iterator[GaugeMetricFamily]:
        wanted = _family(
            PoolSeries.WANTED,
            "Slices that would serve all that is asked of the tier's Inferences, of those whose demand is known.",
            _BY_TIER,
        )
        shared_out = _family(PoolSeries.SHARED_OUT, "Slices that the allocator shares out.", _BY_POOL)
        demand = _family(
            PoolSeries.DEMAND, "Requests per second that are asked of the tier's Inferences.", _BY_TIER
        )
        servable = _family(
            PoolSeries.SERVABLE,
            "Those of them that the replicas which are there serve within the SLO.",
            _BY_TIER,
        )
        unknown = _family(PoolSeries.UNKNOWN, "Inferences of the tier whose demand nobody knows.", _BY_TIER)
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
            asked = [AskedReport.of(Asked(one, one.held, one.held)) for one in question.snapshot.inferences]
            known = self._demand[pool.key] = question, tiers_of(asked, pool)
        return known[1]


def _family(series: PoolSeries, text: str, labels: Sequence[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(series.value, text, labels=labels)
