"""`tidegate controllers`: watches, elects a leader, reconciles."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import structlog
from prometheus_client import CollectorRegistry

from tidegate.api.meta import ObjectKey
from tidegate.errors import TidegateError
from tidegate.exporters.allocator import AllocatorMetrics
from tidegate.exporters.objects import ObjectMetrics
from tidegate.exporters.pools import PoolMetrics
from tidegate.exporters.sharing import SharingMetrics
from tidegate.exporters.solver_inputs import SolverInputs
from tidegate.kube import kinds
from tidegate.kube.client import ClientSettings, KubeClient
from tidegate.kube.lease import LeaseClient
from tidegate.kube.occupancy import NodeOccupancy
from tidegate.kube.store import ObjectStore
from tidegate.kube.watch import Reflector
from tidegate.planning.pods import parse_pod
from tidegate.resources.names import MANAGED_SELECTOR, MAX_REPLICAS_LABEL
from tidegate.runtime.caches import (
    observe_all,
    report_sync,
    start_watches,
    stores_within,
    wait_until_synced,
)
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.event_loop import measure_event_loop
from tidegate.runtime.leader import Election, make_candidate_name
from tidegate.runtime.lifecycle import run_until
from tidegate.runtime.own_certificates import AgentCredentials
from tidegate.runtime.probes import Check, Probes, ProbeServer
from tidegate.runtime.process_metrics import ProcessMetrics, show_leader, show_left_out
from tidegate.runtime.solver_process import SolverProcess
from tidegate.runtime.spans import export_spans
from tidegate.runtime.workqueue import WorkQueue
from tidegate.settings import ControlPlaneSettings, PodIdentity
from tidegate.telemetry.gateways import GatewayStats, ScrapeTarget
from tidegate.telemetry.prometheus import Prometheus
from tidegate.triton.agents import AgentClient
from tidegate.triton.node_agents import NodeAgentClient
from tidegate_controllers.allocator import FIELD_MANAGER, AllocatorDependencies
from tidegate_controllers.autoscalers import AutoscalerLimits
from tidegate_controllers.manager import ControllerManager, ManagerDependencies
from tidegate_controllers.node_agents import NodeAgents
from tidegate_controllers.ownership import Ownership
from tidegate_controllers.proxies import ProxyReports
from tidegate_controllers.release import ReleaseMeasurer
from tidegate_controllers.sharing import GpuSharing, MpsDaemons
from tidegate_controllers.signals import make_signal_watch
from tidegate_controllers.stores import Stores
from tidegate_controllers.watch import watch_objects
from tidegate_controllers.workloads import KueueWorkloads

_RELIST_S: Final = 600
"""kopf misses objects that were deleted while it did not watch; a regular listing finds them."""
_RETRY_S: Final = 2
_REFUSED_S: Final = 30

log = structlog.get_logger(__name__)


async def run_controllers(settings: ControlPlaneSettings, pod: PodIdentity, kubeconfig: Path | None) -> None:
    """Run until the process is told to stop. Raises PermanentError if there are no credentials for the API server."""
    registry, probes, clock = CollectorRegistry(), Probes(), SystemClock()
    process = ProcessMetrics(registry, "controllers")
    client_settings = ClientSettings(field_manager="tidegate-controllers", user_agent="tidegate-controllers")
    xds_pods, gateway_pods = ObjectStore(kinds.POD), ObjectStore(kinds.POD)
    node_agent_pods, plugin_pods = ObjectStore(kinds.POD), ObjectStore(kinds.POD)
    autoscalers = ObjectStore(kinds.HORIZONTAL_POD_AUTOSCALER)
    stores, questions, served = Stores(), SolverInputs(), settings.watch_namespaces
    watched = stores_within(stores.custom_stores(), served)
    async with AsyncExitStack() as stack:
        spans = await stack.enter_async_context(export_spans(settings, "controllers", pod, registry))
        client = await stack.enter_async_context(
            await KubeClient.connect(client_settings, kubeconfig=kubeconfig, observer=process.count_write)
        )
        # Before the probes are served: a process that waits for its certificate below is not ready either.
        report_sync(probes, stores)
        server = ProbeServer(probes, registry, questions.make_routes())
        await stack.enter_async_context(server.serve(host=settings.listen_address, port=settings.probe_port))
        await stack.enter_async_context(measure_event_loop(registry))
        known_by = await AgentCredentials.wait_until_issued(client, settings, pod.namespace, clock)
        context = known_by.identity.context
        agents = await stack.enter_async_context(AgentClient(context))
        node_agent_client = await stack.enter_async_context(
            NodeAgentClient(context, port=settings.node_agent_port)
        )
        proxies = ProxyReports(lambda: _report_addresses(xds_pods, settings.report_port))
        gateway = f"{settings.release}-gateway.{pod.namespace}.svc:{settings.gateway_port}"
        stats = GatewayStats(lambda: _ready_gateways(gateway_pods, settings.gateway_metrics_port))
        prometheus = Prometheus(settings.prometheus_url) if settings.prometheus_url else None
        measurements = ReleaseMeasurer(stats, prometheus)
        solver = SolverProcess()
        demand = make_signal_watch(
            settings.prometheus_url,
            lambda: _ready_gateways(gateway_pods, settings.gateway_metrics_port),
            stores,
            agents,
            clock.now,
        )
        as_allocator = client.with_field_manager(FIELD_MANAGER)
        allocator = AllocatorDependencies(
            as_allocator,
            solver,
            demand,
            AutoscalerLimits(as_allocator, autoscalers),
            questions,
            AllocatorMetrics(registry),
        )
        ownership = Ownership(stores)
        occupancy = NodeOccupancy(stores.pods, ownership.owns_pod)
        ownership.subscribe(occupancy.refresh_pod)
        show_left_out(registry, (*stores, *occupancy.own_stores))
        workloads = KueueWorkloads(client, stores.jobs, served)
        node_agents = NodeAgents(node_agent_pods, node_agent_client)
        daemons = MpsDaemons(plugin_pods, settings.sharing_daemon)
        metrics = SharingMetrics(registry)
        sharing = GpuSharing(node_agents, daemons, stores, ownership, occupancy, metrics)
        parts = ManagerDependencies(
            client,
            stores,
            agents,
            proxies,
            occupancy,
            ownership,
            workloads,
            measurements,
            allocator,
            sharing if settings.sharing_namespace else None,
            lambda: settings.serving_settings(known_by.identity.trusted_pem),
            gateway,
            clock,
            sees_nodes=not served,
            spans=spans,
        )
        terms = ControllerManager(parts, registry, workers=settings.workers)
        lease = LeaseClient(client, ObjectKey(pod.namespace, f"{settings.release}-controllers"))
        identity = make_candidate_name(pod.name)
        election = Election(lease, identity, clock=clock)
        _add_probes(probes, terms, election)
        show_leader(registry, lambda: election.is_leading)
        registry.register(ObjectMetrics(stores.custom_stores(), lambda: election.is_leading))
        registry.register(PoolMetrics(stores.pools, stores.decisions, questions, lambda: election.is_leading))

        async def work() -> None:
            async with asyncio.TaskGroup() as tasks:
                start_watches(
                    tasks, client, stores.owned_stores(), selector=MANAGED_SELECTOR, namespaces=served
                )
                start_watches(tasks, client, (autoscalers,), selector=MAX_REPLICAS_LABEL, namespaces=served)
                ours = [("xds", xds_pods), ("gateway", gateway_pods)]
                if settings.sharing_namespace:
                    ours.append(("node-agent", node_agent_pods))
                    plugin = Reflector(client, plugin_pods, namespace=settings.sharing_namespace)
                    tasks.create_task(plugin.run())
                    tasks.create_task(node_agents.run())
                for component, pods in ours:
                    selector = f"app.kubernetes.io/instance={settings.release},app.kubernetes.io/component={component}"
                    reflector = Reflector(client, pods, namespace=pod.namespace, selector=selector)
                    tasks.create_task(reflector.run())
                tasks.create_task(_keep_listing(client, watched, served))
                tasks.create_task(proxies.run())
                tasks.create_task(occupancy.run(client))
                tasks.create_task(workloads.run())
                tasks.create_task(known_by.keep_current(lambda: terms.queues.enqueue_pod_owners(stores)))
                await wait_until_synced((*stores, xds_pods, gateway_pods))
                await election.run(terms.run_as_leader)

        try:
            await run_until(watch_objects(watched, identity, served), work())
        finally:
            await solver.close()


async def _keep_listing(client: KubeClient, stores: Sequence[ObjectStore], namespaces: Sequence[str]) -> None:
    """List the caches that kopf feeds, now and every ten minutes; sooner while a listing fails or is refused."""
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


def _report_addresses(pods: ObjectStore, port: int) -> tuple[str, ...]:
    """Return the report endpoints of the xDS servers; one that is not ready serves no proxy."""
    views = (parse_pod(body) for body in pods)
    return tuple(sorted(f"{view.address}:{port}" for view in views if view.ready and view.is_reachable))


def _ready_gateways(pods: ObjectStore, port: int) -> tuple[ScrapeTarget, ...]:
    """Return the gateways that are ready, with the addresses of their metrics."""
    views = (parse_pod(body) for body in pods)
    return tuple(
        ScrapeTarget(view.key.name, f"{view.address}:{port}")
        for view in views
        if view.ready and view.is_reachable
    )


def _add_probes(probes: Probes, terms: ControllerManager, election: Election) -> None:
    probes.add_liveness("election", election.check_liveness)
    for queue in terms.queues.list_queues():
        probes.add_liveness(f"queue-{queue.name}", _leader_queue_check(queue, election))


def _leader_queue_check(queue: WorkQueue, election: Election) -> Check:
    """Return a liveness check for a queue; a follower's queue may fill, since only the leader empties it."""
    return lambda: queue.check_liveness() if election.is_leading else None
