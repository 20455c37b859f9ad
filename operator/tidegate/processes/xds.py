"""`tidegate xds serve`: configures the gateways from the same objects and pods that the controllers see."""

import asyncio
from functools import partial
from pathlib import Path

from aiohttp import web
from prometheus_client import CollectorRegistry

from tidegate.kube.client import ClientSettings, KubeClient
from tidegate.publisher.gateway_tls import GatewayTlsSecrets
from tidegate.publisher.routing_inputs import RoutingInputs
from tidegate.publisher.share_planner import SharePlanner, resolve_gateways
from tidegate.publisher.snapshot_publisher import SnapshotPublisher
from tidegate.publisher.snapshot_spans import SnapshotSpans
from tidegate.resources.names import MANAGED_SELECTOR
from tidegate.routing.credentials import host_from_address
from tidegate.routing.envoy.listener import ListenerSettings
from tidegate.runtime.caches import (
    report_sync,
    start_named_secret_watches,
    start_secret_watches,
    start_watches,
    wait_until_synced,
)
from tidegate.runtime.event_loop import measure_event_loop
from tidegate.runtime.lifecycle import run_until, wait_for_signal
from tidegate.runtime.probes import Probes, ProbeServer
from tidegate.runtime.process_metrics import ProcessMetrics, show_left_out
from tidegate.runtime.spans import export_spans
from tidegate.settings import ControlPlaneSettings, PodIdentity
from tidegate.xds.cache import SnapshotCache
from tidegate.xds.identity import ServerCertificate
from tidegate.xds.issuer_keys import IssuerKeyFetcher, IssuerMetrics, IssuerSettings
from tidegate.xds.ledger import AckLedger
from tidegate.xds.metrics import XdsMetrics
from tidegate.xds.proxyless import GrpcSnapshots
from tidegate.xds.report_server import add_inspection, build_contents_application, build_report_application
from tidegate.xds.server import XdsServer, XdsServerSettings
from tidegate.xds.shares import AdmittedShares
from tidegate.xds.snapshot_builder import SnapshotBuilder


async def run_xds(settings: ControlPlaneSettings, pod: PodIdentity, kubeconfig: Path | None) -> None:
    """Run until the process is told to stop. Raises PermanentError if there are no credentials for the API server."""
    registry, probes = CollectorRegistry(), Probes()
    process, metrics = ProcessMetrics(registry, "xds"), XdsMetrics(registry)
    client_settings = ClientSettings(field_manager="tidegate-xds", user_agent="tidegate-xds")
    inputs = RoutingInputs(secret_namespaces=settings.auth_namespaces)
    tls = GatewayTlsSecrets(settings.gateway_tls, pod.namespace, metrics)
    key_hosts = tuple(map(host_from_address, settings.jwks_hosts))
    issuers = IssuerKeyFetcher(IssuerSettings(key_hosts, settings.jwks_authorities), IssuerMetrics(registry))
    cache, clients = SnapshotCache(settings.history_bytes), GrpcSnapshots()
    ledger = AckLedger(cache)
    certificate = ServerCertificate(settings.xds_tls_directory) if settings.xds_tls_directory else None
    if certificate is not None:
        metrics.certificate_expires.set_function(certificate.expires_at)
    report_sync(probes, inputs.required_stores)
    probes.add_readiness("snapshot", lambda: None if cache.snapshot else "no snapshot yet")
    show_left_out(registry, (*inputs.required_stores, *inputs.secrets.values()))
    async with (
        export_spans(settings, "xds", pod, registry) as root,
        await KubeClient.connect(
            client_settings, kubeconfig=kubeconfig, observer=process.count_write
        ) as client,
        ProbeServer(probes, registry).serve(host=settings.listen_address, port=settings.probe_port),
        measure_event_loop(registry),
    ):
        spans = SnapshotSpans(root)
        publisher = SnapshotPublisher(
            inputs=inputs,
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
        )
        shares = AdmittedShares()
        share_planner = SharePlanner(
            inputs=inputs,
            shares=shares,
            metrics=metrics,
            find_gateways=partial(
                resolve_gateways, f"{settings.release}-gateway-metrics", settings.gateway_metrics_port
            ),
        )
        server = XdsServer(
            cache,
            ledger,
            metrics,
            grpc_snapshots=clients,
            shares=shares,
            settings=XdsServerSettings(gateway_namespace=pod.namespace),
            watcher=spans,
        )
        report, contents = build_report_application(ledger), build_contents_application(cache)
        add_inspection(report, cache, server.proxy_states, lambda: tls.latest_secrets)

        async def work() -> None:
            async with asyncio.TaskGroup() as tasks:
                served = settings.watch_namespaces
                start_watches(tasks, client, inputs.own_stores, namespaces=served)
                start_watches(tasks, client, [inputs.pods], selector=MANAGED_SELECTOR, namespaces=served)
                secrets = start_secret_watches(tasks, client, inputs.secrets)
                named = start_named_secret_watches(tasks, client, pod.namespace, tls.stores)
                tasks.create_task(issuers.run())
                tasks.create_task(publisher.run((*secrets, *named)))
                tasks.create_task(_serve_http(report, "0.0.0.0", settings.report_port))  # noqa: S104
                tasks.create_task(_serve_http(contents, "127.0.0.1", settings.contents_port))
                await wait_until_synced(inputs.required_stores)
                tasks.create_task(share_planner.run_rounds())
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
