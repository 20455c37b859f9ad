"""Bucket of results: a key-value store of NATS whose keys are created once, so that an id has one result."""

from typing import TYPE_CHECKING, Final

from tidegate_dataplane.agent.nats_server import CALL_TIMEOUT_S, LARGER_THAN_STREAM_TAKES, NatsServer
from tidegate_dataplane.agent.nearline.broker import ResultTooLargeError

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js.kv import KeyValue

HEADERS_BYTES: Final = 2_048
"""Room for the headers of a result."""


class ResultBucket:
    """One bucket; `open` finds it on each new connection."""

    def __init__(self, server: NatsServer, name: str, ttl_s: float) -> None:
        self._server = server
        self._name = name
        self._ttl_s = ttl_s
        self._client: Client | None = None
        self._store: KeyValue | None = None

    async def open(self, client: "Client") -> None:
        """Find or make the bucket.

        Raises:
            BrokerError: its retention differs from the spec's.
            APIError: an error of the server, untranslated.
        """
        from nats.js.api import KeyValueConfig
        from nats.js.errors import BucketNotFoundError

        self._client, self._store = client, None
        stream = client.jetstream(timeout=CALL_TIMEOUT_S)
        try:
            bucket = await self._server.call_server(stream.key_value(self._name))
        except BucketNotFoundError:
            made = KeyValueConfig(bucket=self._name, ttl=self._ttl_s, history=1)
            self._store = await self._server.call_server(stream.create_key_value(made))
            return
        ttl_s = (await self._server.call_server(bucket.status())).ttl or 0
        if abs(ttl_s - self._ttl_s) > 1e-3:
            raise self._server.refusal_error(
                f"bucket {self._name} keeps results for {ttl_s:g} s, and the spec says {self._ttl_s:g} s: change "
                "produce.store.nats.ttl, or name another bucket"
            )
        self._store = bucket

    async def has_result(self, request_id: str) -> bool:
        """Return whether the id has a result."""
        from nats.js.errors import KeyNotFoundError

        try:
            await self._server.call_server(self._current_store.get(request_id))
        except KeyNotFoundError:
            return False
        return True

    async def keep_result(self, request_id: str, content: bytes) -> bool:
        """Store a result; return False if the id already has one, which stays.

        Raises:
            ResultTooLargeError: the server or the bucket accepts no result of this size.
        """
        from nats.js.errors import APIError, KeyWrongLastSequenceError, NoStreamResponseError

        bucket, max_bytes = self._current_store, self._max_payload
        if len(content) + HEADERS_BYTES > max_bytes:
            raise ResultTooLargeError(f"{len(content)} bytes, and the server takes {max_bytes}")
        try:
            await self._server.call_server(bucket.create(request_id, content))
        except KeyWrongLastSequenceError:
            return False
        except APIError as error:
            if error.err_code == LARGER_THAN_STREAM_TAKES:
                raise ResultTooLargeError(f"{len(content)} bytes: {error.description}") from error
            raise self._server.refusal_error(
                f"bucket {self._name} takes no result: {error.description}"
            ) from error
        except NoStreamResponseError as error:
            raise self._server.refusal_error(f"bucket {self._name} is gone") from error
        return True

    @property
    def _current_store(self) -> "KeyValue":
        if self._store is None or self._client is None or not self._client.is_connected:
            raise self._server.connection_error("the connection ended")
        return self._store

    @property
    def _max_payload(self) -> int:
        return self._client.max_payload if self._client is not None else 0
