"""Runs the reconcilers of all kinds for one term of leadership: from a full pass to the last cancelled worker."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from prometheus_client import CollectorRegistry

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.exporters.allocator import AllocatorMetrics
from tidegate.exporters.solver_inputs import SolverInputs
from tidegate.kube.fence import Fence
from tidegate.kube.occupancy import NodeOccupancy
from tidegate.kube.pool_slices_cache import PoolSlicesCache
from tidegate.kube.port import ClusterApi
from tidegate.kube.store import ObjectStore
from tidegate.kube.typed_cache import TypedCache
from tidegate.planning.features.feature_jobs import list_used_features
from tidegate.planning.features.shared_features import list_shared_keys
from tidegate.resources.names import INFERENCE_LABEL
from tidegate.resources.settings import SettingsProvider
from tidegate.runtime.clock import Clock
from tidegate.runtime.queue_metrics import QueueMetrics
from tidegate.runtime.workqueue import HasBegun, QueueSettings, WorkQueue
from tidegate.telemetry.tracing import NO_SPAN, TraceSpan
from tidegate.triton.agents import AgentClient
from tidegate_controllers.allocator.autoscalers import AutoscalerLimits
from tidegate_controllers.allocator.events import AllocationEvents
from tidegate_controllers.allocator.executor import DecisionExecutor
from tidegate_controllers.allocator.forecasts import AllocationForecasts, HistorySource
from tidegate_controllers.allocator.observer import PoolObserver
from tidegate_controllers.allocator.pool_groups import AllocationSolver
from tidegate_controllers.allocator.reconciler import AllocationResults, Allocator
from tidegate_controllers.allocator.solver import DemandSource, PoolSolver
from tidegate_controllers.applier import Applier
from tidegate_controllers.node_capacity import NodeCapacityReader
from tidegate_controllers.object_events import report_crash, report_left_out
from tidegate_controllers.ownership import Ownership
from tidegate_controllers.placements import Placements, PoolSources
from tidegate_controllers.proxies import ProxyReports
from tidegate_controllers.queues import WorkQueues, connect_objects, connect_overrides, connect_pools
from tidegate_controllers.reconcilers.compute_override import ComputeOverrideReconciler
from tidegate_controllers.reconcilers.compute_pool import ComputePoolReconciler
from tidegate_controllers.reconcilers.feature_compute import FeatureComputeReconciler
from tidegate_controllers.reconcilers.inference import InferenceReconciler
from tidegate_controllers.reconcilers.model_access import (
    AccessSources,
    ModelAccessReconciler,
    PipelinePodSettings,
)
from tidegate_controllers.reconcilers.shared_spares import SharedSparesReconciler
from tidegate_controllers.release import ReleaseMeasurer
from tidegate_controllers.serving import ServingObserver
from tidegate_controllers.shared_spares import SharedSpares
from tidegate_controllers.sharing import GpuSharing
from tidegate_controllers.stores import Stores
from tidegate_controllers.typed_caches import FeatureUsersIndex, IndexedAccesses, OverrideIndex, TypedCaches
from tidegate_controllers.workloads import KueueWorkloads

Reconcile = Callable[[ObjectKey], Awaitable[timedelta | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorDependencies:
    """What the allocator needs besides the caches, and what outlives a term; `cluster` writes as FIELD_MANAGER."""

    cluster: ClusterApi
    solver: AllocationSolver
    demand: DemandSource
    history: HistorySource | None
    """None without a Prometheus: what is forecast then begins with the term."""
    autoscalers: AutoscalerLimits
    inputs: SolverInputs
    metrics: AllocatorMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerDependencies:
    """Everything that reconciling needs and that outlives a term."""

    cluster: ClusterApi
    stores: Stores
    agents: AgentClient
    proxies: ProxyReports
    occupancy: NodeOccupancy
    ownership: Ownership
    workloads: KueueWorkloads
    measurements: ReleaseMeasurer
    allocator: AllocatorDependencies
    sharing: GpuSharing | None
    """None if no node agents run."""
    serving: SettingsProvider
    clock: Clock
    further_stores: tuple[ObjectStore, ...] = ()
    """Caches that only one of the parts above reads: of autoscalers, and of pods that are not ours to reconcile."""
    sees_nodes: bool = True
    """Whether the process may list the cluster's nodes, to report where resources are free."""
    spans: TraceSpan = NO_SPAN
    """The root of the process's spans."""

    @property
    def watched_stores(self) -> tuple[ObjectStore, ...]:
        """Return every cache of the process, for the reports of left-out objects."""
        return (*self.stores, *self.occupancy.own_stores, self.workloads.store, *self.further_stores)


@dataclass(slots=True)
class _Reconcilers:
    """The reconcilers of the current term."""

    inference: InferenceReconciler
    features: FeatureComputeReconciler
    access: ModelAccessReconciler
    pool: ComputePoolReconciler
    spares: SharedSparesReconciler
    allocator: Allocator
    override: ComputeOverrideReconciler


@dataclass(slots=True)
class _ActiveReconcilers:
    reconcilers: _Reconcilers | None = field(default=None)

    def get(self) -> _Reconcilers:
        if self.reconcilers is None:
            message = "a queue ran outside of a term"
            raise RuntimeError(message)
        return self.reconcilers


class ControllerManager:
    """Leads one term after another; the queues and their connections to the caches are made once."""

    def __init__(self, parts: ManagerDependencies, registry: CollectorRegistry, *, workers: int) -> None:
        self._parts = parts
        self._current = _ActiveReconcilers()
        metrics = QueueMetrics(registry)

        def queue(
            name: str,
            store: ObjectStore,
            reconcile: Reconcile,
            workers: int = workers,
            begun: HasBegun = lambda _: True,
        ) -> WorkQueue:
            settings = QueueSettings(workers=workers)
            return WorkQueue(
                name,
                reconcile,
                clock=parts.clock,
                metrics=metrics,
                settings=settings,
                spans=parts.spans,
                begun=begun,
                report_crash=partial(report_crash, parts.cluster, store, name),
            )

        stores = parts.stores
        self.queues = WorkQueues(
            inferences=queue(
                "inference",
                stores.inferences,
                lambda key: self._current.get().inference.reconcile(key),
                begun=lambda key: stores.has_workload(INFERENCE_LABEL, key),
            ),
            features=queue(
                "feature-compute", stores.features, lambda key: self._current.get().features.reconcile(key)
            ),
            accesses=queue(
                "model-access", stores.accesses, lambda key: self._current.get().access.reconcile(key)
            ),
            pools=queue("compute-pool", stores.pools, lambda key: self._current.get().pool.reconcile(key)),
            spares=queue(
                "shared-spares",
                stores.pools,
                lambda key: self._current.get().spares.reconcile_spares(key),
                1,
            ),
            # The solver takes one input at a time.
            allocators=queue(
                "allocator", stores.pools, lambda key: self._current.get().allocator.reconcile(key), 1
            ),
            overrides=queue(
                "compute-override",
                stores.overrides,
                lambda key: self._current.get().override.reconcile(key),
                1,
            ),
        )
        inferences = TypedCache(Inference, parts.stores.inferences)
        features = TypedCache(FeatureCompute, parts.stores.features)
        self._caches = TypedCaches(
            inferences,
            features,
            IndexedAccesses(parts.stores.accesses),
            FeatureUsersIndex(inferences, list_used_features),
            FeatureUsersIndex(features, list_shared_keys),
        )
        self._pools = TypedCache(ComputePool, parts.stores.pools, strict=True)
        connect_objects(parts.stores, self._caches, self.queues, parts.proxies)
        self._views = PoolSlicesCache(self._pools, parts.occupancy)
        self._placements = Placements(
            PoolSources(self._pools, self._views, parts.occupancy, parts.ownership),
            self._caches.inferences,
            parts.stores,
        )
        self._placements.subscribe(self.queues.inferences.add)
        self._spares = SharedSpares(parts.stores, parts.ownership, self._placements)
        self._spares.subscribe_pools(self.queues.spares.add)
        self._spares.subscribe_statuses(self.queues.pools.add)
        parts.workloads.subscribe(self.queues.inferences.add)
        connect_pools(parts.stores, self.queues, parts.occupancy, parts.sharing)
        self._overrides = OverrideIndex(TypedCache(ComputeOverride, parts.stores.overrides, strict=True))
        connect_overrides(parts.stores, self._overrides, self.queues)
        self._decisions = TypedCache(AllocationDecision, parts.stores.decisions)
        self._allocations = AllocationResults(self.queues.pools.add)

    async def run_as_leader(self, fence: Fence) -> None:
        """Reconcile everything once, then whatever changes, until cancelled at the end of the term."""
        parts = self._parts
        # What an earlier term of this process knew may have changed under another leader.
        self._allocations.clear()
        self._spares.forget_plans()
        if parts.sharing is not None:
            parts.sharing.clear()
        reconcilers = self._current.reconcilers = self._create_reconcilers(fence)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(reconcilers.allocator.solver.forecasts.read_histories())
                for queue, keys in self.queues.list_sources(parts.stores).items():
                    queue.clear()
                    for key in keys():
                        queue.add(key)
                    tasks.create_task(queue.run())
                    tasks.create_task(queue.resync_keys(keys))
                tasks.create_task(report_left_out(parts.cluster, parts.watched_stores, parts.clock))
        finally:
            self._current.reconcilers = None
            parts.allocator.inputs.clear()
            parts.allocator.metrics.clear()

    def _create_reconcilers(self, fence: Fence) -> _Reconcilers:
        parts = self._parts
        applier = Applier(parts.cluster, parts.stores, fence)
        room = NodeCapacityReader(parts.cluster if parts.sees_nodes else None, parts.clock)
        observer = ServingObserver(parts.stores, parts.agents, room)
        return _Reconcilers(
            inference=InferenceReconciler(
                applier=applier,
                agents=parts.agents,
                observer=observer,
                placements=self._placements,
                overrides=self._overrides,
                workloads=parts.workloads,
                features=self._caches.features,
                settings=parts.serving,
                clock=parts.clock,
            ),
            features=FeatureComputeReconciler(
                applier=applier,
                observer=observer,
                proxies=parts.proxies,
                features=self._caches.features,
                settings=parts.serving,
                clock=parts.clock,
            ),
            access=ModelAccessReconciler(
                applier=applier,
                caches=self._caches,
                sources=AccessSources(parts.proxies, parts.measurements),
                pods=PipelinePodSettings(observer, parts.serving),
                clock=parts.clock,
            ),
            pool=ComputePoolReconciler(
                applier=applier,
                views=self._views,
                occupancy=parts.occupancy,
                overrides=self._overrides,
                allocations=self._allocations,
                spares=self._spares,
                sharing=parts.sharing,
                clock=parts.clock,
            ),
            spares=SharedSparesReconciler(
                applier=applier,
                agents=parts.agents,
                pools=self._pools,
                inferences=self._caches.inferences,
                spares=self._spares,
                settings=parts.serving,
                clock=parts.clock,
            ),
            allocator=self._create_allocator(fence),
            override=ComputeOverrideReconciler(applier, self._caches.inferences, parts.clock),
        )

    def _create_allocator(self, fence: Fence) -> Allocator:
        clock, parts = self._parts.clock, self._parts.allocator
        observer = PoolObserver(
            pools=self._pools,
            inferences=self._caches.inferences,
            decisions=self._decisions,
            slices_cache=self._views,
            occupancy=self._parts.occupancy,
            placements=self._placements,
            spares=self._spares,
            overrides=self._overrides,
            clock=clock,
        )
        return Allocator(
            observer=observer,
            solver=PoolSolver(
                solver=parts.solver,
                demand=parts.demand,
                forecasts=AllocationForecasts(parts.history, clock),
                events=AllocationEvents(parts.history, clock),
                inputs=parts.inputs,
                metrics=parts.metrics,
                clock=clock,
            ),
            executor=DecisionExecutor(
                cluster=parts.cluster, observer=observer, fence=fence, metrics=parts.metrics
            ),
            autoscalers=parts.autoscalers,
            results=self._allocations,
            metrics=parts.metrics,
            fence=fence,
            clock=clock,
        )
