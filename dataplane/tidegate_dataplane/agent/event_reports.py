"""What the agent knows of the events that its pod's features are computed from, whichever store has them."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidegate_dataplane.contract import DesiredState, EventStreamReport, FeaturePlan, StreamProblem
from tidegate_dataplane.event_store.redis_client import RedisAccess
from tidegate_dataplane.event_store.redis_store import RedisEventStore
from tidegate_dataplane.event_store.report import read_report
from tidegate_dataplane.event_store.writer import StoreError

REPORT_TIMEOUT_S: Final = 0.5
"""The agent does nothing else while it reads a report."""
RETRY_S: Final = 2.0


class EventReports:
    """Reads the reports of the ingester: beside the pod's own store, or in a Redis. Blocks."""

    def __init__(self, events_dir: Path, secret_dir: Path, *, allow_loopback: bool) -> None:
        """`secret_dir` is where the Secret of a Redis is mounted."""
        self._events_dir = events_dir
        self._secret_dir = secret_dir
        self._allow_loopback = allow_loopback
        self._redis: _RedisReports | None = None

    def read_reports(self, desired: DesiredState | None) -> Sequence[EventStreamReport]:
        """Return how current the events of the order's streams are; none without streams, or before the first report."""
        if desired is None or desired.plan is None or not desired.plan.streams:
            return ()
        if desired.plan.store is None:
            return read_report(self._events_dir)
        if self._redis is None or self._redis.plan != desired.plan:
            self.close_connection()
            access = RedisAccess(desired.plan.store, self._secret_dir, allow_loopback=self._allow_loopback)
            self._redis = _RedisReports(desired.plan, access)
        return self._redis.read_reports(time.time())

    def close_connection(self) -> None:
        """Close the connection to a Redis."""
        if self._redis is not None:
            self._redis.store.close_connection()
        self._redis = None


class _RedisReports:
    """Reads the reports in a Redis; while it does not answer, the last one grows older."""

    def __init__(self, plan: FeaturePlan, access: RedisAccess) -> None:
        self.plan = plan
        self.store = RedisEventStore(access, plan)
        self._last = tuple(
            EventStreamReport(source=stream.name, caught_up=False, lag_s=stream.ttl_ms / 1000)
            for stream in plan.streams
        )
        self._failing_since_s = self._read_at_s = time.time()
        self._error: StoreError | None = None
        self._retry_at_s = 0.0

    def read_reports(self, now_s: float) -> Sequence[EventStreamReport]:
        if self._error is not None and now_s < self._retry_at_s:
            return self._explain_failure(self._error, now_s)
        try:
            reports = self.store.read_published(REPORT_TIMEOUT_S)
        except StoreError as error:
            if self._error is None:
                self._failing_since_s = now_s
            self._error, self._retry_at_s = error, now_s + RETRY_S
            return self._explain_failure(error, now_s)
        if reports:
            self._last, self._read_at_s = reports, now_s
        self._error = None
        return reports

    def _explain_failure(self, error: StoreError, now_s: float) -> Sequence[EventStreamReport]:
        problem = {
            "problem": StreamProblem.STREAM_REFUSED if error.refused else StreamProblem.STREAM_UNREACHABLE,
            "message": str(error),
            "failing_s": max(now_s - self._failing_since_s, 0.0),
        }
        age_s = max(now_s - self._read_at_s, 0.0)
        return [report.model_copy(update={**problem, "lag_s": report.lag_s + age_s}) for report in self._last]
