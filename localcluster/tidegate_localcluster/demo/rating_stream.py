"""The stream of ratings that the example's features are computed from, as its producers see it."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import nats
import nats.errors
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from tidegate_localcluster.demo.errors import DemoError

STREAM: Final = "MOVIELENS_RATINGS"
SUBJECT: Final = "movielens.ratings"
SHIFT_MS: Final = "shift-ms"
"""Key in the stream's metadata, from the example: milliseconds that were added to the time of each rating."""
CALL_TIMEOUT_S: Final = 10.0

T = TypeVar("T")


class RatingStream:
    """The stream, on the NATS server at an address that this machine can reach."""

    def __init__(self, address: str) -> None:
        """Connect for each call to `address`, host:port."""
        self._url = f"nats://{address}"

    def find_shift(self) -> int | None:
        """Return how many milliseconds after its real time each rating is in the stream; None if it has none.

        Raises DemoError if the server cannot be reached.
        """

        async def read_metadata(stream: JetStreamContext) -> int | None:
            try:
                metadata = (await stream.stream_info(STREAM)).config.metadata or {}
            except NotFoundError:
                return None
            return int(metadata[SHIFT_MS]) if SHIFT_MS in metadata else None

        return self._call_server(read_metadata)

    def publish_rating(self, user_id: int, item_row: int, stars: int) -> float:
        """Publish a rating of this moment; return time.monotonic() as it was then. Raises DemoError."""

        async def send_event(stream: JetStreamContext) -> float:
            event = {
                "user_id": user_id,
                "ts": time.time_ns() // 1_000_000,
                "item_row": item_row,
                "stars": stars,
            }
            published_s = time.monotonic()
            await stream.publish(SUBJECT, json.dumps(event).encode())
            return published_s

        return self._call_server(send_event)

    def _call_server(self, call: Callable[[JetStreamContext], Awaitable[T]]) -> T:
        errors: list[Exception] = []

        async def record_error(error: Exception) -> None:
            errors.append(error)

        async def connect_and_call() -> T:
            client = await nats.connect(
                self._url,
                allow_reconnect=False,
                max_reconnect_attempts=1,  # without it, a first connection is tried for minutes
                reconnect_time_wait=0,
                error_cb=record_error,
            )
            try:
                return await call(client.jetstream(timeout=CALL_TIMEOUT_S))
            finally:
                await client.close()

        try:
            return asyncio.run(connect_and_call())
        except (OSError, nats.errors.Error, TimeoutError) as error:
            cause = errors[-1] if errors else error
            raise DemoError(f"stream {STREAM} at {self._url}: {cause or type(cause).__name__}") from error
