"""Work queue: one worker at a time reconciles a key, again when it changed meanwhile, later when it failed."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeAlias

import structlog

from tidegate.api.meta import ObjectKey
from tidegate.errors import PermanentError, RetryableError
from tidegate.kube.backoff import Backoff
from tidegate.kube.thread_guard import ThreadGuard
from tidegate.runtime.clock import Clock, Timer
from tidegate.runtime.queue_metrics import QueueMetrics, ReconcileResult
from tidegate.telemetry.tracing import NO_SPAN, Attributes, TraceSpan, start_span

# Bring one object to its desired state; a returned timedelta requeues it after that long.
Reconcile: TypeAlias = Callable[[ObjectKey], Awaitable[timedelta | None]]
HasBegun: TypeAlias = Callable[[ObjectKey], bool]
"""Predicate: an earlier reconcile has already created something for the object."""
ReportCrash: TypeAlias = Callable[[ObjectKey, Exception], Awaitable[None]]
"""Report an unexpected exception of a reconcile to the owner of its object."""

_BEGUN_IN_A_ROW: Final = 9
"""Number of begun keys that are taken before a fresh one, where both wait."""

_LIVENESS_SLACK: Final = timedelta(minutes=1)

log: Final = structlog.stdlib.get_logger()


async def _report_nothing(_key: ObjectKey, _error: Exception) -> None:
    pass


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Concurrency, timeout, backoff and resync period of a queue."""

    workers: int = 10
    backoff: Backoff = field(default_factory=Backoff)
    attempt_limit: timedelta = timedelta(minutes=5)
    """Time after which a reconcile is cancelled and counts as failed, so that it cannot block its worker."""
    resync_every: timedelta = timedelta(minutes=10)


@dataclass(slots=True)
class _NamespaceLane:
    """Waiting keys of one namespace in order of arrival, begun ones before fresh ones, with a share for the fresh."""

    begun: deque[ObjectKey] = field(default_factory=lambda: deque[ObjectKey]())
    fresh: deque[ObjectKey] = field(default_factory=lambda: deque[ObjectKey]())
    in_a_row: int = 0

    def __bool__(self) -> bool:
        return bool(self.begun or self.fresh)

    def take_key(self) -> ObjectKey:
        """Return the next key; raise IndexError when none waits."""
        if self.begun and (self.in_a_row < _BEGUN_IN_A_ROW or not self.fresh):
            self.in_a_row += 1
            return self.begun.popleft()
        self.in_a_row = 0
        return self.fresh.popleft()


class WorkQueue:
    """client-go's work queue in asyncio, with a lane for each namespace; lanes take turns, however long they are.

    Within a lane, begun objects come before fresh ones: of a thousand that are created at once, the first become ready while
    others wait, and a change of one that serves does not wait behind new ones.

    `add` may be called before `run` and from anywhere on the event loop. It never waits.
    """

    def __init__(
        self,
        name: str,
        reconcile: Reconcile,
        *,
        clock: Clock,
        metrics: QueueMetrics,
        settings: QueueSettings | None = None,
        spans: TraceSpan = NO_SPAN,
        begun: HasBegun = lambda _: True,
        report_crash: ReportCrash = _report_nothing,
    ) -> None:
        """Create a queue; `spans` is the root of its traces, and `begun` is called when a key is added."""
        self.name: Final = name
        self._spans = spans
        self._reconcile = reconcile
        self._clock = clock
        self._settings = settings or QueueSettings()
        self._thread = ThreadGuard()
        self._begun = begun
        self._report_crash = report_crash
        self._lanes: dict[str, _NamespaceLane] = {}
        self._waiting_since: dict[ObjectKey, float] = {}
        self._in_progress: dict[ObjectKey, float] = {}
        self._dirty: set[ObjectKey] = set()
        self._failures: dict[ObjectKey, int] = {}
        self._timers: dict[ObjectKey, tuple[float, Timer]] = {}
        self._work = asyncio.Event()
        self._stopping = False
        self._progressed_at = clock.monotonic()
        self._metrics = _QueueLabels(metrics, name)
        metrics.depth.labels(name).set_function(lambda: len(self._waiting_since))
        metrics.in_progress.labels(name).set_function(lambda: len(self._in_progress))
        metrics.oldest_seconds.labels(name).set_function(self._oldest_s)

    def __len__(self) -> int:
        """Return the number of keys that wait for a worker."""
        return len(self._waiting_since)

    @property
    def is_idle(self) -> bool:
        """Return whether no key waits for a worker or is with one; keys that are due later do not count."""
        return not self._waiting_since and not self._in_progress

    @property
    def scheduled_count(self) -> int:
        """Return the number of keys that are due later."""
        return len(self._timers)

    def add(self, key: ObjectKey) -> None:
        """Reconcile a key as soon as a worker is free; a waiting key is not added twice.

        Raise WrongThreadError off the event loop.
        """
        self._thread.check_thread(f"queue {self.name}")
        self._cancel_timer(key)
        if key in self._in_progress:
            self._dirty.add(key)
        elif key not in self._waiting_since:
            if self.is_idle:
                self._progressed_at = self._clock.monotonic()
            begun = self._begun(key)
            self._waiting_since[key] = self._clock.monotonic()
            lane = self._lanes.setdefault(key.namespace, _NamespaceLane())
            (lane.begun if begun else lane.fresh).append(key)
            self._work.set()

    def add_after(self, key: ObjectKey, delay: timedelta) -> None:
        """Reconcile a key after `delay`, or earlier if it is added meanwhile."""
        seconds = max(0.0, delay.total_seconds())
        due = self._clock.monotonic() + seconds
        timer = self._timers.get(key)
        if timer is not None and timer[0] <= due:
            return
        self._cancel_timer(key)
        self._timers[key] = (due, self._clock.call_later(seconds, lambda: self._add_due(key)))

    def stalled_for(self) -> timedelta:
        """Return how long keys have waited without a worker that takes or finishes any."""
        return (
            timedelta() if self.is_idle else timedelta(seconds=self._clock.monotonic() - self._progressed_at)
        )

    def check_liveness(self) -> str | None:
        """Return the failure for a probe when no worker makes progress or a key was lost, else None.

        Stuck attempts are cancelled, so workers that make no progress for longer have failed. The age of a key proves nothing: it
        gets its turn while workers make progress, however long its lane is.
        """
        stalled = self.stalled_for()
        if stalled > self._settings.attempt_limit + _LIVENESS_SLACK:
            return f"queue {self.name}: no worker has got on for {stalled.total_seconds():.0f} s with {len(self)} keys waiting"
        lost = self._waiting_since.keys() - {
            key for lane in self._lanes.values() for keys in (lane.begun, lane.fresh) for key in keys
        }
        if lost:
            return f"queue {self.name}: {len(lost)} keys wait and are in no lane, such as {min(lost)}"
        return None

    async def run(self) -> None:
        """Work until `stop`, or until cancelled; cancelling interrupts attempts in progress, stopping does not."""
        self._stopping = False
        async with asyncio.TaskGroup() as group:
            for number in range(self._settings.workers):
                group.create_task(self._run_worker(), name=f"{self.name}-{number}")

    def stop(self) -> None:
        """Let `run` return when every worker has finished its attempt; waiting keys stay."""
        self._stopping = True
        self._work.set()

    def clear(self) -> None:
        """Forget all keys that wait or are due later: the next leader starts from a full listing."""
        self._lanes.clear()
        self._waiting_since.clear()
        self._failures.clear()
        self._dirty.clear()
        for key in tuple(self._timers):
            self._cancel_timer(key)

    async def resync_keys(self, keys: Callable[[], Iterable[ObjectKey]]) -> None:
        """Add every key once in each period, evenly spread, until cancelled, in case the watch missed an event."""
        period = self._settings.resync_every
        while True:
            await self._clock.sleep(period.total_seconds())
            every = tuple(keys())
            for number, key in enumerate(every):
                self.add_after(key, period * (number / len(every)))

    async def _run_worker(self) -> None:
        while not self._stopping:
            key = self._take_key()
            if key is None:
                self._work.clear()
                await self._work.wait()
                continue
            started = self._clock.monotonic()
            try:
                await self._attempt_reconcile(key)
            finally:
                self._finish_key(key, started)
            # A reconcile without changes never awaits: yield, so that probes and watches run between a thousand of them.
            await asyncio.sleep(0)

    def _take_key(self) -> ObjectKey | None:
        """Return the next key from the lane whose turn it is; the lane then moves to the end."""
        if not self._lanes:
            return None
        namespace = next(iter(self._lanes))
        lane = self._lanes.pop(namespace)
        key = lane.take_key()
        if lane:
            self._lanes[namespace] = lane
        now = self._progressed_at = self._clock.monotonic()
        self._metrics.wait_seconds.observe(now - self._waiting_since.pop(key))
        self._in_progress[key] = now
        return key

    def _finish_key(self, key: ObjectKey, started: float) -> None:
        now = self._progressed_at = self._clock.monotonic()
        self._metrics.reconcile_seconds.observe(now - started)
        self._in_progress.pop(key, None)
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)

    async def _attempt_reconcile(self, key: ObjectKey) -> None:
        """Reconcile a key once, then requeue or retry it."""
        described: Attributes = {"tidegate.queue": self.name, "tidegate.object": str(key)}
        with (
            structlog.contextvars.bound_contextvars(queue=self.name, key=str(key)),
            start_span("reconcile", described, root=self._spans) as attempt,
        ):
            try:
                async with asyncio.timeout(self._settings.attempt_limit.total_seconds()):
                    requeue_after = await self._reconcile(key)
            except PermanentError as exc:
                self._failures.pop(key, None)
                self._count_result(attempt, ReconcileResult.PERMANENT, exc)
                log.warning("reconcile_refused", error=str(exc))
            except (RetryableError, TimeoutError) as exc:
                self._count_result(attempt, ReconcileResult.RETRIED, exc)
                self._retry_later(key, exc)
            except Exception as exc:
                self._count_result(attempt, ReconcileResult.CRASHED, exc)
                log.error("reconcile_crashed", exc_info=exc)
                self._retry_later(key, exc)
                await self._try_to_report(key, exc)
            else:
                self._failures.pop(key, None)
                self._count_result(
                    attempt, ReconcileResult.DONE if requeue_after is None else ReconcileResult.REQUEUED
                )
                if requeue_after is not None:
                    self.add_after(key, requeue_after)

    def _count_result(
        self, attempt: TraceSpan, result: ReconcileResult, error: Exception | None = None
    ) -> None:
        self._metrics.count_result(result)
        attempt.add_attributes({"tidegate.result": result.value})
        if error is not None:
            attempt.mark_failed(str(error) or type(error).__name__)

    def _retry_later(self, key: ObjectKey, error: Exception) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = self._settings.backoff.compute_delay(failures)
        minimum = error.retry_after if isinstance(error, RetryableError) else None
        delay = max(delay, minimum or delay)
        self._metrics.retries.inc()
        log.info(
            "reconcile_failed",
            error=str(error) or type(error).__name__,
            failures=failures,
            again_in_s=round(delay.total_seconds(), 3),
        )
        self.add_after(key, delay)

    async def _try_to_report(self, key: ObjectKey, error: Exception) -> None:
        """Report a crash; what raises an exception here as well is logged, so that the worker goes on."""
        try:
            await self._report_crash(key, error)
        except Exception as failure:
            log.error("crash_not_reported", exc_info=failure)

    def _add_due(self, key: ObjectKey) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _cancel_timer(self, key: ObjectKey) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer[1].cancel()

    def _oldest_s(self) -> float:
        oldest = next(iter(self._waiting_since.values()), math.inf)
        return max(0.0, self._clock.monotonic() - oldest) if oldest < math.inf else 0.0


class _QueueLabels:
    """Metrics of one queue, with its label bound once."""

    def __init__(self, metrics: QueueMetrics, queue: str) -> None:
        self.wait_seconds = metrics.wait_seconds.labels(queue)
        self.reconcile_seconds = metrics.reconcile_seconds.labels(queue)
        self.retries = metrics.retries.labels(queue)
        self._results = {result: metrics.results.labels(queue, result.value) for result in ReconcileResult}

    def count_result(self, result: ReconcileResult) -> None:
        self._results[result].inc()
