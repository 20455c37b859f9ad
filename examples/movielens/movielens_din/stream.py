"""Publishes the ratings to a stream of NATS JetStream, as if they had been given in the last months."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import nats
import nats.errors
from nats.js import JetStreamContext
from nats.js.api import StreamConfig, StreamInfo
from nats.js.errors import NotFoundError

from movielens_din.archive import sha256_of
from movielens_din.events import TIME, read_events

STREAM: Final = "MOVIELENS_RATINGS"
SUBJECT: Final = "movielens.ratings"
MADE_BY: Final = "made-by"
MAKER: Final = "tidegate/examples/movielens"
"""Key and value in the stream's metadata: only a stream that has them is ever deleted."""
EVENTS_DIGEST: Final = "events-sha256"
SHIFT_MS: Final = "shift-ms"
"""Further keys in the metadata: which events it has, and the milliseconds that were added to their times."""
MAX_AGE_MS: Final = 30 * 86_400_000
"""When the newest rating is older, all are published again, before a FeatureCompute refuses the oldest as expired."""
TIMEOUT_S: Final = 60.0
RETRIES: Final = 20
RETRY_WAIT_S: Final = 0.5
"""A port that kubectl forwards in the background refuses connections at first."""


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

    Raises EventsError when the file has no events, and StreamError when the server refuses them, has a stream of that
    name that this example did not make, or cannot be reached for about RETRIES * RETRY_WAIT_S seconds.
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
            max_reconnect_attempts=RETRIES,
            reconnect_time_wait=RETRY_WAIT_S,
            error_cb=record_error,
        )
        errors.clear()
        try:
            stream = client.jetstream(timeout=TIMEOUT_S)
            info = await _find_stream(stream)
            shift_ms = _read_shift(info, digest, len(events)) if info is not None else None
            if shift_ms is not None and now_ms - (newest_ms + shift_ms) <= MAX_AGE_MS:
                return PublishedEvents(len(events), shift_ms, is_new=False)
            shift_ms = now_ms - newest_ms
            if info is not None:
                await stream.delete_stream(STREAM)
            metadata = {MADE_BY: MAKER, EVENTS_DIGEST: digest, SHIFT_MS: str(shift_ms)}
            await stream.add_stream(StreamConfig(name=STREAM, subjects=[SUBJECT], metadata=metadata))
            await _publish_all(stream, [{**event, TIME: event[TIME] + shift_ms} for event in events])
            return PublishedEvents(len(events), shift_ms, is_new=True)
        finally:
            await client.close()
    except (OSError, nats.errors.Error, TimeoutError) as error:
        cause = errors[-1] if errors else error
        raise StreamError(f"{url}, stream {STREAM}: {cause or type(cause).__name__}") from error


async def _find_stream(stream: JetStreamContext) -> StreamInfo | None:
    """The example's stream; None when there is none. Raises StreamError when it is not of this example."""
    try:
        info = await stream.stream_info(STREAM)
    except NotFoundError:
        return None
    if (info.config.metadata or {}).get(MADE_BY) != MAKER:
        raise StreamError(
            f"stream {STREAM} was not made by this example, so it is not replaced: delete or rename it, "
            "or use another server"
        )
    return info


def _read_shift(info: StreamInfo, digest: str, count: int) -> int | None:
    """The shift of the events in the stream; None when it has not all of them, or others."""
    metadata = info.config.metadata or {}
    if metadata.get(EVENTS_DIGEST) != digest or info.state.messages < count:
        return None
    return int(metadata[SHIFT_MS])


async def _publish_all(stream: JetStreamContext, events: Sequence[dict[str, int]]) -> None:
    """Publishes in this order; returns when the server has stored all of them."""
    stored = [await stream.publish_async(SUBJECT, json.dumps(event).encode()) for event in events]
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*stored)
