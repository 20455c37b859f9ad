"""Wire the ingester's parts and run them until the pod ends."""

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog

from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials, read_named_secret
from tidegate_dataplane.agent.files import read_first_order
from tidegate_dataplane.agent.kafka_server import KafkaServer
from tidegate_dataplane.agent.nats_server import NatsServer
from tidegate_dataplane.agent.stopping import run_until, watch_stop_signals
from tidegate_dataplane.contract import (
    DesiredState,
    EventDeadLetters,
    EventStream,
    EventStreamReport,
    FeaturePlan,
)
from tidegate_dataplane.event_store.redis_client import RedisAccess
from tidegate_dataplane.event_store.redis_store import RedisEventStore
from tidegate_dataplane.event_store.report import IngesterReport, read_boot_id
from tidegate_dataplane.event_store.state import StreamState
from tidegate_dataplane.event_store.store import EventStore
from tidegate_dataplane.event_store.writer import EventWriter, StoreError
from tidegate_dataplane.ingester.broker import EventBroker
from tidegate_dataplane.ingester.dead_letters import (
    DeadLetterTarget,
    DeadLetterWriter,
    KafkaDeadLetters,
    NatsDeadLetters,
)
from tidegate_dataplane.ingester.follower import StreamFollower
from tidegate_dataplane.ingester.kafka_broker import KafkaEventBroker
from tidegate_dataplane.ingester.nats_broker import NatsEventBroker
from tidegate_dataplane.ingester.parse import EventParser
from tidegate_dataplane.ingester.settings import IngesterSettings

STORE_PAUSE_S: Final = 1.0
"""Pause before a store that did not answer is asked again, before any stream is read."""

log = structlog.get_logger()


async def run_ingester(settings: IngesterSettings, environment: Mapping[str, str] = os.environ) -> None:
    """Read the streams of the pod's plan until SIGTERM or SIGINT."""
    stop = watch_stop_signals()
    order, plan = _read_order(settings.config_dir)
    letters = {item.source: item for item in plan.dead_letters}
    store = _open_store(plan, settings)
    if (opened := await _read_beginning(store, plan, stop)) is None:
        return
    states, earlier = opened
    entities = {entity.name: entity for entity in plan.entities}
    followers = [
        StreamFollower(
            stream,
            EventParser(stream, entities[stream.entity]),
            _make_broker(stream, settings, environment),
            store,
            states[stream.name],
            earlier.get(stream.name),
            _make_letters(stream, letters.get(stream.name), order.owner, settings, environment),
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


def _read_order(folder: Path) -> tuple[DesiredState, FeaturePlan]:
    order = read_first_order(folder)
    if order is None or order.plan is None or not order.plan.streams:
        raise SystemExit(f"{folder}/desired.json has no plan with streams")
    return order, order.plan


def _open_store(plan: FeaturePlan, settings: IngesterSettings) -> EventWriter:
    if plan.store is None:
        return EventStore(settings.events_dir, plan.streams, max_bytes=settings.store_bytes)
    access = RedisAccess(plan.store, settings.store_secret_dir, allow_loopback=settings.allow_loopback)
    return RedisEventStore(access, plan)


async def _read_beginning(
    store: EventWriter, plan: FeaturePlan, stop: asyncio.Event
) -> tuple[Mapping[str, StreamState], Mapping[str, EventStreamReport]] | None:
    """Return the states and reports of the process before this one, as soon as the store answers; None once `stop` is set."""
    while not stop.is_set():
        try:
            states = {
                stream.name: await asyncio.to_thread(_read_state, store, stream.name)
                for stream in plan.streams
            }
            reports = await asyncio.to_thread(store.read_published)
            return states, {report.source: report for report in reports}
        except StoreError as error:
            log.warning("store_fails", error=str(error))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), STORE_PAUSE_S)
    return None


def _read_state(store: EventWriter, stream: str) -> StreamState:
    """Return the state of a stream; if the store refuses it, the stream's follower says so in its reports."""
    try:
        return store.read_state(stream)
    except StoreError as error:
        if error.refused:
            return StreamState()
        raise


def _make_broker(
    stream: EventStream, settings: IngesterSettings, environment: Mapping[str, str]
) -> EventBroker:
    name = f"tidegate {settings.pod_name} {stream.name}"
    match _make_server(stream, settings, environment):
        case NatsServer() as nats if stream.nats is not None:
            return NatsEventBroker(stream.nats, nats, name)
        case KafkaServer() as kafka:
            return KafkaEventBroker(kafka.order, kafka, name)
        case _:
            raise SystemExit(f"stream {stream.name} names neither NATS nor Kafka")


def _make_letters(
    stream: EventStream,
    order: EventDeadLetters | None,
    owner: str,
    settings: IngesterSettings,
    environment: Mapping[str, str],
) -> DeadLetterWriter | None:
    """Return what writes the dead letters of a stream, over connections of its own; None if it has none."""
    if order is None:
        return None
    name, source = f"tidegate {settings.pod_name} {stream.name} dead", f"{owner}/{stream.name}"
    target: DeadLetterTarget
    match _make_server(stream, settings, environment):
        case NatsServer() as nats if stream.nats is not None:
            target = NatsDeadLetters(stream.nats, order.target, nats, name, source)
        case KafkaServer() as kafka:
            target = KafkaDeadLetters(kafka.order, order.target, kafka, name, source)
        case _:
            return None
    return DeadLetterWriter(order, target, settings.dead_letter_hold_s)


def _make_server(
    stream: EventStream, settings: IngesterSettings, environment: Mapping[str, str]
) -> NatsServer | KafkaServer | None:
    """Return the server of a stream, with the credentials of its Secret."""
    secret, folder, loopback = (
        stream.secret_name,
        settings.secrets_dir / stream.name,
        settings.allow_loopback,
    )

    def read_secret() -> SecretCredentials:
        return read_named_secret(folder, secret, environment)

    if stream.nats is not None:
        return NatsServer(stream.nats.url, secret, read_secret, folder, allow_loopback=loopback)
    if stream.kafka is not None:
        return KafkaServer(stream.kafka, read_secret, folder, allow_loopback=loopback)
    return None


async def _write_reports(
    settings: IngesterSettings, store: EventWriter, followers: Sequence[StreamFollower]
) -> None:
    """Tell the agent how current the events are, and release what readers that were killed left, until cancelled."""
    boot_id = read_boot_id()
    while True:
        now_s = time.time()
        try:
            reports = tuple(follower.build_report(now_s) for follower in followers)
            report = IngesterReport(at_s=now_s, boot_id=boot_id, streams=reports)
            await asyncio.to_thread(store.publish_report, report)
        except (OSError, StoreError, ValueError) as error:
            log.warning("report_not_written", error=str(error))
        released = await asyncio.to_thread(store.release_readers)
        if released:
            log.info("readers_released", count=released)
        await asyncio.sleep(settings.report_s)


async def _sweep_store(
    settings: IngesterSettings, store: EventWriter, followers: Sequence[StreamFollower]
) -> None:
    """Remove keys whose events have all expired, until cancelled."""
    while True:
        await asyncio.sleep(settings.sweep_s)
        for follower in followers:
            try:
                removed = await _sweep_stream(store, follower.stream_name)
            except StoreError as error:
                log.warning("store_not_swept", stream=follower.stream_name, error=str(error))
            else:
                if removed:
                    log.info("store_swept", stream=follower.stream_name, removed_keys=removed)


async def _sweep_stream(store: EventWriter, stream: str) -> int:
    removed, cursor = 0, b""
    while True:
        swept = await asyncio.to_thread(store.remove_expired, stream, int(time.time() * 1000), cursor)
        removed, cursor = removed + swept.removed, swept.cursor
        if not cursor:
            return removed
