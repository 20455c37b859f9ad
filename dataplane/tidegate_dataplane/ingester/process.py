"""Wire the ingester's parts and run them until the pod ends."""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials, read_named_secret
from tidegate_dataplane.agent.files import read_first_order
from tidegate_dataplane.agent.nats_server import NatsServer
from tidegate_dataplane.agent.nearline.kafka_server import KafkaServer
from tidegate_dataplane.agent.stopping import run_until, watch_stop_signals
from tidegate_dataplane.contract import EventStream, FeaturePlan
from tidegate_dataplane.event_store.report import (
    IngesterReport,
    read_boot_id,
    read_report,
    write_report,
)
from tidegate_dataplane.event_store.store import EventStore, StoreFullError
from tidegate_dataplane.ingester.broker import EventBroker
from tidegate_dataplane.ingester.follower import StreamFollower
from tidegate_dataplane.ingester.kafka_broker import KafkaEventBroker
from tidegate_dataplane.ingester.nats_broker import NatsEventBroker
from tidegate_dataplane.ingester.parse import EventParser
from tidegate_dataplane.ingester.settings import IngesterSettings

log = structlog.get_logger()


async def run_ingester(settings: IngesterSettings, environment: Mapping[str, str] = os.environ) -> None:
    """Read the streams of the pod's plan until SIGTERM or SIGINT."""
    stop = watch_stop_signals()
    plan = _read_plan(settings.config_dir)
    store = EventStore(settings.events_dir, plan.streams, max_bytes=settings.store_bytes)
    entities = {entity.name: entity for entity in plan.entities}
    earlier = {report.source: report for report in read_report(settings.events_dir)}
    followers = [
        StreamFollower(
            stream,
            EventParser(stream, entities[stream.entity]),
            _make_broker(stream, settings, environment),
            store,
            earlier.get(stream.name),
        )
        for stream in plan.streams
    ]
    log.info("ingester_started", pod=settings.pod_name, sources=[stream.name for stream in plan.streams])
    await run_until(
        stop,
        *(follower.follow_stream for follower in followers),
        lambda: _write_reports(settings, store, followers),
        lambda: _sweep_store(settings, store, followers),
    )


def _read_plan(folder: Path) -> FeaturePlan:
    order = read_first_order(folder)
    if order is None or order.plan is None or not order.plan.streams:
        raise SystemExit(f"{folder}/desired.json has no plan with streams")
    return order.plan


def _make_broker(
    stream: EventStream, settings: IngesterSettings, environment: Mapping[str, str]
) -> EventBroker:
    secret, folder = stream.secret_name, settings.secrets_dir / stream.name
    name, loopback = f"tidegate {settings.pod_name} {stream.name}", settings.allow_loopback

    def read_secret() -> SecretCredentials:
        return read_named_secret(folder, secret, environment)

    if stream.nats is not None:
        nats = NatsServer(stream.nats.url, secret, read_secret, folder, allow_loopback=loopback)
        return NatsEventBroker(stream.nats, nats, name)
    if stream.kafka is not None:
        kafka = KafkaServer(stream.kafka, read_secret, folder, allow_loopback=loopback)
        return KafkaEventBroker(stream.kafka, kafka, name)
    raise SystemExit(f"stream {stream.name} names neither NATS nor Kafka")


async def _write_reports(
    settings: IngesterSettings, store: EventStore, followers: Sequence[StreamFollower]
) -> None:
    """Tell the agent how current the events are, and release what readers that were killed left, until cancelled."""
    boot_id = read_boot_id()
    while True:
        now_s = time.time()
        reports = tuple(follower.build_report(now_s) for follower in followers)
        try:
            write_report(settings.events_dir, IngesterReport(at_s=now_s, boot_id=boot_id, streams=reports))
        except OSError as error:
            log.warning("report_not_written", error=str(error))
        released = await asyncio.to_thread(store.release_readers)
        if released:
            log.info("readers_released", count=released)
        await asyncio.sleep(settings.report_s)


async def _sweep_store(
    settings: IngesterSettings, store: EventStore, followers: Sequence[StreamFollower]
) -> None:
    """Remove keys whose events have all expired, until cancelled."""
    while True:
        await asyncio.sleep(settings.sweep_s)
        removed = 0
        try:
            for follower in followers:
                removed += await _sweep_stream(store, follower.stream_name)
        except StoreFullError as error:
            log.warning("store_not_swept", error=str(error))
        if removed:
            log.info("store_swept", removed_keys=removed)


async def _sweep_stream(store: EventStore, stream: str) -> int:
    removed, cursor = 0, b""
    while True:
        swept = await asyncio.to_thread(store.remove_expired, stream, int(time.time() * 1000), cursor)
        removed, cursor = removed + swept.removed, swept.cursor
        if not cursor:
            return removed
