"""Send a rating to the stream that the example's features are computed from, as a film service does."""

import asyncio
import json
import time
from typing import Final

import nats
import nats.errors

from tidegate_localcluster.demo.errors import DemoError

ACKNOWLEDGED_WITHIN_S: Final = 10.0


class RatingStream:
    """A subject of a stream, on the NATS server at an address that this machine can reach."""

    def __init__(self, address: str, subject: str) -> None:
        """Connect for each rating to `address`, host:port."""
        self._url = f"nats://{address}"
        self._subject = subject

    def publish_rating(self, user_id: int, item_row: int, stars: int) -> float:
        """Publish a rating of this moment; return time.monotonic() as it was then. Raises DemoError."""
        try:
            return asyncio.run(self._send_rating(user_id, item_row, stars))
        except (OSError, nats.errors.Error, TimeoutError) as error:
            raise DemoError(
                f"subject {self._subject} at {self._url}: {error or type(error).__name__}"
            ) from error

    async def _send_rating(self, user_id: int, item_row: int, stars: int) -> float:
        client = await nats.connect(
            self._url,
            allow_reconnect=False,
            max_reconnect_attempts=1,  # without it, a first connection is tried for minutes
            reconnect_time_wait=0,
            error_cb=_ignore_error,
        )
        try:
            stream = client.jetstream(timeout=ACKNOWLEDGED_WITHIN_S)
            event = {
                "user_id": user_id,
                "ts": time.time_ns() // 1_000_000,
                "item_row": item_row,
                "stars": stars,
            }
            published_s = time.monotonic()
            await stream.publish(self._subject, json.dumps(event).encode())
            return published_s
        finally:
            await client.close()


async def _ignore_error(error: Exception) -> None:
    """Log nothing: the call that failed raises."""
