"""Publishes the ratings to a stream of NATS JetStream, as if they had been given in the last months."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import nats
import nats.errors
from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from nats.js.errors import NotFoundError

from movielens_din.archive import sha256_of
from movielens_din.events import TIME, read_events

STREAM: Final = "RATINGS"
SUBJECT: Final = "ratings"
EVENTS_DIGEST: Final = "events-sha256"
SHIFT_MS: Final = "shift-ms"
"""Keys in the stream's metadata: which events it has, and the milliseconds that were added to their times."""
MAX_AGE_MS: Final = 30 * 86_400_000
"""When the newest rating is older, all are published again, before a FeatureCompute refuses the oldest as expired."""
TIMEOUT_S: Final = 60.0


class StreamError(RuntimeError):
    """The events could not be published."""


@dataclass(frozen=True, slots=True)
class PublishedEvents:
    """What the stream has. `shift_ms`: the milliseconds that were added to the time of each rating."""

    count: int
    shift_ms: int
    is_new: bool


async def publish_events(url: str, path: Path, now_ms: int) -> PublishedEvents:
    """Publishes the events of the file `path`, shifted so that the newest is of `now_ms`, unless the stream has them.

    Raises StreamError when the server cannot be reached or refuses them.
    """
    events, digest = read_events(path), sha256_of(path)
    newest_ms = events[-1][TIME]
    errors: list[Exception] = []

    async def record_error(error: Exception) -> None:
        errors.append(error)

    try:
        client = await nats.connect(
            url,
            allow_reconnect=False,
            max_reconnect_attempts=1,  # without it, a first connection is tried for minutes
            reconnect_time_wait=0,
            error_cb=record_error,
        )
        try:
            stream = client.jetstream(timeout=TIMEOUT_S)
            shift_ms = await _find_shift(stream, digest, len(events))
            if shift_ms is not None and now_ms - (newest_ms + shift_ms) <= MAX_AGE_MS:
                return PublishedEvents(len(events), shift_ms, is_new=False)
            shift_ms = now_ms - newest_ms
            await _make_stream(stream, {EVENTS_DIGEST: digest, SHIFT_MS: str(shift_ms)})
            await _publish_all(stream, [{**event, TIME: event[TIME] + shift_ms} for event in events])
            return PublishedEvents(len(events), shift_ms, is_new=True)
        finally:
            await client.close()
    except (OSError, nats.errors.Error, TimeoutError) as error:
        cause = errors[-1] if errors else error
        raise StreamError(f"{url}, stream {STREAM}: {cause or type(cause).__name__}") from error


async def _find_shift(stream: JetStreamContext, digest: str, count: int) -> int | None:
    """The shift of the events in the stream; None when it has not all of them, or others."""
    try:
        info = await stream.stream_info(STREAM)
    except NotFoundError:
        return None
    metadata = info.config.metadata or {}
    if metadata.get(EVENTS_DIGEST) != digest or info.state.messages < count:
        return None
    return int(metadata[SHIFT_MS])


async def _make_stream(stream: JetStreamContext, metadata: dict[str, str]) -> None:
    with contextlib.suppress(NotFoundError):
        await stream.delete_stream(STREAM)
    await stream.add_stream(StreamConfig(name=STREAM, subjects=[SUBJECT], metadata=metadata))


async def _publish_all(stream: JetStreamContext, events: Sequence[dict[str, int]]) -> None:
    """Publishes in this order; returns when the server has stored all of them."""
    stored = [await stream.publish_async(SUBJECT, json.dumps(event).encode()) for event in events]
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*stored)
