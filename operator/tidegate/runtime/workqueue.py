"""The work queue: a key is reconciled by one worker at a time, again when it changed meanwhile, later when it failed."""

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
from tidegate.kube.one_thread import OneThread
from tidegate.runtime.clock import Clock, Timer
from tidegate.runtime.queue_metrics import QueueMetrics, Result
from tidegate.telemetry.tracing import NOTHING, Attributes, Span, span

# Brings one object to its desired state; a timedelta asks to look again after that long.
Reconcile: TypeAlias = Callable[[ObjectKey], Awaitable[timedelta | None]]
Begun: TypeAlias = Callable[[ObjectKey], bool]
"""Whether something has been made for an object already."""

_BEGUN_IN_A_ROW: Final = 9
"""So many keys that have begun are taken before one that has not, where both wait."""

_LIVENESS_SLACK: Final = timedelta(minutes=1)

log: Final = structlog.stdlib.get_logger()


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """How much at once, and how patient."""

    workers: int = 10
    backoff: Backoff = field(default_factory=Backoff)
    attempt_limit: timedelta = timedelta(minutes=5)
    """A reconcile that takes longer is cancelled and counts as failed, so that it cannot hold its worker."""
    resync_every: timedelta = timedelta(minutes=10)


@dataclass(slots=True)
class _Lane:
    """The keys of one namespace that wait, in the order in which they came; those that have begun come first, but not all of them."""

    begun: deque[ObjectKey] = field(default_factory=lambda: deque[ObjectKey]())
    fresh: deque[ObjectKey] = field(default_factory=lambda: deque[ObjectKey]())
    in_a_row: int = 0

    def __bool__(self) -> bool:
        return bool(self.begun or self.fresh)

    def take(self) -> ObjectKey:
        """The next key. Raises IndexError when none waits."""
        if self.begun and (self.in_a_row < _BEGUN_IN_A_ROW or not self.fresh):
            self.in_a_row += 1
            return self.begun.popleft()
        self.in_a_row = 0
        return self.fresh.popleft()


class WorkQueue:
    """client-go's work queue in asyncio, with lanes: each namespace gets its turn, however many keys it adds.

    Within a lane, objects that have begun come before those that have not: of a thousand that are created at once, the first are ready
    while others wait, and a change of one that serves does not wait behind births.

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
        spans: Span = NOTHING,
        begun: Begun = lambda _: True,
    ) -> None:
        """`spans` is the root of those of the process. `begun` is asked when a key is added."""
        self.name: Final = name
        self._spans = spans
        self._reconcile = reconcile
        self._clock = clock
        self._settings = settings or QueueSettings()
        self._thread = OneThread()
        self._begun = begun
        self._lanes: dict[str, _Lane] = {}
        self._waiting_since: dict[ObjectKey, float] = {}
        self._in_progress: dict[ObjectKey, float] = {}
        self._dirty: set[ObjectKey] = set()
        self._failures: dict[ObjectKey, int] = {}
        self._timers: dict[ObjectKey, tuple[float, Timer]] = {}
        self._work = asyncio.Event()
        self._stopping = False
        self._progressed_at = clock.monotonic()
        self._metrics = _Labelled(metrics, name)
        metrics.depth.labels(name).set_function(lambda: len(self._waiting_since))
        metrics.in_progress.labels(name).set_function(lambda: len(self._in_progress))
        metrics.oldest_seconds.labels(name).set_function(self._oldest_s)

    def __len__(self) -> int:
        """Number of keys that wait for a worker."""
        return len(self._waiting_since)

    @property
    def idle(self) -> bool:
        """Whether nothing waits for a worker or is with one; keys that are due later do not count."""
        return not self._waiting_since and not self._in_progress

    @property
    def scheduled(self) -> int:
        """Number of keys that are due later."""
        return len(self._timers)

    def add(self, key: ObjectKey) -> None:
        """Look at this key as soon as a worker is free; a key that waits already is not added twice.

        Raises WrongThreadError off the event loop.
        """
        self._thread.check(f"queue {self.name}")
        self._cancel_timer(key)
        if key in self._in_progress:
            self._dirty.add(key)
        elif key not in self._waiting_since:
            if self.idle:
                self._progressed_at = self._clock.monotonic()
            begun = self._begun(key)
            self._waiting_since[key] = self._clock.monotonic()
            lane = self._lanes.setdefault(key.namespace, _Lane())
            (lane.begun if begun else lane.fresh).append(key)
            self._work.set()

    def add_after(self, key: ObjectKey, delay: timedelta) -> None:
        """Look at this key after `delay`, or earlier if something else asks for it."""
        seconds = max(0.0, delay.total_seconds())
        due = self._clock.monotonic() + seconds
        known = self._timers.get(key)
        if known is not None and known[0] <= due:
            return
        self._cancel_timer(key)
        self._timers[key] = (due, self._clock.call_later(seconds, lambda: self._due(key)))

    def stalled_for(self) -> timedelta:
        """How long there has been work and no worker has taken or finished any."""
        return timedelta() if self.idle else timedelta(seconds=self._clock.monotonic() - self._progressed_at)

    def liveness(self) -> str | None:
        """What is wrong, for a probe: no worker got on although a stuck attempt should long have been cut off, or a key was lost.

        A key in a lane gets its turn as long as workers get on, however long the lane is; so its age alone says nothing.
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
        """Works until `stop` or until cancelled. Cancelling cuts off what is in progress; stopping does not."""
        self._stopping = False
        async with asyncio.TaskGroup() as group:
            for number in range(self._settings.workers):
                group.create_task(self._worker(), name=f"{self.name}-{number}")

    def stop(self) -> None:
        """Lets `run` return once every worker has finished what it is at; what waits is left."""
        self._stopping = True
        self._work.set()

    def clear(self) -> None:
        """Forgets everything that waits or is due later: the next leader starts from a full listing."""
        self._lanes.clear()
        self._waiting_since.clear()
        self._failures.clear()
        self._dirty.clear()
        for key in tuple(self._timers):
            self._cancel_timer(key)

    async def resync(self, keys: Callable[[], Iterable[ObjectKey]]) -> None:
        """Adds every key once in each period, evenly spread, until cancelled: the net below missed events."""
        period = self._settings.resync_every
        while True:
            await self._clock.sleep(period.total_seconds())
            every = tuple(keys())
            for number, key in enumerate(every):
                self.add_after(key, period * (number / len(every)))

    async def _worker(self) -> None:
        while not self._stopping:
            key = self._take()
            if key is None:
                self._work.clear()
                await self._work.wait()
                continue
            started = self._clock.monotonic()
            try:
                await self._attempt(key)
            finally:
                self._finish(key, started)
            # A reconcile that finds nothing to do never waits; probes and watches need their turn between a thousand.
            await asyncio.sleep(0)

    def _take(self) -> ObjectKey | None:
        """The next key, from the lane whose turn it is; that lane then goes to the end of the row."""
        if not self._lanes:
            return None
        namespace = next(iter(self._lanes))
        lane = self._lanes.pop(namespace)
        key = lane.take()
        if lane:
            self._lanes[namespace] = lane
        now = self._progressed_at = self._clock.monotonic()
        self._metrics.wait_seconds.observe(now - self._waiting_since.pop(key))
        self._in_progress[key] = now
        return key

    def _finish(self, key: ObjectKey, started: float) -> None:
        now = self._progressed_at = self._clock.monotonic()
        self._metrics.reconcile_seconds.observe(now - started)
        self._in_progress.pop(key, None)
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)

    async def _attempt(self, key: ObjectKey) -> None:
        """One reconcile, and what follows from how it ends."""
        described: Attributes = {"tidegate.queue": self.name, "tidegate.object": str(key)}
        with (
            structlog.contextvars.bound_contextvars(queue=self.name, key=str(key)),
            span("reconcile", described, root=self._spans) as doing,
        ):
            try:
                async with asyncio.timeout(self._settings.attempt_limit.total_seconds()):
                    again = await self._reconcile(key)
            except PermanentError as exc:
                self._failures.pop(key, None)
                self._count(doing, Result.PERMANENT, exc)
                log.warning("reconcile_refused", error=str(exc))
            except (RetryableError, TimeoutError) as exc:
                self._count(doing, Result.RETRIED, exc)
                self._retry(key, exc)
            except Exception as exc:
                self._count(doing, Result.CRASHED, exc)
                log.error("reconcile_crashed", exc_info=exc)
                self._retry(key, exc)
            else:
                self._failures.pop(key, None)
                self._count(doing, Result.DONE if again is None else Result.REQUEUED)
                self._look_again(key, again)

    def _count(self, doing: Span, result: Result, error: Exception | None = None) -> None:
        self._metrics.count(result)
        doing.note({"tidegate.result": result.value})
        if error is not None:
            doing.fail(str(error) or type(error).__name__)

    def _look_again(self, key: ObjectKey, again: timedelta | None) -> None:
        if again is not None:
            self.add_after(key, again)

    def _retry(self, key: ObjectKey, error: Exception) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = self._settings.backoff.delay(failures)
        asked = error.retry_after if isinstance(error, RetryableError) else None
        delay = max(delay, asked or delay)
        self._metrics.retries.inc()
        log.info(
            "reconcile_failed",
            error=str(error) or type(error).__name__,
            failures=failures,
            again_in_s=round(delay.total_seconds(), 3),
        )
        self.add_after(key, delay)

    def _due(self, key: ObjectKey) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _cancel_timer(self, key: ObjectKey) -> None:
        known = self._timers.pop(key, None)
        if known is not None:
            known[1].cancel()

    def _oldest_s(self) -> float:
        oldest = next(iter(self._waiting_since.values()), math.inf)
        return max(0.0, self._clock.monotonic() - oldest) if oldest < math.inf else 0.0


class _Labelled:
    """The metrics of one queue, its label bound once."""

    def __init__(self, metrics: QueueMetrics, queue: str) -> None:
        self.wait_seconds = metrics.wait_seconds.labels(queue)
        self.reconcile_seconds = metrics.reconcile_seconds.labels(queue)
        self.retries = metrics.retries.labels(queue)
        self._results = {result: metrics.results.labels(queue, result.value) for result in Result}

    def count(self, result: Result) -> None:
        self._results[result].inc()
