"""Runs the reconcilers of all kinds for one term of leadership: from a full pass to the last cancelled worker."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta

from prometheus_client import CollectorRegistry

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.kube.fence import Fence
from tidegate.kube.occupancy import Occupancy
from tidegate.kube.parsed import Parsed
from tidegate.kube.pool_views import PoolViews
from tidegate.kube.port import Cluster
from tidegate.resources.names import INFERENCE_LABEL
from tidegate.resources.settings import Serving
from tidegate.runtime.clock import Clock
from tidegate.runtime.queue_metrics import QueueMetrics
from tidegate.runtime.workqueue import HasBegun, QueueSettings, WorkQueue
from tidegate.telemetry.tracing import NOTHING, Span
from tidegate.triton.agents import AgentClient
from tidegate_controllers.accesses import Accesses
from tidegate_controllers.allocations import Allocations
from tidegate_controllers.allocator import Allocator, AllocatorParts, Pools
from tidegate_controllers.carry_out import Writer
from tidegate_controllers.compute_override import ComputeOverrideReconciler
from tidegate_controllers.compute_pool import ComputePoolReconciler
from tidegate_controllers.feature_compute import FeatureComputeReconciler
from tidegate_controllers.inference import InferenceReconciler
from tidegate_controllers.known import Known
from tidegate_controllers.left_out import tell_of_left_out
from tidegate_controllers.model_access import ModelAccessReconciler, PodSettings, Sources
from tidegate_controllers.overrides import Overrides
from tidegate_controllers.ownership import Ownership
from tidegate_controllers.placements import Placements, PoolParts
from tidegate_controllers.proxies import Proxies
from tidegate_controllers.queues import Queues, connect, connect_overrides, connect_pools
from tidegate_controllers.release import Measurements
from tidegate_controllers.room import Room
from tidegate_controllers.serving import Observer
from tidegate_controllers.sharing import Sharing
from tidegate_controllers.stores import Stores
from tidegate_controllers.workloads import Workloads

Reconcile = Callable[[ObjectKey], Awaitable[timedelta | None]]


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that reconciling needs and that outlives a term."""

    cluster: Cluster
    stores: Stores
    agents: AgentClient
    proxies: Proxies
    occupancy: Occupancy
    ownership: Ownership
    workloads: Workloads
    measurements: Measurements
    allocator: AllocatorParts
    sharing: Sharing | None
    """None if no node agents run."""
    serving: Serving
    gateway: str
    """The gateways' `host:port` inside the cluster."""
    clock: Clock
    sees_nodes: bool = True
    """Whether the process may list the cluster's nodes, to report where resources are free."""
    spans: Span = NOTHING
    """The root of the process's spans."""


@dataclass(slots=True)
class _Reconcilers:
    """The reconcilers of the current term."""

    inference: InferenceReconciler
    features: FeatureComputeReconciler
    access: ModelAccessReconciler
    pool: ComputePoolReconciler
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


class Terms:
    """Leads one term after another; the queues and their connections to the caches are made once."""

    def __init__(self, parts: Parts, registry: CollectorRegistry, *, workers: int) -> None:
        self._parts = parts
        self._current = _ActiveReconcilers()
        metrics = QueueMetrics(registry)

        def queue(
            name: str, reconcile: Reconcile, workers: int = workers, begun: HasBegun = lambda _: True
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
            )

        self.queues = Queues(
            inferences=queue(
                "inference",
                lambda key: self._current.get().inference.reconcile(key),
                begun=lambda key: parts.stores.has_pods_to_be(INFERENCE_LABEL, key),
            ),
            features=queue("feature-compute", lambda key: self._current.get().features.reconcile(key)),
            accesses=queue("model-access", lambda key: self._current.get().access.reconcile(key)),
            pools=queue("compute-pool", lambda key: self._current.get().pool.reconcile(key)),
            # The solver takes one input at a time.
            allocators=queue("allocator", lambda key: self._current.get().allocator.reconcile(key), 1),
            overrides=queue("compute-override", lambda key: self._current.get().override.reconcile(key), 1),
        )
        self._caches = Known(
            Parsed(Inference, parts.stores.inferences),
            Parsed(FeatureCompute, parts.stores.features),
            Accesses(parts.stores.accesses),
        )
        self._pools = Parsed(ComputePool, parts.stores.pools, strictly=True)
        connect(parts.stores, self._caches.accesses, self.queues, parts.proxies)
        self._views = PoolViews(self._pools, parts.occupancy)
        self._placements = Placements(
            PoolParts(self._pools, self._views, parts.occupancy, parts.ownership),
            self._caches.inferences,
            parts.stores,
        )
        self._placements.subscribe(self.queues.inferences.add)
        parts.workloads.subscribe(self.queues.inferences.add)
        connect_pools(parts.stores, self.queues, parts.occupancy, parts.sharing)
        self._overrides = Overrides(Parsed(ComputeOverride, parts.stores.overrides, strictly=True))
        connect_overrides(parts.stores, self._overrides, self.queues)
        self._decisions = Parsed(AllocationDecision, parts.stores.decisions)
        self._allocations = Allocations(self.queues.pools.add)

    async def lead(self, fence: Fence) -> None:
        """Reconcile everything once, then whatever changes, until cancelled at the end of the term."""
        parts = self._parts
        applier = Writer(parts.cluster, parts.stores, fence)
        room = Room(parts.cluster if parts.sees_nodes else None, parts.clock)
        observer = Observer(parts.stores, parts.agents, room)
        self._allocations.clear()
        if parts.sharing is not None:
            parts.sharing.clear()
        self._current.reconcilers = _Reconcilers(
            inference=InferenceReconciler(
                applier,
                parts.agents,
                observer,
                self._placements,
                self._overrides,
                parts.workloads,
                parts.serving,
                parts.clock,
            ),
            features=FeatureComputeReconciler(applier, observer, parts.proxies, parts.serving, parts.clock),
            access=ModelAccessReconciler(
                applier,
                self._caches,
                Sources(parts.proxies, parts.measurements),
                PodSettings(observer, parts.serving, parts.gateway),
                parts.clock,
            ),
            pool=ComputePoolReconciler(
                applier,
                self._views,
                parts.occupancy,
                self._overrides,
                self._allocations,
                parts.sharing,
                parts.clock,
            ),
            allocator=self._allocator(fence),
            override=ComputeOverrideReconciler(applier, self._caches.inferences, parts.clock),
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                for queue, keys in self.queues.sources(parts.stores).items():
                    queue.clear()
                    for key in keys():
                        queue.add(key)
                    tasks.create_task(queue.run())
                    tasks.create_task(queue.resync_keys(keys))
                watched = (*parts.stores, *parts.occupancy.stores)
                tasks.create_task(tell_of_left_out(parts.cluster, watched, parts.clock))
        finally:
            self._current.reconcilers = None
            parts.allocator.questions.clear()
            parts.allocator.metrics.clear()

    def _allocator(self, fence: Fence) -> Allocator:
        parts = self._parts
        pools = Pools(
            self._pools,
            self._caches.inferences,
            self._decisions,
            self._views,
            parts.occupancy,
            self._placements,
            self._overrides,
        )
        return Allocator(parts.allocator, parts.stores, pools, self._allocations, fence, parts.clock)
