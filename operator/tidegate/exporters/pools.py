"""Exports the demand of every pool and the price of its slices as metrics; the dashboard's charts use them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_pool import ComputePool
from tidegate.api.meta import ObjectKey
from tidegate.exporters.solver_inputs import SolverInput, SolverInputs
from tidegate.kube.store import ObjectStore
from tidegate.kube.typed_cache import TypedCache
from tidegate.planning.allocator.value_mix import sum_value_rates
from tidegate.planning.allocator.what_if import InferenceOutcome
from tidegate.reports.plan import InferenceOutcomeReport, TierDemand, sum_demand
from tidegate_dataplane.contract.metrics import MetricCatalog

POOLS: Final = MetricCatalog("tidegate_pool_")
_PRICE = POOLS.add_gauge(
    "slice_price",
    "Utility that one more slice would have added at the newest decision, in value per second.",
    "pool",
)
_NEEDED = POOLS.add_gauge(
    "needed_slices",
    "Slices that would serve the whole demand of the tier's Inferences with spec.scaling and known demand.",
    "pool",
    "tier",
)
_ALLOCATABLE = POOLS.add_gauge(
    "allocatable_slices", "Slices that the allocator can assign to Inferences with spec.scaling.", "pool"
)
_DEMAND = POOLS.add_gauge(
    "demand_requests_per_second",
    "Demand for the tier's Inferences with spec.scaling, in requests per second; not for tier offline, whose demand is in slices.",
    "pool",
    "tier",
)
_SERVABLE = POOLS.add_gauge(
    "servable_requests_per_second",
    "Demand that the existing replicas can serve within the SLO, in requests per second; not for tier offline.",
    "pool",
    "tier",
)
_VALUE = POOLS.add_gauge(
    "value_per_second",
    "Value per second of the requests that clients sent to the pool's Inferences, as in tidegate_allocator_value_per_second.",
    "pool",
    "outcome",
)
_UNKNOWN = POOLS.add_gauge("demand_unknown", "Inferences with unknown demand.", "pool", "tier")


class PoolMetrics(Collector):
    """Reads the caches on each scrape. Only the leader exports, or each pool would count once per replica."""

    def __init__(
        self,
        pools: ObjectStore,
        decisions: ObjectStore,
        inputs: SolverInputs,
        leading: Callable[[], bool],
    ) -> None:
        """Create the collector; `inputs` has the allocator's latest inputs, which include the demand."""
        self._pools = TypedCache(ComputePool, pools)
        self._decisions = TypedCache(AllocationDecision, decisions)
        self._inputs = inputs
        self._leading = leading
        self._demand: dict[ObjectKey, tuple[SolverInput, tuple[TierDemand, ...]]] = {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the prices of the newest decisions, then the demand that the allocator solved for last."""
        pools = self._pools.list_all() if self._leading() else ()
        yield self._collect_prices(pools)
        yield from self._collect_demand(pools)

    def _collect_prices(self, pools: Sequence[ComputePool]) -> GaugeMetricFamily:
        price = _PRICE.make_family()
        for pool in pools:
            newest = self._decisions.get(ObjectKey("", pool.status.last_decision or ""))
            if newest is not None:
                price.add_metric((pool.metadata.name,), newest.spec.price)
        return price

    def _collect_demand(self, pools: Sequence[ComputePool]) -> Iterator[GaugeMetricFamily]:
        needed_slices, allocatable, unknown = (
            _NEEDED.make_family(),
            _ALLOCATABLE.make_family(),
            _UNKNOWN.make_family(),
        )
        demand, servable, value = _DEMAND.make_family(), _SERVABLE.make_family(), _VALUE.make_family()
        for pool, solver_input in self._list_solved(pools):
            name = pool.metadata.name
            allocatable.add_metric((name,), solver_input.snapshot.pools[0].slices)
            if solver_input.values:
                total = sum_value_rates(solver_input.values.values())
                for outcome, amount in total.by_outcome.items():
                    value.add_metric((name, outcome), amount)
            for tier_demand in self._compute_demand(pool, solver_input):
                labels = name, tier_demand.tier.value
                needed_slices.add_metric(labels, tier_demand.needed_slices)
                unknown.add_metric(labels, tier_demand.unknown)
                if tier_demand.tier.traits.counts_requests:
                    demand.add_metric(labels, tier_demand.demand)
                    servable.add_metric(labels, tier_demand.serves)
        yield from (needed_slices, allocatable, demand, servable, value, unknown)

    def _list_solved(self, pools: Sequence[ComputePool]) -> Iterator[tuple[ComputePool, SolverInput]]:
        """Yield the pools that the allocator decides about, each with its latest input."""
        for dropped in self._demand.keys() - self._inputs.solved_pools():
            del self._demand[dropped]
        for pool in pools:
            solver_input = self._inputs.get(pool.key)
            if solver_input is not None:
                yield pool, solver_input

    def _compute_demand(self, pool: ComputePool, solver_input: SolverInput) -> tuple[TierDemand, ...]:
        """Return a pool's demand by tier, computed once per solver input: there may be a thousand Inferences."""
        computed = self._demand.get(pool.key)
        if computed is None or computed[0] is not solver_input:
            reports = [
                InferenceOutcomeReport.from_outcome(
                    InferenceOutcome(model, model.current_replicas, model.current_replicas)
                )
                for model in solver_input.snapshot.inferences
            ]
            computed = self._demand[pool.key] = solver_input, sum_demand(reports, pool)
        return computed[1]
