"""`tidegate controllers`: watches, elects a leader, reconciles."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog
from prometheus_client import CollectorRegistry

from tidegate.api.meta import ObjectKey
from tidegate.errors import TidegateError
from tidegate.exporters.allocator import AllocatorMetrics
from tidegate.exporters.objects import ObjectMetrics
from tidegate.exporters.pools import PoolMetrics
from tidegate.exporters.route_demand import RouteDemandMetrics
from tidegate.exporters.sharing import SharingMetrics
from tidegate.exporters.solver_inputs import SolverInputs
from tidegate.kube import kinds
from tidegate.kube.client import ClientSettings, KubeClient
from tidegate.kube.lease import LeaseClient
from tidegate.kube.occupancy import NodeOccupancy
from tidegate.kube.store import ObjectStore
from tidegate.kube.typed_cache import ViewCache
from tidegate.kube.watch import Reflector
from tidegate.planning.pods import PodView, parse_pod
from tidegate.resources.names import MANAGED_SELECTOR, MAX_REPLICAS_LABEL
from tidegate.routing.route_targets import is_priced
from tidegate.runtime.caches import (
    observe_all,
    report_sync,
    start_watches,
    stores_within,
    wait_until_synced,
)
from tidegate.runtime.clock import Clock, SystemClock
from tidegate.runtime.event_loop import measure_event_loop
from tidegate.runtime.leader import Election, make_candidate_name
from tidegate.runtime.lifecycle import run_until
from tidegate.runtime.own_certificates import AgentCredentials
from tidegate.runtime.probes import Check, Probes, ProbeServer
from tidegate.runtime.process_metrics import ProcessMetrics, show_leader, show_left_out
from tidegate.runtime.session_key import SessionKey
from tidegate.runtime.solver_process import SolverProcess
from tidegate.runtime.spans import export_spans
from tidegate.runtime.workqueue import WorkQueue
from tidegate.settings import ControlPlaneSettings, PodIdentity
from tidegate.telemetry.gateways import GatewayStats, ScrapeTarget
from tidegate.telemetry.prometheus import Prometheus
from tidegate.telemetry.rate_history import PrometheusRateHistory
from tidegate.telemetry.tracing import TraceSpan
from tidegate.triton.agents import AgentClient
from tidegate.triton.node_agents import NodeAgentClient
from tidegate_controllers.allocator.autoscalers import AutoscalerLimits
from tidegate_controllers.allocator.executor import FIELD_MANAGER
from tidegate_controllers.manager import AllocatorDependencies, ControllerManager, ManagerDependencies
from tidegate_controllers.node_agents import NodeAgents
from tidegate_controllers.ownership import Ownership
from tidegate_controllers.proxies import REPORTED_HOST, ProxyReports
from tidegate_controllers.release import ReleaseMeasurer
from tidegate_controllers.sharing import GpuSharing, MpsDaemons
from tidegate_controllers.signals import make_route_index, make_signal_watch
from tidegate_controllers.stores import Stores
from tidegate_controllers.watch import watch_objects
from tidegate_controllers.workloads import KueueWorkloads

_RELIST_S: Final = 600
"""kopf misses objects that were deleted while it did not watch; a regular listing finds them."""
_RETRY_S: Final = 2
_REFUSED_S: Final = 30

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PodCaches:
    """The pods that are asked or watched by address: those of this release, and those of the device plugin."""

    xds: ObjectStore = field(default_factory=lambda: ObjectStore(kinds.POD))
    gateways: ObjectStore = field(default_factory=lambda: ObjectStore(kinds.POD))
    node_agents: ObjectStore = field(default_factory=lambda: ObjectStore(kinds.POD))
    plugin: ObjectStore = field(default_factory=lambda: ObjectStore(kinds.POD))
    _xds_views: ViewCache[PodView] = field(init=False)
    _gateway_views: ViewCache[PodView] = field(init=False)

    def __post_init__(self) -> None:
        """Create the views first: their subscriptions must precede all others."""
        object.__setattr__(self, "_xds_views", ViewCache(self.xds, parse_pod))
        object.__setattr__(self, "_gateway_views", ViewCache(self.gateways, parse_pod))

    def __iter__(self) -> Iterator[ObjectStore]:
        return iter((self.xds, self.gateways, self.node_agents, self.plugin))

    def list_report_addresses(self, port: int) -> tuple[str, ...]:
        """Return the report endpoints of the xDS servers; one that is not ready serves no proxy."""
        return tuple(sorted(f"{view.address}:{port}" for view in _list_ready(self._xds_views)))

    def list_gateways(self, port: int) -> tuple[ScrapeTarget, ...]:
        """Return the gateways that are ready, with the addresses of their metrics."""
        return tuple(
            ScrapeTarget(view.key.name, f"{view.address}:{port}") for view in _list_ready(self._gateway_views)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllersFactory:
    """Creates the parts of the process from its settings, its clients and its caches."""

    settings: ControlPlaneSettings
    pod: PodIdentity
    clock: Clock
    registry: CollectorRegistry
    spans: TraceSpan
    client: KubeClient
    agents: AgentClient
    node_agents: NodeAgents
    solver: SolverProcess
    credentials: AgentCredentials
    stores: Stores
    pods: PodCaches
    autoscalers: ObjectStore
    inputs: SolverInputs

    def create_dependencies(self) -> ManagerDependencies:
        """Create what reconciling needs and outlives a term; call it once, since it subscribes to the caches."""
        settings, stores, pods = self.settings, self.stores, self.pods
        allocator = self._create_allocator_dependencies()
        ownership = Ownership(stores)
        occupancy = NodeOccupancy(stores.pods, ownership.owns_pod)
        ownership.subscribe(occupancy.refresh_pod)
        sharing = GpuSharing(
            agents=self.node_agents,
            daemons=MpsDaemons(pods.plugin, settings.sharing_daemon),
            stores=stores,
            ownership=ownership,
            occupancy=occupancy,
            metrics=SharingMetrics(self.registry),
        )
        return ManagerDependencies(
            cluster=self.client,
            stores=stores,
            agents=self.agents,
            proxies=ProxyReports(lambda: pods.list_report_addresses(settings.report_port)),
            occupancy=occupancy,
            ownership=ownership,
            workloads=KueueWorkloads(self.client, stores.jobs, settings.watch_namespaces),
            measurements=ReleaseMeasurer(
                GatewayStats(lambda: pods.list_gateways(settings.gateway_metrics_port)),
                Prometheus(settings.prometheus_url) if settings.prometheus_url else None,
            ),
            allocator=allocator,
            sharing=sharing if settings.sharing_namespace else None,
            serving=lambda: settings.serving_settings(
                self.credentials.identity.trusted_pem, self.pod.namespace
            ),
            clock=self.clock,
            further_stores=(self.autoscalers, *pods),
            # A process that serves some namespaces has no right to cluster-scoped kinds.
            sees_nodes=not settings.watch_namespaces,
            spans=self.spans,
        )

    def create_election(self, candidate: str) -> Election:
        """Create the election of the leader among the replicas of this release."""
        lease = ObjectKey(self.pod.namespace, f"{self.settings.release}-controllers")
        return Election(LeaseClient(self.client, lease), candidate, clock=self.clock)

    def register_metrics(self, dependencies: ManagerDependencies, is_leading: Callable[[], bool]) -> None:
        """Register the metrics of the caches and of the objects in them."""
        stores = self.stores
        reported = {REPORTED_HOST: dependencies.proxies.left_out}
        show_left_out(self.registry, dependencies.watched_stores, reported)
        show_leader(self.registry, is_leading)
        self.registry.register(ObjectMetrics(stores.custom_stores(), is_leading))
        priced_routes = make_route_index(stores, is_priced)
        self.registry.register(RouteDemandMetrics(priced_routes, is_leading))
        self.registry.register(PoolMetrics(stores.pools, stores.decisions, self.inputs, is_leading))

    def start_watches(self, tasks: asyncio.TaskGroup) -> None:
        """Start the watches that kopf does not run: of children, autoscalers, and pods that are not ours to reconcile."""
        settings, client, pods = self.settings, self.client, self.pods
        served = settings.watch_namespaces
        start_watches(tasks, client, self.stores.owned_stores(), selector=MANAGED_SELECTOR, namespaces=served)
        start_watches(tasks, client, (self.autoscalers,), selector=MAX_REPLICAS_LABEL, namespaces=served)
        components = {"xds": pods.xds, "gateway": pods.gateways}
        if settings.sharing_namespace:
            components["node-agent"] = pods.node_agents
            plugin = Reflector(client, pods.plugin, namespace=settings.sharing_namespace)
            tasks.create_task(plugin.run())
        for component, store in components.items():
            selector = (
                f"app.kubernetes.io/instance={settings.release},app.kubernetes.io/component={component}"
            )
            reflector = Reflector(client, store, namespace=self.pod.namespace, selector=selector)
            tasks.create_task(reflector.run())

    def _create_allocator_dependencies(self) -> AllocatorDependencies:
        settings = self.settings
        cluster = self.client.with_field_manager(FIELD_MANAGER)
        return AllocatorDependencies(
            cluster=cluster,
            solver=self.solver,
            demand=make_signal_watch(
                settings.prometheus_url,
                lambda: self.pods.list_gateways(settings.gateway_metrics_port),
                self.stores,
                self.agents,
                self.clock.now,
            ),
            history=PrometheusRateHistory(settings.prometheus_url) if settings.prometheus_url else None,
            autoscalers=AutoscalerLimits(cluster, self.autoscalers),
            inputs=self.inputs,
            metrics=AllocatorMetrics(self.registry),
        )


async def run_controllers(settings: ControlPlaneSettings, pod: PodIdentity, kubeconfig: Path | None) -> None:
    """Run until the process is told to stop. Raises PermanentError if there are no credentials for the API server."""
    registry, probes, clock = CollectorRegistry(), Probes(), SystemClock()
    process = ProcessMetrics(registry, "controllers")
    client_settings = ClientSettings(field_manager="tidegate-controllers", user_agent="tidegate-controllers")
    stores, pods, inputs = Stores(), PodCaches(), SolverInputs()
    watched = stores_within(stores.custom_stores(), settings.watch_namespaces)
    async with AsyncExitStack() as stack:
        spans = await stack.enter_async_context(export_spans(settings, "controllers", pod, registry))
        client = await stack.enter_async_context(
            await KubeClient.connect(client_settings, kubeconfig=kubeconfig, observer=process.count_write)
        )
        # Before the probes are served: a process that waits for its certificate below is not ready either.
        report_sync(probes, stores)
        server = ProbeServer(probes, registry, inputs.make_routes())
        await stack.enter_async_context(server.serve(host=settings.listen_address, port=settings.probe_port))
        await stack.enter_async_context(measure_event_loop(registry))
        credentials = await AgentCredentials.wait_until_issued(client, settings, pod.namespace, clock)
        tls = credentials.identity.context
        agents = await stack.enter_async_context(AgentClient(tls))
        node_agents = await stack.enter_async_context(NodeAgentClient(tls, port=settings.node_agent_port))
        solver = SolverProcess()
        stack.push_async_callback(solver.close)
        factory = ControllersFactory(
            settings=settings,
            pod=pod,
            clock=clock,
            registry=registry,
            spans=spans,
            client=client,
            agents=agents,
            node_agents=NodeAgents(pods.node_agents, node_agents),
            solver=solver,
            credentials=credentials,
            stores=stores,
            pods=pods,
            autoscalers=ObjectStore(kinds.HORIZONTAL_POD_AUTOSCALER),
            inputs=inputs,
        )
        dependencies = factory.create_dependencies()
        manager = ControllerManager(dependencies, registry, workers=settings.workers)
        candidate = make_candidate_name(pod.name)
        election = factory.create_election(candidate)
        factory.register_metrics(dependencies, lambda: election.is_leading)
        _add_probes(probes, manager, election)

        async def work() -> None:
            async with asyncio.TaskGroup() as tasks:
                factory.start_watches(tasks)
                tasks.create_task(_keep_listing(client, watched, settings.watch_namespaces))
                if settings.sharing_namespace:
                    tasks.create_task(factory.node_agents.run())
                tasks.create_task(dependencies.proxies.run())
                tasks.create_task(dependencies.occupancy.run(client))
                tasks.create_task(dependencies.workloads.run())
                if settings.own_session_key:
                    session = SessionKey.of_release(client, settings.release, pod.namespace, clock)
                    tasks.create_task(session.keep_filled())
                tasks.create_task(credentials.keep_current(lambda: manager.queues.enqueue_pod_owners(stores)))
                # Lead only with whole caches: a partial view of the cluster is a wrong one.
                await wait_until_synced((*stores, pods.xds, pods.gateways))
                await election.run(manager.run_as_leader)

        await run_until(watch_objects(watched, candidate, settings.watch_namespaces), work())


async def _keep_listing(client: KubeClient, stores: Sequence[ObjectStore], namespaces: Sequence[str]) -> None:
    """Relist the kinds that kopf watches into their caches, now and every ten minutes; sooner after a list that failed."""
    while True:
        complete = True
        for store in stores:
            try:
                present, version, listed = await observe_all(client, store, namespaces)
                store.prune_absent(present, version, within=listed or None)
                complete = complete and listed == tuple(namespaces)
            except TidegateError as error:
                log.warning("listing_failed", kind=str(store.kind), error=str(error))
        synced_all = all(store.synced.is_set() for store in stores)
        await asyncio.sleep(_RELIST_S if synced_all and complete else _REFUSED_S if synced_all else _RETRY_S)


def _list_ready(pods: ViewCache[PodView]) -> list[PodView]:
    return [view for view in pods.list_all() if view.ready and view.is_reachable]


def _add_probes(probes: Probes, manager: ControllerManager, election: Election) -> None:
    probes.add_liveness("election", election.check_liveness)
    for queue in manager.queues.list_queues():
        probes.add_liveness(f"queue-{queue.name}", _leader_queue_check(queue, election))


def _leader_queue_check(queue: WorkQueue, election: Election) -> Check:
    """Return a liveness check for a queue; a follower's queue may fill, since only the leader empties it."""
    return lambda: queue.check_liveness() if election.is_leading else None
