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
from tidegate.kube import kinds
from tidegate.kube.client import ClientSettings, KubeClient
from tidegate.kube.lease import LeaseClient
from tidegate.kube.occupancy import Occupancy
from tidegate.kube.store import ObjectStore
from tidegate.kube.watch import Reflector
from tidegate.planning.pods import pod_view
from tidegate.processes.caches import observe_all, report_sync, start_watches, stores_within, synced
from tidegate.processes.identity import process_identity
from tidegate.processes.known_by import KnownBy
from tidegate.processes.lifecycle import until
from tidegate.processes.signals import signal_watch
from tidegate.processes.spans import exported_spans
from tidegate.resources.names import MOST_REPLICAS_LABEL, OURS
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.event_loop import measure_event_loop
from tidegate.runtime.leader import Election
from tidegate.runtime.probes import Check, Probes, ProbeServer
from tidegate.runtime.process_metrics import ProcessMetrics, show_leader, show_left_out
from tidegate.runtime.solver_process import SolverProcess
from tidegate.runtime.workqueue import WorkQueue
from tidegate.settings import PodIdentity, Settings
from tidegate.telemetry.gateways import Gateway, GatewayStats
from tidegate.telemetry.prometheus import Prometheus
from tidegate.triton.agents import AgentClient
from tidegate.triton.node_agents import NodeAgentClient
from tidegate_controllers.allocator import FIELD_MANAGER, AllocatorParts
from tidegate_controllers.allocator_metrics import AllocatorMetrics
from tidegate_controllers.autoscalers import Autoscalers
from tidegate_controllers.node_agents import NodeAgents
from tidegate_controllers.object_metrics import ObjectMetrics
from tidegate_controllers.ownership import Ownership
from tidegate_controllers.pool_metrics import PoolMetrics
from tidegate_controllers.proxies import Proxies
from tidegate_controllers.questions import Questions
from tidegate_controllers.release import Measurements
from tidegate_controllers.sharing import MpsDaemons, Sharing
from tidegate_controllers.sharing_metrics import SharingMetrics
from tidegate_controllers.stores import Stores
from tidegate_controllers.term import Parts, Terms
from tidegate_controllers.watch import watch
from tidegate_controllers.workloads import Workloads

_RELIST_S: Final = 600
"""kopf misses objects that were deleted while it did not watch; a regular listing finds them."""
_RETRY_S: Final = 2
_REFUSED_S: Final = 30

log = structlog.get_logger(__name__)


async def run_controllers(settings: Settings, pod: PodIdentity, kubeconfig: Path | None) -> None:
    """Run until the process is told to stop. Raises PermanentError if there are no credentials for the API server."""
    registry, probes, clock = CollectorRegistry(), Probes(), SystemClock()
    process = ProcessMetrics(registry, "controllers")
    client_settings = ClientSettings(field_manager="tidegate-controllers", user_agent="tidegate-controllers")
    xds_pods, gateway_pods = ObjectStore(kinds.POD), ObjectStore(kinds.POD)
    node_agent_pods, plugin_pods = ObjectStore(kinds.POD), ObjectStore(kinds.POD)
    autoscalers = ObjectStore(kinds.HORIZONTAL_POD_AUTOSCALER)
    stores, questions, served = Stores(), Questions(), settings.watch_namespaces
    watched = stores_within(stores.custom(), served)
    async with AsyncExitStack() as stack:
        spans = await stack.enter_async_context(exported_spans(settings, "controllers", pod, registry))
        client = await stack.enter_async_context(
            await KubeClient.connect(client_settings, kubeconfig=kubeconfig, observer=process.count_write)
        )
        # Before the probes are served: a process that waits for its certificate below is not ready either.
        report_sync(probes, stores)
        server = ProbeServer(probes, registry, questions.routes())
        await stack.enter_async_context(server.serve(host=settings.listen_address, port=settings.probe_port))
        await stack.enter_async_context(measure_event_loop(registry))
        known_by = await KnownBy.begin(client, settings, pod.namespace, clock)
        context = known_by.identity.context
        agents = await stack.enter_async_context(AgentClient(context))
        node_agent_client = await stack.enter_async_context(
            NodeAgentClient(context, port=settings.node_agent_port)
        )
        proxies = Proxies(lambda: _report_addresses(xds_pods, settings.report_port))
        gateway = f"{settings.release}-gateway.{pod.namespace}.svc:{settings.gateway_port}"
        stats = GatewayStats(lambda: _gateways(gateway_pods, settings.gateway_metrics_port))
        prometheus = Prometheus(settings.prometheus_url) if settings.prometheus_url else None
        measurements = Measurements(stats, prometheus)
        solver = SolverProcess()
        demand = signal_watch(
            settings.prometheus_url,
            lambda: _gateways(gateway_pods, settings.gateway_metrics_port),
            stores,
            agents,
            clock.now,
        )
        as_allocator = client.acting_as(FIELD_MANAGER)
        allocator = AllocatorParts(
            as_allocator,
            solver,
            demand,
            Autoscalers(as_allocator, autoscalers),
            questions,
            AllocatorMetrics(registry),
        )
        ownership = Ownership(stores)
        occupancy = Occupancy(stores.pods, ownership.owns_pod)
        ownership.subscribe(occupancy.look_again)
        show_left_out(registry, (*stores, *occupancy.stores))
        workloads = Workloads(client, stores.jobs, served)
        node_agents = NodeAgents(node_agent_pods, node_agent_client)
        daemons = MpsDaemons(plugin_pods, settings.sharing_daemon)
        metrics = SharingMetrics(registry)
        sharing = Sharing(node_agents, daemons, stores, ownership, occupancy, metrics)
        parts = Parts(
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
            lambda: settings.serving(known_by.identity.trusted_pem),
            gateway,
            clock,
            sees_nodes=not served,
            spans=spans,
        )
        terms = Terms(parts, registry, workers=settings.workers)
        lease = LeaseClient(client, ObjectKey(pod.namespace, f"{settings.release}-controllers"))
        identity = process_identity(pod)
        election = Election(lease, identity, clock=clock)
        _add_probes(probes, terms, election)
        show_leader(registry, lambda: election.is_leading)
        registry.register(ObjectMetrics(stores.custom(), lambda: election.is_leading))
        registry.register(PoolMetrics(stores.pools, stores.decisions, questions, lambda: election.is_leading))

        async def work() -> None:
            async with asyncio.TaskGroup() as tasks:
                start_watches(tasks, client, stores.owned(), selector=OURS, namespaces=served)
                start_watches(tasks, client, (autoscalers,), selector=MOST_REPLICAS_LABEL, namespaces=served)
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
                tasks.create_task(_relist(client, watched, served))
                tasks.create_task(proxies.run())
                tasks.create_task(occupancy.run(client))
                tasks.create_task(workloads.run())
                tasks.create_task(known_by.keep(lambda: terms.queues.wake_pods(stores)))
                await synced((*stores, xds_pods, gateway_pods))
                await election.run(terms.lead)

        try:
            await until(watch(watched, identity, served), work())
        finally:
            await solver.close()


async def _relist(client: KubeClient, stores: Sequence[ObjectStore], namespaces: Sequence[str]) -> None:
    """List the caches that kopf feeds, now and every ten minutes; sooner while a listing fails or is refused."""
    while True:
        complete = True
        for store in stores:
            try:
                present, version, listed = await observe_all(client, store, namespaces)
                store.resync(present, version, within=listed or None)
                complete = complete and listed == tuple(namespaces)
            except TidegateError as error:
                log.warning("listing_failed", kind=str(store.kind), error=str(error))
        synced_all = all(store.synced.is_set() for store in stores)
        await asyncio.sleep(_RELIST_S if synced_all and complete else _REFUSED_S if synced_all else _RETRY_S)


def _report_addresses(pods: ObjectStore, port: int) -> tuple[str, ...]:
    """Return the report endpoints of the xDS servers; one that is not ready serves no proxy."""
    views = (pod_view(body) for body in pods)
    return tuple(sorted(f"{view.address}:{port}" for view in views if view.ready and view.reachable))


def _gateways(pods: ObjectStore, port: int) -> tuple[Gateway, ...]:
    """Return the gateways that are ready, with the addresses of their metrics."""
    views = (pod_view(body) for body in pods)
    return tuple(
        Gateway(view.key.name, f"{view.address}:{port}") for view in views if view.ready and view.reachable
    )


def _add_probes(probes: Probes, terms: Terms, election: Election) -> None:
    probes.add_liveness("election", election.check_liveness)
    for queue in terms.queues.all():
        probes.add_liveness(f"queue-{queue.name}", _stuck(queue, election))


def _stuck(queue: WorkQueue, election: Election) -> Check:
    """Return a liveness check for a queue; a follower's queue may fill, since only the leader empties it."""
    return lambda: queue.check_liveness() if election.is_leading else None
