"""The work queue: one worker per key, nothing lost, nothing hot, everybody gets a turn."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from builders.fake_clock import FakeClock, settle
from builders.waiting import ends_in_time, eventually
from tidegate.api.meta import ObjectKey
from tidegate.errors import ApiUnavailableError, InvalidSpecError, WrongThreadError
from tidegate.kube.backoff import Backoff
from tidegate.runtime.queue_metrics import QueueMetrics
from tidegate.runtime.workqueue import HasBegun, QueueSettings, WorkQueue

A, B = ObjectKey("ads", "a"), ObjectKey("ads", "b")
NO_JITTER = Backoff(initial=timedelta(seconds=1), cap=timedelta(seconds=60), jitter=0.0)


class Reconciler:
    """Records its calls; each ends as the test says: wait for a gate, take a while, raise, or return."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.calls: list[ObjectKey] = []
        self.running: list[ObjectKey] = []
        self.most_at_once = 0
        self.gates: dict[ObjectKey, asyncio.Event] = {}
        self.takes_s: dict[ObjectKey, float] = {}
        """How long the next call of a key takes."""
        self.answers: dict[ObjectKey, list[Exception | timedelta | None]] = {}

    async def __call__(self, key: ObjectKey) -> timedelta | None:
        assert key not in self.running, "one key with two workers at once"
        self.calls.append(key)
        self.running.append(key)
        self.most_at_once = max(self.most_at_once, len(self.running))
        try:
            if key in self.gates:
                await self.gates[key].wait()
            if key in self.takes_s:
                await self._clock.sleep(self.takes_s.pop(key))
            answers = self.answers.get(key)
            answer = answers.pop(0) if answers else None
            if isinstance(answer, Exception):
                raise answer
            return answer
        finally:
            self.running.remove(key)


class Bench:
    """A queue with a fake clock and a recording reconciler, its workers running."""

    def __init__(self, workers: int = 2, begun: HasBegun = lambda _: True, **settings: timedelta) -> None:
        self.clock = FakeClock()
        self.crashes: list[tuple[ObjectKey, str]] = []
        self.report_fails = False
        self.reconciler = Reconciler(self.clock)
        self.registry = CollectorRegistry()
        self.queue = WorkQueue(
            "test",
            self.reconciler,
            clock=self.clock,
            metrics=QueueMetrics(self.registry),
            settings=QueueSettings(workers=workers, backoff=NO_JITTER, **settings),
            begun=begun,
            report_crash=self._report_crash,
        )

    async def _report_crash(self, key: ObjectKey, error: Exception) -> None:
        self.crashes.append((key, type(error).__name__))
        if self.report_fails:
            raise ArithmeticError

    @property
    def calls(self) -> list[ObjectKey]:
        return self.reconciler.calls

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {"queue": "test", **labels})


@asynccontextmanager
async def running(bench: Bench) -> AsyncIterator[Bench]:
    task = asyncio.create_task(bench.queue.run())
    await settle()
    try:
        yield bench
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_a_key_added_many_times_is_reconciled_once() -> None:
    bench = Bench()
    for _ in range(100):
        bench.queue.add(A)
    async with running(bench):
        assert bench.calls == [A]
        assert bench.queue.is_idle


async def test_a_change_during_the_reconcile_runs_it_again_afterwards() -> None:
    async with running(Bench()) as bench:
        gate = bench.reconciler.gates[A] = asyncio.Event()
        bench.queue.add(A)
        await settle()
        bench.queue.add(A)
        bench.queue.add(A)
        await settle()
        assert bench.calls == [A]
        gate.set()
        await settle()
        assert bench.calls == [A, A]


async def test_several_keys_run_side_by_side_up_to_the_number_of_workers() -> None:
    async with running(Bench(workers=3)) as bench:
        keys = [ObjectKey("ads", str(number)) for number in range(10)]
        gate = asyncio.Event()
        bench.reconciler.gates = dict.fromkeys(keys, gate)
        for key in keys:
            bench.queue.add(key)
        await settle()
        assert len(bench.calls) == 3
        gate.set()
        await settle()
        assert bench.reconciler.most_at_once == 3
        assert sorted(bench.calls) == sorted(keys)


async def test_a_failure_is_retried_with_growing_pauses() -> None:
    async with running(Bench()) as bench:
        bench.reconciler.answers[A] = [ApiUnavailableError("gone")] * 3
        bench.queue.add(A)
        for pause, calls in ((0.9, 1), (0.1, 2), (1.9, 2), (0.1, 3), (3.9, 3), (0.1, 4)):
            await bench.clock.advance(pause)
            assert len(bench.calls) == calls
        assert bench.sample("tidegate_queue_retries_total") == 3


async def test_success_forgets_earlier_failures() -> None:
    async with running(Bench()) as bench:
        failure = ApiUnavailableError("gone")
        bench.reconciler.answers[A] = [failure, failure, None, failure]
        bench.queue.add(A)
        await bench.clock.advance(3)
        assert len(bench.calls) == 3
        bench.queue.add(A)
        await bench.clock.advance(1)
        assert len(bench.calls) == 5


async def test_a_pause_that_the_server_asked_for_is_kept() -> None:
    async with running(Bench()) as bench:
        bench.reconciler.answers[A] = [ApiUnavailableError("busy", retry_after=timedelta(seconds=30))]
        bench.queue.add(A)
        await bench.clock.advance(29)
        assert len(bench.calls) == 1
        await bench.clock.advance(1)
        assert len(bench.calls) == 2


async def test_what_only_a_person_can_cure_waits_for_the_next_event() -> None:
    async with running(Bench()) as bench:
        bench.reconciler.answers[A] = [InvalidSpecError("no")]
        bench.queue.add(A)
        await bench.clock.advance(100_000)
        assert len(bench.calls) == 1
        bench.queue.add(A)
        await settle()
        assert len(bench.calls) == 2
        assert bench.sample("tidegate_reconciles_total", result="permanent") == 1


async def test_a_bug_in_one_reconcile_does_not_end_the_others() -> None:
    async with running(Bench(workers=1)) as bench:
        bench.reconciler.answers[A] = [KeyError("bug")]
        bench.queue.add(A)
        bench.queue.add(B)
        await settle()
        assert bench.calls == [A, B]
        await bench.clock.advance(1)
        assert bench.calls == [A, B, A]
        assert bench.sample("tidegate_reconciles_total", result="crashed") == 1


async def test_only_a_crash_is_reported_to_the_owner_of_the_object() -> None:
    async with running(Bench(workers=1)) as bench:
        bench.reconciler.answers[A] = [KeyError("bug"), None]
        bench.reconciler.answers[B] = [ApiUnavailableError("busy"), InvalidSpecError("bad")]
        for key in (A, B):
            bench.queue.add(key)
        await bench.clock.advance(1)
        assert bench.calls == [A, B, A, B]
        assert bench.crashes == [(A, "KeyError")]


async def test_a_crash_that_cannot_be_reported_is_tried_again_and_stops_no_worker() -> None:
    async with running(Bench(workers=1)) as bench:
        bench.report_fails = True
        bench.reconciler.answers[A] = [KeyError("bug"), None]
        for key in (A, B):
            bench.queue.add(key)
        await bench.clock.advance(1)
        assert bench.calls == [A, B, A]


async def test_a_reconcile_asks_to_look_again() -> None:
    async with running(Bench()) as bench:
        bench.reconciler.answers[A] = [timedelta(seconds=30)]
        bench.queue.add(A)
        await bench.clock.advance(29)
        assert len(bench.calls) == 1
        await bench.clock.advance(1)
        assert len(bench.calls) == 2
        assert bench.queue.scheduled_count == 0


async def test_an_event_comes_before_a_timer_and_drops_it() -> None:
    async with running(Bench()) as bench:
        bench.queue.add_after(A, timedelta(seconds=30))
        bench.queue.add(A)
        await bench.clock.advance(100)
        assert len(bench.calls) == 1
        assert bench.clock.pending == 0


async def test_of_two_timers_the_earlier_counts() -> None:
    async with running(Bench()) as bench:
        bench.queue.add_after(A, timedelta(seconds=30))
        bench.queue.add_after(A, timedelta(seconds=10))
        bench.queue.add_after(A, timedelta(seconds=20))
        await bench.clock.advance(10)
        assert len(bench.calls) == 1
        await bench.clock.advance(100)
        assert len(bench.calls) == 1
        assert bench.clock.pending == 0


async def test_a_reconcile_that_hangs_is_cut_off_and_retried() -> None:
    async with running(Bench(workers=1, attempt_limit=timedelta(milliseconds=20))) as bench:
        bench.reconciler.gates[A] = asyncio.Event()
        bench.queue.add(A)
        await eventually(lambda: bench.queue.scheduled_count == 1, what="the attempt is cut off")
        bench.queue.add(B)
        await settle()
        assert bench.calls == [A, B]


async def test_a_crowded_namespace_does_not_hold_up_the_others() -> None:
    bench = Bench(workers=1)
    crowd = [ObjectKey("crowd", str(number)) for number in range(1000)]
    for key in crowd:
        bench.queue.add(key)
    bench.queue.add(A)
    async with running(bench):
        assert bench.calls.index(A) == 1


async def test_what_has_begun_is_finished_before_others_begin_and_holds_up_nobody_for_good() -> None:
    begun = {ObjectKey("ads", f"begun-{number}") for number in range(11)}
    bench = Bench(workers=1, begun=begun.__contains__)
    for number in range(3):
        bench.queue.add(ObjectKey("ads", f"fresh-{number}"))
    for key in sorted(begun):
        bench.queue.add(key)
    async with running(bench):
        await eventually(lambda: len(bench.calls) == 14, what="all keys")
    kinds = [key.name.partition("-")[0] for key in bench.calls]
    assert kinds == [*["begun"] * 9, "fresh", *["begun"] * 2, "fresh", "fresh"]


async def test_stop_finishes_what_is_in_progress_and_takes_no_more() -> None:
    bench = Bench(workers=1)
    gate = bench.reconciler.gates[A] = asyncio.Event()
    task = asyncio.create_task(bench.queue.run())
    bench.queue.add(A)
    bench.queue.add(B)
    await settle()
    bench.queue.stop()
    await settle()
    assert not task.done()
    gate.set()
    async with ends_in_time("the queue ends"):
        await task
    assert bench.calls == [A]


async def test_stop_ends_idle_workers_at_once() -> None:
    bench = Bench(workers=5)
    task = asyncio.create_task(bench.queue.run())
    await settle()
    bench.queue.stop()
    async with ends_in_time("idle workers end"):
        await task


async def test_a_cancelled_queue_can_run_again() -> None:
    bench = Bench(workers=1)
    bench.reconciler.gates[A] = asyncio.Event()
    async with running(bench):
        bench.queue.add(A)
        await settle()
    bench.queue.clear()
    bench.reconciler.gates.clear()
    async with running(bench):
        bench.queue.add(A)
        await settle()
    assert bench.calls == [A, A]


async def test_clear_forgets_what_waits_and_what_is_due() -> None:
    bench = Bench()
    bench.queue.add(A)
    bench.queue.add_after(B, timedelta(seconds=1))
    bench.queue.clear()
    async with running(bench):
        await bench.clock.advance(10)
    assert bench.calls == []


async def test_resync_spreads_all_keys_over_the_period() -> None:
    async with running(Bench(resync_every=timedelta(seconds=100))) as bench:
        keys = [ObjectKey("ads", str(number)) for number in range(10)]
        task = asyncio.create_task(bench.queue.resync_keys(lambda: keys))
        await bench.clock.advance(99)
        assert bench.calls == []
        await bench.clock.advance(51)
        assert len(bench.calls) == 6
        await bench.clock.advance(49)
        assert sorted(bench.calls) == keys
        task.cancel()


async def test_liveness_speaks_up_only_when_no_worker_gets_on() -> None:
    async with running(Bench(workers=1, attempt_limit=timedelta(minutes=5))) as bench:
        await bench.clock.advance(10_000)
        assert bench.queue.check_liveness() is None
        bench.reconciler.gates[A] = asyncio.Event()
        bench.queue.add(A)
        bench.queue.add(B)
        await bench.clock.advance(300)
        assert bench.queue.check_liveness() is None
        await bench.clock.advance(100)
        assert (
            bench.queue.check_liveness() == "queue test: no worker has got on for 400 s with 1 keys waiting"
        )


async def test_liveness_names_a_key_that_no_worker_will_ever_take() -> None:
    bench = Bench()
    bench.queue.add(A)
    bench.queue.add(B)
    bench.queue._lanes.clear()  # as threads once did, between the look for a lane and the end of it
    assert bench.queue.check_liveness() == "queue test: 2 keys wait and are in no lane, such as ads/a"


async def test_a_key_that_another_thread_adds_is_refused_and_harms_no_other() -> None:
    bench = Bench()
    bench.queue.add(A)
    with pytest.raises(WrongThreadError, match="queue test was changed in thread"):
        await asyncio.to_thread(bench.queue.add, B)
    assert len(bench.queue) == 1


async def test_metrics_tell_depth_and_age() -> None:
    bench = Bench()
    bench.queue.add(A)
    bench.queue.add(B)
    await bench.clock.advance(7)
    assert bench.sample("tidegate_queue_depth") == 2
    assert bench.sample("tidegate_queue_oldest_seconds") == 7
    async with running(bench):
        assert bench.sample("tidegate_queue_depth") == 0
        assert bench.sample("tidegate_reconcile_seconds_count") == 2


KEYS = [ObjectKey(namespace, name) for namespace in "xy" for name in "abc"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(KEYS)),
        st.tuples(st.just("later"), st.sampled_from(KEYS)),
        st.tuples(st.just("fail"), st.sampled_from(KEYS)),
        st.tuples(st.just("slow"), st.sampled_from(KEYS)),
        st.tuples(st.just("pass"), st.sampled_from(KEYS)),
    ),
    max_size=60,
)


@given(STEPS, st.integers(1, 4))
@example([("slow", KEYS[0]), ("pass", KEYS[0]), ("add", KEYS[0]), ("add", KEYS[1])], 1).via(
    "a change during a reconcile, while another object waits for the only worker"
)
def test_no_change_is_ever_lost(steps: list[tuple[str, ObjectKey]], workers: int) -> None:
    """Whatever happens in whatever order: each key is reconciled after its last change, and the queue comes to rest."""

    async def scenario() -> None:
        bench = Bench(workers=workers)
        changed: dict[ObjectKey, int] = {}
        async with running(bench):
            for action, key in steps:
                if action == "add":
                    bench.queue.add(key)
                elif action == "later":
                    bench.queue.add_after(key, timedelta(seconds=5))
                elif action == "fail":
                    bench.reconciler.answers.setdefault(key, []).append(ApiUnavailableError("no"))
                    bench.queue.add(key)
                elif action == "slow":
                    bench.reconciler.takes_s[key] = 3.0
                    bench.queue.add(key)
                else:
                    await bench.clock.advance(1)
                if action != "pass":
                    changed[key] = len(bench.calls)
            await bench.clock.advance(1_000)
            for key, calls_before in changed.items():
                assert key in bench.calls[calls_before:]
            assert bench.queue.is_idle
            assert bench.queue.scheduled_count == 0
            assert bench.clock.pending == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("failures", [1, 2, 5, 40, 10_000])
def test_backoff_grows_to_its_cap_with_jitter(failures: int) -> None:
    backoff = Backoff(
        initial=timedelta(seconds=1), cap=timedelta(seconds=60), jitter=0.5, random=random.Random(7)
    )
    due = min(2.0 ** min(failures - 1, 30), 60.0)
    delays = [backoff.compute_delay(failures).total_seconds() for _ in range(200)]
    assert all(due / 2 <= delay <= due for delay in delays)
    assert len(set(delays)) > 100
