"""`tidegate xds`: configures the gateways from the same objects and pods that the controllers see."""

import asyncio
import contextlib
import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from tidegate.kube.client import ClientSettings, KubeClient
from tidegate.kube.watch import Reflector
from tidegate.processes.caches import (
    report_sync,
    start_named_secret_watches,
    start_secret_watches,
    start_watches,
    wait_until_settled,
    wait_until_synced,
)
from tidegate.processes.gateway_tls import GatewayTlsSecrets
from tidegate.processes.gc_pause import pause_garbage_collection
from tidegate.processes.lifecycle import run_until, wait_for_signal
from tidegate.processes.routing_inputs import RoutingInputs
from tidegate.processes.snapshot_spans import SnapshotSpans
from tidegate.processes.spans import export_spans
from tidegate.resources.names import MANAGED_SELECTOR
from tidegate.routing.credentials import host_from_address
from tidegate.routing.envoy.listener import ListenerSettings
from tidegate.routing.gateway_secrets import evaluate_client_authority
from tidegate.routing.incremental import IncrementalTranslator
from tidegate.runtime.event_loop import measure_event_loop
from tidegate.runtime.probes import Probes, ProbeServer
from tidegate.runtime.process_metrics import ProcessMetrics, show_left_out
from tidegate.settings import ControlPlaneSettings, PodIdentity
from tidegate.xds.cache import SnapshotCache
from tidegate.xds.identity import ServerCertificate
from tidegate.xds.issuer_keys import IssuerKeyFetcher, IssuerMetrics, IssuerSettings
from tidegate.xds.ledger import AckLedger
from tidegate.xds.metrics import XdsMetrics
from tidegate.xds.proxyless import GrpcSnapshots
from tidegate.xds.report_server import add_inspection, build_contents_application, build_report_application
from tidegate.xds.server import XdsServer, XdsServerSettings
from tidegate.xds.snapshot_builder import SnapshotBuilder

_GATHER_S: Final = 0.01
"""Changes within this time, as in a rollout, are combined into one snapshot."""

_LOOK_AGAIN_S: Final = 60.0
"""How often certificates are checked: one that expires or becomes valid causes no event."""

log: Final = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotPublisher:
    """Updates the snapshot whenever a cache has changed."""

    feed: RoutingInputs
    cache: SnapshotCache
    builder: SnapshotBuilder
    clients: GrpcSnapshots
    metrics: XdsMetrics
    issuers: IssuerKeyFetcher
    tls: GatewayTlsSecrets
    spans: SnapshotSpans
    key_hosts: Sequence[str] = ()
    secrets: Sequence[Reflector] = ()

    async def run(self) -> None:
        """Publish a snapshot after each change, until cancelled.

        Nothing is published before every cache has synced: an empty snapshot would empty the gateways.
        """
        routing = IncrementalTranslator(secret_namespaces=self.feed.secrets, key_hosts=self.key_hosts)
        changed = asyncio.Event()
        self.feed.subscribe(changed.set)
        self.issuers.subscribe(lambda address: self.feed.put_keys(address, self.issuers.results.get(address)))
        self.tls.subscribe(changed.set)
        await wait_until_synced(self.feed.required_stores)
        # Wait for Secrets and keys: without them, guarded accesses would refuse everybody for a moment at each start.
        await wait_until_settled(self.secrets)
        self.issuers.set_addresses(self.feed.key_addresses)
        await self.issuers.wait_for_results()
        known_faults: Mapping[str, str] = {}
        gc.freeze()  # The caches stay: scanning them for garbage doubles the time of a large build.
        while True:
            changed.clear()
            started = time.perf_counter()
            with pause_garbage_collection():
                self.issuers.set_addresses(self.feed.key_addresses)
                self.feed.feed_changes(routing, self.issuers.pending_addresses)
                tls_secrets = self.tls.check_secrets(datetime.now(UTC))
                routing.put_client_authority(evaluate_client_authority(tls_secrets))
                self.builder.set_secrets(tls_secrets)
                change = routing.take_change()
                snapshot = self.builder.apply_change(change)
            if self.cache.set(snapshot):
                self.metrics.built.set_to_current_time()
                decisions = change.decisions
                log.info("snapshot", revision=snapshot.revision, decisions=decisions)
                self.spans.record_snapshot(snapshot, decisions, time.perf_counter() - started)
            self.clients.apply_change(change)
            for kind, reading, count in self.feed.count_unparsed():
                self.metrics.not_understood.labels(kind, reading.value).set(count)
            faults = {**self.feed.faults.failures, **routing.faults.failures, **self.builder.faults.failures}
            self._log_faults(faults, known_faults)
            known_faults = faults
            self.metrics.build_seconds.observe(time.perf_counter() - started)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN_S if self.tls.stores else None):
                    await changed.wait()
            await asyncio.sleep(_GATHER_S)

    def _log_faults(self, faults: Mapping[str, str], before: Mapping[str, str]) -> None:
        """Log each object that could not be planned or rendered, once; routing keeps its previous state."""
        self.metrics.failed.set(len(faults))
        for subject, location in faults.items():
            if before.get(subject) != location:
                log.error("object_not_routed", object=subject, why=location)
        for subject in before.keys() - faults.keys():
            log.info("object_routed_again", object=subject)


async def run_xds(settings: ControlPlaneSettings, identity: PodIdentity, kubeconfig: Path | None) -> None:
    """Run until the process is told to stop. Raises PermanentError if there are no credentials for the API server."""
    registry, probes, feed, cache = (
        CollectorRegistry(),
        Probes(),
        RoutingInputs(secret_namespaces=settings.auth_namespaces),
        SnapshotCache(settings.history_bytes),
    )
    process = ProcessMetrics(registry, "xds")
    key_hosts = tuple(map(host_from_address, settings.jwks_hosts))
    issuers = IssuerKeyFetcher(IssuerSettings(key_hosts, settings.jwks_authorities), IssuerMetrics(registry))
    metrics, ledger = XdsMetrics(registry), AckLedger(cache)
    report_sync(probes, feed.required_stores)
    show_left_out(registry, (*feed.required_stores, *feed.secrets.values()))
    probes.add_readiness("snapshot", lambda: None if cache.snapshot else "no snapshot yet")
    clients = GrpcSnapshots()
    server_settings = XdsServerSettings(gateway_namespace=identity.namespace)
    certificate = ServerCertificate(settings.xds_tls_directory) if settings.xds_tls_directory else None
    if certificate is not None:
        metrics.certificate_expires.set_function(certificate.expires_at)
    tls = GatewayTlsSecrets(settings.gateway_tls, identity.namespace, metrics)
    client_settings = ClientSettings(field_manager="tidegate-xds", user_agent="tidegate-xds")
    async with (
        export_spans(settings, "xds", identity, registry) as root,
        await KubeClient.connect(
            client_settings, kubeconfig=kubeconfig, observer=process.count_write
        ) as client,
        ProbeServer(probes, registry).serve(host=settings.listen_address, port=settings.probe_port),
        measure_event_loop(registry),
    ):
        spans = SnapshotSpans(root)
        server = XdsServer(
            cache, ledger, metrics, grpc_snapshots=clients, settings=server_settings, watcher=spans
        )
        report = build_report_application(ledger)
        add_inspection(report, cache, server.proxy_states, lambda: tls.latest_secrets)

        async def work() -> None:
            async with asyncio.TaskGroup() as tasks:
                served_namespaces = settings.watch_namespaces
                start_watches(tasks, client, feed.own_stores, namespaces=served_namespaces)
                start_watches(
                    tasks, client, [feed.pods], selector=MANAGED_SELECTOR, namespaces=served_namespaces
                )
                secrets = start_secret_watches(tasks, client, feed.secrets)
                named = start_named_secret_watches(tasks, client, identity.namespace, tls.stores)
                publisher = SnapshotPublisher(
                    feed=feed,
                    cache=cache,
                    builder=SnapshotBuilder(
                        ListenerSettings(
                            access_log=settings.gateway_access_log,
                            tls=settings.gateway_tls,
                            tracing=settings.gateway_tracing,
                        )
                    ),
                    clients=clients,
                    metrics=metrics,
                    issuers=issuers,
                    key_hosts=key_hosts,
                    tls=tls,
                    spans=spans,
                    secrets=(*secrets, *named),
                )
                tasks.create_task(issuers.run())
                tasks.create_task(publisher.run())
                tasks.create_task(_serve_http(report, "0.0.0.0", settings.report_port))  # noqa: S104
                contents = build_contents_application(cache)
                tasks.create_task(_serve_http(contents, "127.0.0.1", settings.contents_port))
                await wait_until_synced(feed.required_stores)
                await server.start(f"0.0.0.0:{settings.xds_port}", certificate)

        try:
            await run_until(wait_for_signal(), work())
        finally:
            await server.stop()


async def _serve_http(application: web.Application, host: str, port: int) -> None:
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
