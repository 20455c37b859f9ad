"""The events of a plan in a Redis, which one ingester writes and all pods of the plan read.

A stream has two keys for its state and one for each entity's key:

- `head`: 8 bytes that name the stream's generation, and 8 that name the last write. Both are random.
- `state`: the StreamState that belongs to the last write.
- the rows of a key, behind the generation that they belong to. Rows of another generation do not count.

A write compares `head` in the script that stores rows and state: of two ingesters, or of one that was paused, only the one that
read the last write can write, and what it repeats after an answer was lost is not stored twice. A Redis that has lost its last
writes, or fails over to a replica without them, holds an older state with the events of that state: it is read again from there.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import ValidationError

from tidegate_dataplane.contract import EventStream, EventStreamReport, FeaturePlan
from tidegate_dataplane.event_store.redis_client import Command, RedisAccess, RedisClient, Reply
from tidegate_dataplane.event_store.report import SILENT_S, IngesterReport, list_reports
from tidegate_dataplane.event_store.rows import count_row_bytes, merge_rows
from tidegate_dataplane.event_store.state import StreamState
from tidegate_dataplane.event_store.writer import (
    OtherWriterError,
    StoreError,
    StoreFullError,
    StoreRefusedError,
    SweptKeys,
)

NAME_BYTES: Final = 8
"""Bytes of the name of a generation, and of a write."""
WRITE_TIMEOUT_S: Final = 5.0
EXPIRY_SLACK_MS: Final = 120_000
"""How much longer than `ttl` a key exists after its last write: an event may be a minute ahead."""
STATE_SLACK_MS: Final = 86_400_000
"""How much longer than `ttl` the state exists: as long as there are events of it."""
NO_EVICTION: Final = "noeviction"
_HASH_DIGITS: Final = 16
_STORE_SCRIPT: Final = b"""
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[4])
redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
for i = 3, #KEYS do
  local rows = ARGV[i + 3]
  if rows == '' then redis.call('DEL', KEYS[i]) else redis.call('SET', KEYS[i], rows, 'PX', ARGV[5]) end
end
return 1
"""
"""The first write needs memory, so that a full Redis refuses before anything has changed."""


class RedisEventStore:
    """The events of the streams of one plan; threads may share it."""

    def __init__(self, access: RedisAccess, plan: FeaturePlan) -> None:
        """`access` is that of the plan's store."""
        self._access = access
        self._client = RedisClient(access)
        self._streams = {stream.name: stream for stream in plan.streams}
        self._prefix = f"{access.order.key_prefix}/{plan.hash[:_HASH_DIGITS]}".encode()
        self._last_writes: dict[str, tuple[bytes, StreamState]] = {}
        """By stream: the head and the state that this process has read or written last."""

    def start_connecting(self) -> None:
        """Begin to connect, so that the next call need not wait for it."""
        self._client.start_connecting()

    def close_connection(self) -> None:
        """Close the connection."""
        self._client.close_connection()

    def read_rows(self, stream: str, keys: Sequence[bytes]) -> list[bytes]:
        """Return the rows of each key, empty for unknown ones."""
        return self.read_streams({stream: keys}, WRITE_TIMEOUT_S)[stream]

    def read_streams(self, keys: Mapping[str, Sequence[bytes]], timeout_s: float) -> dict[str, list[bytes]]:
        """Return the rows of each key of each stream, in one round trip.

        Raises:
            StoreError: not within `timeout_s`, or the store refuses.
        """
        commands = [self._read_command(stream, stream_keys) for stream, stream_keys in keys.items()]
        replies = self._client.call_server(commands, timeout_s)
        return {
            stream: _select_generation(self._parse_values(reply, 1 + len(keys[stream])))[1]
            for stream, reply in zip(keys, replies, strict=True)
        }

    def read_state(self, stream: str) -> StreamState:
        """Return how far the stream was read, and write after that.

        Raises:
            StoreError: it cannot be read or is damaged, or Redis would lose events without a trace.
        """
        info, heads = self._client.call_server(
            [
                (b"INFO", b"memory"),
                (b"MGET", self._make_key(stream, b"head"), self._make_key(stream, b"state")),
            ],
            WRITE_TIMEOUT_S,
        )
        self._check_eviction(info)
        head, content = self._parse_values(heads, 2)
        state = self._parse_state(stream, content) if head and content else StreamState()
        self._last_writes[stream] = (head, state)
        return state

    def store_events(
        self,
        stream: str,
        events: Mapping[bytes, Sequence[bytes]],
        *,
        before: StreamState,
        after: StreamState,
        now_ms: int,
    ) -> None:
        """Add rows by key and replace the state `before` by `after`, all or nothing.

        Raises:
            OtherWriterError: the state is not `before`.
            StoreError: nothing was stored, or it is not known, until `read_state` returns.
        """
        declared = self._streams[stream]
        head = self._take_head(stream, before)
        keys = list(events)
        (reply,) = self._client.call_server([self._read_command(stream, keys)], WRITE_TIMEOUT_S)
        stored_head, rows = _select_generation(self._parse_values(reply, 1 + len(keys)))
        if stored_head != head:
            raise _make_conflict(stream)
        generation = head[:NAME_BYTES] or secrets.token_bytes(NAME_BYTES)
        merged = [
            merge_rows(
                stored,
                events[key],
                row_bytes=count_row_bytes(declared.fields),
                limit=declared.max_events,
                after_ms=now_ms - declared.ttl_ms,
                now_ms=now_ms,
            )
            for key, stored in zip(keys, rows, strict=True)
        ]
        self._write_state(declared, head, generation, after, dict(zip(keys, merged, strict=True)))

    def confirm_state(self, stream: str) -> None:
        """Check that Redis has the last write of this process: a restart or a failover may have taken it.

        Raises:
            OtherWriterError: it has another one.
            StoreError: it does not answer.
        """
        (head,) = self._client.call_server([(b"GET", self._make_key(stream, b"head"))], WRITE_TIMEOUT_S)
        last_head, _ = self._last_writes.get(stream, (b"", None))
        if (head or b"") != last_head:
            raise _make_conflict(stream)

    def remove_events(self, stream: str, after: StreamState) -> None:
        """Begin a generation without events, and replace the state; the rows of the one before expire."""
        head, _ = self._last_writes.pop(stream, (b"", None))
        self._write_state(self._streams[stream], head, secrets.token_bytes(NAME_BYTES), after, {})

    def remove_expired(self, stream: str, now_ms: int, cursor: bytes = b"") -> SweptKeys:
        """Extend the life of the state of a quiet stream: Redis itself removes expired keys."""
        expiry = b"%d" % (self._streams[stream].ttl_ms + STATE_SLACK_MS)
        names = (b"head", b"state")
        self._client.call_server(
            [(b"PEXPIRE", self._make_key(stream, name), expiry) for name in names], WRITE_TIMEOUT_S
        )
        return SweptKeys(0, b"")

    def publish_report(self, report: IngesterReport) -> None:
        """Store how current the events are, for the agents of all pods."""
        expiry = b"%d" % STATE_SLACK_MS
        command = (b"SET", self._prefix + b"/report", report.to_json().encode(), b"PX", expiry)
        self._client.call_server([command], WRITE_TIMEOUT_S)

    def release_readers(self) -> int:
        """Return 0: Redis does not know its readers."""
        return 0

    def read_published(self, timeout_s: float = WRITE_TIMEOUT_S) -> tuple[EventStreamReport, ...]:
        """Return the last report, aged; none if there is none.

        Raises:
            StoreFullError: it is old, and Redis is full, so that the ingester cannot replace it.
            StoreError: it cannot be read.
        """
        info, content = self._client.call_server(
            [(b"INFO", b"memory"), (b"GET", self._prefix + b"/report")], timeout_s
        )
        try:
            report = IngesterReport.model_validate_json(content if isinstance(content, bytes) else b"")
        except ValidationError:
            return ()
        memory = _parse_info(info)
        limit = int(memory.get("maxmemory", 0))
        if time.time() - report.at_s > SILENT_S and 0 < limit <= int(memory.get("used_memory", 0)):
            raise StoreFullError(
                f"{self._access.server_title}: its maxmemory of {limit} bytes is used: raise it, or lower ttl or maxEvents of the streams"
            )
        return list_reports(report, "the ingester")

    def _write_state(
        self,
        stream: EventStream,
        head: bytes,
        generation: bytes,
        after: StreamState,
        rows: Mapping[bytes, bytes],
    ) -> None:
        head_after = generation + secrets.token_bytes(NAME_BYTES)
        keys = [self._make_key(stream.name, name) for name in (b"head", b"state")]
        keys += [self._make_event_key(stream.name, key) for key in rows]
        values = [
            head,
            head_after,
            after.to_json().encode(),
            b"%d" % (stream.ttl_ms + STATE_SLACK_MS),
            b"%d" % (stream.ttl_ms + EXPIRY_SLACK_MS),
            *(generation + merged if merged else b"" for merged in rows.values()),
        ]
        command = (b"EVAL", _STORE_SCRIPT, b"%d" % len(keys), *keys, *values)
        (stored,) = self._client.call_server([command], WRITE_TIMEOUT_S)
        if stored != 1:
            raise _make_conflict(stream.name)
        self._last_writes[stream.name] = (head_after, after)

    def _take_head(self, stream: str, before: StreamState) -> bytes:
        """Return the head that belongs to `before`, and forget it until the write has succeeded."""
        head, state = self._last_writes.pop(stream, (b"", None))
        if state != before:
            raise _make_conflict(stream)
        return head

    def _read_command(self, stream: str, keys: Sequence[bytes]) -> Command:
        return (
            b"MGET",
            self._make_key(stream, b"head"),
            *(self._make_event_key(stream, key) for key in keys),
        )

    def _make_key(self, stream: str, name: bytes) -> bytes:
        return b"%b/%b/%b" % (self._prefix, stream.encode(), name)

    def _make_event_key(self, stream: str, key: bytes) -> bytes:
        return self._make_key(stream, b"events/" + key)

    def _parse_values(self, reply: Reply, count: int) -> list[bytes]:
        """Return the `count` values of an MGET, empty for absent keys."""
        if not isinstance(reply, list) or len(reply) != count:
            raise StoreError(
                f"{self._access.server_title}: MGET of {count} keys did not return {count} values"
            )
        return [value if isinstance(value, bytes) else b"" for value in reply]

    def _parse_state(self, stream: str, content: bytes) -> StreamState:
        try:
            return StreamState.model_validate_json(content)
        except ValidationError as error:
            name = self._make_key(stream, b"head").decode()
            raise StoreRefusedError(
                f"{self._access.server_title}: the state of stream {stream!r} is damaged: delete the key {name}, and the stream is "
                "read again"
            ) from error

    def _check_eviction(self, info: Reply) -> None:
        policy = _parse_info(info).get("maxmemory_policy", NO_EVICTION)
        if policy != NO_EVICTION:
            raise StoreRefusedError(
                f"{self._access.server_title}: maxmemory-policy {policy} would drop events without a trace: set {NO_EVICTION}"
            )


def _parse_info(reply: Reply) -> dict[str, str]:
    """Return the fields of an INFO."""
    lines = reply.decode(errors="replace").splitlines() if isinstance(reply, bytes) else ()
    return {name: value for name, _, value in (line.partition(":") for line in lines)}


def _select_generation(values: Sequence[bytes]) -> tuple[bytes, list[bytes]]:
    """Return the head and the rows that belong to its generation; without a head there are none."""
    head, generation = values[0], values[0][:NAME_BYTES]
    return head, [
        value[NAME_BYTES:] if generation and value[:NAME_BYTES] == generation else b"" for value in values[1:]
    ]


def _make_conflict(stream: str) -> OtherWriterError:
    return OtherWriterError(f"stream {stream!r} was written by another process, or its last write is lost")
