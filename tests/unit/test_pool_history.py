"""A pool over time: own looks, what Prometheus has from before, what is thinned out, and what is forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from builders.compute_pool import compute_pool_body
from tidegate.api.meta import ObjectKey
from tidegate.telemetry.pool_series import Moment, PoolSeries, moments, question
from tidegate.web.fleet import Fleet
from tidegate.web.history import WINDOW, History, PastState
from tidegate.web.past import STEP, Past

POOL = ObjectKey("", "cpu-a")
BEGAN = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
STATUS = {"slices": {"total": 8, "healthy": 8, "free": 3}, "tiers": [{"name": "realtime", "slices": 5}]}


def a_moment(at: datetime, **changed: float) -> Moment:
    values = {
        (PoolSeries.COUNTED, "healthy"): 8.0,
        (PoolSeries.COUNTED, "free"): changed.get("free", 6.0),
        (PoolSeries.SLICES, "realtime"): 2.0,
        (PoolSeries.PRICE, ""): 0.5,
        (PoolSeries.SHARED_OUT, ""): 8.0,
        (PoolSeries.WANTED, "realtime"): 4.0,
        (PoolSeries.DEMAND, "realtime"): changed.get("demand", 100.0),
        (PoolSeries.SERVABLE, "realtime"): 60.0,
    }
    return Moment(at, values)


class World:
    """A history of one pool, and a Prometheus that answers with `moments`; None: not at all."""

    def __init__(self, *, names: Sequence[str] = ("cpu-a",), asks: bool = True) -> None:
        self.now = BEGAN
        self.fleet = Fleet()
        for name in names:
            self.fleet.pools.store.observe("ADDED", {**compute_pool_body(name), "status": STATUS})
        self.history = History(self.fleet, lambda: self.now, asks=asks)
        self.moments: Sequence[Moment] | None = ()
        self.asked: list[tuple[str, datetime, datetime]] = []
        self.past = Past(self.history, self.answer, lambda: self.now)

    async def answer(
        self, pool: str, begin: datetime, end: datetime, step: timedelta
    ) -> Sequence[Moment] | None:
        assert step == STEP
        self.asked.append((pool, begin, end))
        if self.moments is None:
            return None
        return [each for each in self.moments if begin <= each.at <= end]

    def looks(self, count: int, every: timedelta = timedelta(seconds=2)) -> None:
        for _ in range(count):
            self.history.look()
            self.now += every


async def test_the_time_before_the_process_is_filled_from_prometheus() -> None:
    world = World()
    world.looks(2)
    world.moments = [a_moment(BEGAN - timedelta(minutes=minute)) for minute in (30, 29, 28)]

    await world.past.ask()

    found = world.history.of(POOL)
    assert [each.at for each in found[:3]] == [each.at for each in world.moments]
    assert (found[0].realtime, found[0].free, found[0].healthy, found[0].price) == (2, 6, 8, 0.5)
    assert (found[3].realtime, found[3].free) == (5, 3)
    reach = world.history.reach(POOL)
    assert (reach.since, reach.looking_since) == (BEGAN - timedelta(minutes=30), BEGAN)
    assert reach.past is PastState.KNOWN


async def test_own_looks_are_not_overwritten_by_what_prometheus_says_of_the_same_time() -> None:
    world = World()
    world.looks(100)
    world.moments = [a_moment(BEGAN + timedelta(minutes=1))]

    await world.past.ask()

    assert {each.free for each in world.history.of(POOL)} == {3}
    assert world.history.reach(POOL).past is PastState.EMPTY


async def test_it_is_asked_for_the_whole_window_once_and_then_for_what_came_since() -> None:
    world = World()
    world.looks(1)
    await world.past.ask()
    world.now += timedelta(minutes=10)
    await world.past.ask()

    (_, first, end), (_, second, _) = world.asked
    assert end - first == WINDOW
    assert end - timedelta(minutes=5) <= second <= end


async def test_of_a_pool_that_was_recreated_the_whole_window_is_asked_for_again() -> None:
    world = World()
    world.looks(1)
    await world.past.ask()
    world.fleet.pools.store.replace([])
    world.history.look()
    world.fleet.pools.store.observe("ADDED", {**compute_pool_body("cpu-a"), "status": STATUS})
    world.looks(1)
    world.moments = [a_moment(BEGAN - timedelta(hours=1))]
    await world.past.ask()

    assert [end - begin for _, begin, end in world.asked] == [WINDOW, WINDOW]
    assert world.history.of(POOL)[0].at == BEGAN - timedelta(hours=1)


async def test_a_silent_prometheus_is_asked_again_and_keeps_nobody_else_waiting() -> None:
    world = World(names=("cpu-a", "gpu-b"))
    world.looks(2)
    world.moments = None
    await world.past.ask()

    assert len(world.asked) == 1  # once is enough to know that it does not answer
    assert world.history.reach(POOL).past is PastState.SILENT
    assert world.history.reach(ObjectKey("", "gpu-b")).past is PastState.SILENT
    assert len(world.history.of(POOL)) == 2

    world.moments = [a_moment(BEGAN - timedelta(minutes=1))]
    await world.past.ask()
    assert world.history.reach(POOL).past is PastState.KNOWN
    # What it said stays while it is silent again.
    world.moments = None
    await world.past.ask()
    assert world.history.reach(POOL).past is PastState.KNOWN
    assert len(world.history.of(POOL)) == 3


async def test_demand_is_kept_from_prometheus_while_the_process_runs() -> None:
    world = World()
    world.looks(1)
    world.moments = [a_moment(BEGAN - timedelta(minutes=1))]
    await world.past.ask()
    world.now = BEGAN + timedelta(minutes=2)
    world.moments = [*world.moments, a_moment(BEGAN + timedelta(minutes=1), demand=150.0)]
    await world.past.ask()

    found = world.history.demand_of(POOL)
    assert [each.demand for each in found] == [100.0, 150.0]
    assert (found[0].realtime, found[0].slices, found[0].serves) == (4, 8, 60.0)


async def test_what_is_older_than_the_window_and_pools_that_are_gone_are_forgotten() -> None:
    world = World()
    world.looks(1)
    world.moments = [a_moment(BEGAN - timedelta(minutes=minute)) for minute in (200, 100)]
    await world.past.ask()
    world.now = BEGAN + timedelta(hours=1)
    assert world.history.reach(POOL).since == BEGAN - timedelta(minutes=100)
    assert len(world.history.demand_of(POOL)) == 1

    world.fleet.pools.store.replace([])
    world.history.look()
    await world.past.ask()
    assert world.history.of(POOL) == ()
    assert world.history.demand_of(POOL) == ()


async def test_a_process_that_has_looked_for_longer_than_the_window_blames_nobody() -> None:
    world = World()
    world.looks(1)
    assert not world.history.reach(POOL).outlived
    world.now += WINDOW
    world.looks(1)
    await world.past.ask()
    assert world.history.reach(POOL).outlived


def test_without_a_prometheus_it_is_said_that_nobody_is_asked() -> None:
    world = World(asks=False)
    assert world.history.reach(POOL).since is None
    world.looks(1)
    reach = world.history.reach(POOL)
    assert (reach.since, reach.looking_since, reach.past) == (BEGAN, BEGAN, PastState.NOBODY)
    assert not Past(world.history, None, lambda: world.now).known


async def test_thinning_is_even_over_the_time_and_keeps_the_first_and_the_last() -> None:
    world = World()
    world.looks(1800)  # an hour of own looks
    world.moments = [a_moment(BEGAN - timedelta(minutes=minute)) for minute in range(60, 0, -1)]
    await world.past.ask()

    found = world.history.of(POOL, 12)
    assert len(found) <= 12
    assert found[0].at == BEGAN - timedelta(minutes=60)
    assert found[-1].at == world.history.of(POOL)[-1].at
    # By number all but one would be own looks, of which there are thirty times as many.
    assert 5 <= sum(each.at < BEGAN for each in found) <= 7


@pytest.mark.parametrize("most", [2, 3, 50])
def test_never_more_than_asked_for(most: int) -> None:
    world = World()
    world.looks(50)
    assert len(world.history.of(POOL, most)) == most


def test_the_answer_of_a_range_is_read_by_time() -> None:
    answer = [
        {
            "metric": {"__name__": "tidegate_pool_tier_slices", "tier": "offline"},
            "values": [[10, "3"], [70, "4"]],
        },
        {
            "metric": {"__name__": "tidegate_pool_slices", "state": "free"},
            "values": [[70, "2"], [130, "NaN"]],
        },
    ]
    found = moments(answer)
    assert [each.at.timestamp() for each in found] == [10, 70]
    assert found[0].of(PoolSeries.SLICES, "offline") == 3
    assert found[0].of(PoolSeries.COUNTED, "free") is None
    assert found[1].of(PoolSeries.COUNTED, "free") == 2


@pytest.mark.parametrize(
    "answer",
    [[{"metric": {}, "values": []}], [{"metric": {"__name__": "up"}, "values": []}], [{}], [7]],
    ids=["no-name", "another-name", "no-metric", "a-number"],
)
def test_what_is_no_such_answer_is_refused(answer: list[dict[str, object]]) -> None:
    with pytest.raises((KeyError, ValueError, TypeError)):
        moments(answer)


def test_the_question_is_about_one_pool_and_names_every_series() -> None:
    asked = question("cpu-a")
    assert 'pool="cpu-a"' in asked
    assert all(series in asked for series in PoolSeries)
