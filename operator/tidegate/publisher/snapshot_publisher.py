"""Publishes a snapshot of what the gateways run whenever an object, a pod, a Secret or an issuer's key has changed."""

import asyncio
import contextlib
import gc
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import structlog

from tidegate.kube.watch import Reflector
from tidegate.publisher.gateway_tls import GatewayTlsSecrets
from tidegate.publisher.routing_inputs import RoutingInputs
from tidegate.publisher.snapshot_spans import SnapshotSpans
from tidegate.routing.gateway_secrets import evaluate_client_authority
from tidegate.routing.incremental import IncrementalTranslator
from tidegate.runtime.caches import wait_until_settled, wait_until_synced
from tidegate.xds.cache import SnapshotCache
from tidegate.xds.issuer_keys import IssuerKeyFetcher
from tidegate.xds.metrics import XdsMetrics
from tidegate.xds.proxyless import GrpcSnapshots
from tidegate.xds.snapshot_builder import SnapshotBuilder

_GATHER_S: Final = 0.01
"""Changes within this time, as in a rollout, are combined into one snapshot."""

_LOOK_AGAIN_S: Final = 60.0
"""How often certificates are checked: one that expires or becomes valid causes no event."""

log: Final = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPublisher:
    """Updates the snapshot whenever a cache has changed."""

    inputs: RoutingInputs
    cache: SnapshotCache
    builder: SnapshotBuilder
    clients: GrpcSnapshots
    metrics: XdsMetrics
    issuers: IssuerKeyFetcher
    tls: GatewayTlsSecrets
    spans: SnapshotSpans
    key_hosts: Sequence[str]

    async def run(self, secrets: Sequence[Reflector]) -> None:
        """Publish a snapshot after each change, until cancelled; `secrets` are the watches of all Secrets.

        Nothing is published before every cache has synced: an empty snapshot would empty the gateways.
        """
        routing = IncrementalTranslator(secret_namespaces=self.inputs.secrets, key_hosts=self.key_hosts)
        changed = asyncio.Event()
        self.inputs.subscribe(changed.set)
        self.issuers.subscribe(
            lambda address: self.inputs.put_keys(address, self.issuers.results.get(address))
        )
        self.tls.subscribe(changed.set)
        await wait_until_synced(self.inputs.required_stores)
        # Wait for Secrets and keys: without them, guarded accesses would refuse everybody for a moment at each start.
        await wait_until_settled(secrets)
        key_addresses = self.inputs.key_addresses
        self.issuers.set_addresses(key_addresses)
        await self.issuers.wait_for_results()
        known_faults: Mapping[str, str] = {}
        gc.freeze()  # The caches stay: scanning them for garbage doubles the time of a large build.
        while True:
            changed.clear()
            started = time.perf_counter()
            with pause_garbage_collection():
                if self.inputs.key_addresses is not key_addresses:
                    key_addresses = self.inputs.key_addresses
                    self.issuers.set_addresses(key_addresses)
                self.inputs.feed_changes(routing, self.issuers.pending_addresses)
                now = datetime.now(UTC)
                if self.tls.needs_check(now):
                    tls_secrets = self.tls.check_secrets(now)
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
            for kind, reading, count in self.inputs.count_unparsed():
                self.metrics.not_understood.labels(kind, reading.value).set(count)
            faults = {
                **self.inputs.faults.failures,
                **routing.faults.failures,
                **self.builder.faults.failures,
            }
            self._log_faults(faults, known_faults)
            known_faults = faults
            self.metrics.build_seconds.observe(time.perf_counter() - started)
            with contextlib.suppress(TimeoutError):
                waits = (_LOOK_AGAIN_S if self.tls.stores else None, self.inputs.find_wait_s())
                async with asyncio.timeout(min((wait for wait in waits if wait is not None), default=None)):
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


@contextmanager
def pause_garbage_collection() -> Generator[None]:
    """Disable the garbage collector in this block, which should take a second at most.

    Each collection would scan all the objects that the block creates and keeps. Garbage is collected afterwards.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
