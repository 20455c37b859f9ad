"""The event store of a pod: an LMDB file that one process writes and others read at the same time.

Events and how far the stream was read are written in one transaction: whatever process ends, an event that the state
counts is stored, and no other. Writes are not flushed to the disk, which only matters if the node itself ends: a file from
before the node's last start is removed, and the streams are read again.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import lmdb

from tidegate_dataplane.contract import EventStream, EventStreamReport
from tidegate_dataplane.event_store.report import (
    REPORT_FILE,
    IngesterReport,
    read_boot_id,
    read_report,
    write_report,
)
from tidegate_dataplane.event_store.rows import count_row_bytes, merge_rows, read_time
from tidegate_dataplane.event_store.state import StreamState
from tidegate_dataplane.event_store.writer import OtherWriterError, StoreFullError, SweptKeys

FILE_NAME: Final = "events.mdb"
BOOT_FILE: Final = "boot-id"
MAX_STREAMS: Final = 64
MAX_READERS: Final = 512
SWEPT_KEYS: Final = 2_000
"""Keys that one transaction looks at for expired events."""
_RESERVE: Final = 16
"""One part in so many of the file is left for removals: LMDB writes each page that it changes to a free page first."""
_STATE: Final = b"state"


class EventStore:
    """The events of the streams of one plan. A process opens it once; its threads may share it."""

    def __init__(self, folder: Path, streams: Sequence[EventStream], *, max_bytes: int = 0) -> None:
        """Open the store in `folder`: to write at most `max_bytes` to it, and to make it; without a number to read it.

        Raises:
            lmdb.Error: it cannot be opened; there is none to read.
        """
        # The process that writes never only reads: LMDB knows readers by their process id, and the processes of two
        # containers may have the same.
        self._writable = writable = max_bytes > 0
        self._folder = folder
        self._most_bytes = max_bytes - max_bytes // _RESERVE
        if writable:
            folder.mkdir(parents=True, exist_ok=True)
            _remove_before_boot(folder)
        self._streams = {stream.name: stream for stream in streams}
        self._environment: Any = lmdb.open(
            str(folder / FILE_NAME),
            subdir=False,
            map_size=max_bytes,
            max_dbs=2 * MAX_STREAMS,
            max_readers=MAX_READERS,
            readonly=not writable,
            sync=False,
            metasync=False,
            mode=0o660,
        )
        self._events = {
            name: self._environment.open_db(name.encode(), create=writable) for name in self._streams
        }
        self._states = {
            name: self._environment.open_db(f"{name}.state".encode(), create=writable)
            for name in self._streams
        }

    def close_file(self) -> None:
        """Close the file."""
        self._environment.close()

    def read_rows(self, stream: str, keys: Sequence[bytes]) -> list[bytes]:
        """Return the rows of each key, empty for unknown ones."""
        with self._environment.begin(db=self._events[stream]) as transaction:
            return [transaction.get(key, b"") for key in keys]

    def read_state(self, stream: str) -> StreamState:
        """Return how far the stream was read."""
        with self._environment.begin(write=self._writable) as transaction:
            return _parse_state(transaction, self._states[stream])

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

        Of each key it drops what is older than the stream's `ttl_ms` and `max_events` say, seen from `now_ms`.

        Raises:
            StoreFullError: there is no room.
            OtherWriterError: the state is not `before`.
        """
        try:
            self._write_events(stream, events, before, after, now_ms)
        except StoreFullError as error:
            if error.__cause__ is None:
                raise
            # LMDB lacks free pages: those that the last transaction freed can be used after one more transaction.
            self._rewrite_state(stream)
            self._write_events(stream, events, before, after, now_ms)

    def confirm_state(self, stream: str) -> None:
        """Do nothing: a file on the pod's disk does not lose what was written while the node runs."""

    def remove_events(self, stream: str, after: StreamState) -> None:
        """Remove all events of a stream whose broker has begun it anew, and replace the state."""
        with self._begin_write() as transaction:
            transaction.drop(self._events[stream], delete=False)
            transaction.drop(self._states[stream], delete=False)
            transaction.put(_STATE, after.to_json().encode(), db=self._states[stream])

    def remove_expired(self, stream: str, now_ms: int, cursor: bytes = b"") -> SweptKeys:
        """Remove keys whose events have all expired at `now_ms`, among the next SWEPT_KEYS from `cursor` on.

        Raises:
            StoreFullError: there is no room for the pages that the removal of one key changes.
        """
        count = SWEPT_KEYS
        while True:
            try:
                return self._sweep_keys(stream, now_ms, cursor, count)
            except StoreFullError:
                if count == 1:
                    raise
                count //= 2

    def _write_events(
        self,
        stream: str,
        events: Mapping[bytes, Sequence[bytes]],
        before: StreamState,
        after: StreamState,
        now_ms: int,
    ) -> None:
        declared = self._streams[stream]
        row_bytes = count_row_bytes(declared.fields)
        with self._begin_write() as transaction:
            states, rows = self._states[stream], self._events[stream]
            if _parse_state(transaction, states) != before:
                raise OtherWriterError(f"stream {stream!r} was written by another process")
            used_before = self._count_used_bytes(transaction)
            for key, added in events.items():
                merged = merge_rows(
                    transaction.get(key, b"", db=rows),
                    added,
                    row_bytes=row_bytes,
                    limit=declared.max_events,
                    after_ms=now_ms - declared.ttl_ms,
                    now_ms=now_ms,
                )
                if merged:
                    transaction.put(key, merged, db=rows)
                else:
                    transaction.delete(key, db=rows)
            transaction.put(_STATE, after.to_json().encode(), db=states)
            used = self._count_used_bytes(transaction)
            if used > max(self._most_bytes, used_before):
                raise _full_error(f"it has {self._most_bytes} bytes")

    def _rewrite_state(self, stream: str) -> None:
        with self._begin_write() as transaction:
            state = transaction.get(_STATE, db=self._states[stream])
            if state is not None:
                transaction.put(_STATE, state, db=self._states[stream])

    def _sweep_keys(self, stream: str, now_ms: int, cursor: bytes, count: int) -> SweptKeys:
        row_bytes = count_row_bytes(self._streams[stream].fields)
        expired_ms = now_ms - self._streams[stream].ttl_ms
        removed = 0
        with self._begin_write() as transaction, transaction.cursor(self._events[stream]) as position:
            has_key = position.set_range(cursor)
            for _ in range(count):
                if not has_key:
                    return SweptKeys(removed, b"")
                rows = position.value()
                if not rows or read_time(rows, len(rows) - row_bytes) <= expired_ms:
                    removed += 1
                    has_key = position.delete() and bool(position.key())
                else:
                    has_key = position.next()
            return SweptKeys(removed, bytes(position.key()) if has_key else b"")

    def release_readers(self) -> int:
        """Release what readers that ended in the middle of a read left; return their number.

        Until then no page that they could see is written again. It must happen before another process gets the same id.
        """
        return int(self._environment.reader_check())

    def publish_report(self, report: IngesterReport) -> None:
        """Leave the report for the agent of this pod."""
        write_report(self._folder, report)

    def read_published(self) -> Sequence[EventStreamReport]:
        """Return the report of the process before this one; none if there was none since the node's start."""
        return read_report(self._folder)

    @contextmanager
    def _begin_write(self) -> Generator[Any]:
        try:
            with self._environment.begin(write=True) as transaction:
                yield transaction
        except (lmdb.MapFullError, lmdb.DiskError) as error:
            raise _full_error(str(error)) from error

    def _count_used_bytes(self, transaction: Any) -> int:
        """Return the size of the pages that hold events and states, without those that are free."""
        tables = [transaction.stat(table) for table in (*self._events.values(), *self._states.values())]
        return sum(
            (table["branch_pages"] + table["leaf_pages"] + table["overflow_pages"]) * table["psize"]
            for table in tables
        )


def _full_error(reason: str) -> StoreFullError:
    return StoreFullError(
        f"the event store is full ({reason}): raise spec.eventStorage, or lower ttl or maxEvents of the streams"
    )


def _remove_before_boot(folder: Path) -> None:
    """Remove a store that was written before the node's last start, since its last writes may be missing."""
    boot, record = read_boot_id(), folder / BOOT_FILE
    if record.exists() and record.read_text() == boot:
        return
    for path in (*folder.glob(f"{FILE_NAME}*"), folder / REPORT_FILE):
        path.unlink(missing_ok=True)
    record.write_text(boot)


def _parse_state(transaction: Any, states: Any) -> StreamState:
    content = transaction.get(_STATE, db=states)
    return StreamState() if content is None else StreamState.model_validate_json(content)
