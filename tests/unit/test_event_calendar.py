"""Events of a pool: when one is near, what it brings, and what the demand before it was."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from math import nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.allocator import a_member, observed, signals
from tidegate.allocation.snapshot import DemandInput
from tidegate.allocation.solver import Solver
from tidegate.api.compute_pool import AllocationPolicy
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.planning.allocator.event_baselines import EventBaselines
from tidegate.planning.allocator.event_calendar import EventCalendar, EventDemand, read_calendar
from tidegate.planning.allocator.forecasts import RateHistory
from tidegate.planning.allocator.observed_pool import AllocationObserved
from tidegate.planning.allocator.pool_status import summarise_allocation
from tidegate.planning.allocator.snapshot_builder import build_allocation_view
from tidegate.planning.allocator.triggers import DecisionInputs, find_trigger
from tidegate.planning.inference.serving_status import Verdict

CTR, CVR = ObjectKey("ads", "ctr"), ObjectKey("ads", "cvr")
MINUTE = timedelta(minutes=1)
SALE: dict[str, Any] = {"name": "sale-20h", "schedule": "0 20 * * *", "duration": "2h", "factor": "3"}
LATE: dict[str, Any] = {"name": "late", "schedule": "0 21 * * *", "duration": "3h", "factor": "2"}


def at(hour: int, minute: int = 0, second: int = 0, day: int = 15) -> datetime:
    return datetime(2026, 1, day, hour, minute, second, tzinfo=UTC)


def a_calendar(*events: dict[str, Any], loads: tuple[float | None, ...] = (), **policy: Any) -> EventCalendar:
    parsed = AllocationPolicy.model_validate({"events": events, **policy})
    return read_calendar(parsed, loads, at(12))


def planned(
    calendar: EventCalendar, baselines: EventBaselines, now: datetime
) -> Mapping[ObjectKey, EventDemand]:
    return baselines.plan_demand(calendar, frozenset({CTR, CVR}), now)


def measured(*rates: tuple[datetime, float], key: ObjectKey = CTR) -> EventBaselines:
    baselines = EventBaselines()
    for read_at, rate in rates:
        baselines.add_rate(key, read_at, rate)
    return baselines


@pytest.mark.parametrize(
    ("now", "near"),
    [
        (at(19, 54, 59), False),
        (at(19, 55), True),
        (at(21, 59, 59), True),
        (at(22), False),
    ],
)
def test_an_event_is_near_from_five_minutes_before_it_until_its_end(now: datetime, near: bool) -> None:
    once = {"name": "once", "at": "2026-01-15T20:00:00Z", "duration": "2h", "factor": "3"}
    for event in (SALE, once):
        assert bool(a_calendar(event).find_near(now)) is near


@pytest.mark.parametrize(
    ("policy", "loads", "lead"),
    [
        ({}, (), 5 * MINUTE),
        ({}, (None, 20.0), 5 * MINUTE),
        ({}, (None, 20.0, 600.0), 10 * MINUTE),
        ({"forecast": {"horizon": "30m"}}, (600.0,), 30 * MINUTE),
        ({"forecast": {"horizon": "1m"}}, (), MINUTE),
        ({"forecast": {"horizon": "1m"}}, (None, 600.0), 10 * MINUTE),
        ({"forecast": {"horizon": "1m"}}, (7200.0,), 60 * MINUTE),
    ],
)
def test_the_horizon_or_the_longest_load_time_is_how_early(
    policy: dict[str, Any], loads: tuple[float | None, ...], lead: timedelta
) -> None:
    calendar = a_calendar(SALE, loads=loads, **policy)
    assert [item.opens for item in calendar.find_near(at(20))] == [at(20) - lead]


def test_a_schedule_follows_its_time_zone() -> None:
    calendar = a_calendar({**SALE, "timeZone": "Asia/Kolkata"})
    assert calendar.find_near(at(14, 30))
    assert not calendar.find_near(at(20))


def test_the_changes_are_those_of_all_events() -> None:
    calendar = a_calendar(SALE, LATE)
    assert calendar.find_next_change(at(12)) == at(19, 55)
    assert calendar.find_next_change(at(19, 55)) == at(20, 55)
    assert calendar.find_next_change(at(20, 55)) == at(22)
    assert calendar.find_next_change(at(22)) == at(0, day=16)
    assert (
        a_calendar(
            {"name": "past", "at": "2026-01-01T00:00:00Z", "duration": "1h", "factor": "2"}
        ).find_next_change(at(12))
        is None
    )


def test_the_baseline_is_the_highest_rate_of_the_ten_minutes_before_the_event_comes_near() -> None:
    baselines = measured(
        (at(19, 44), 9000.0), (at(19, 45), 800.0), (at(19, 54), 1200.0), (at(19, 55), 2000.0)
    )
    calendar = a_calendar(SALE)
    assert planned(calendar, baselines, at(19, 54)) == {}
    before = planned(calendar, baselines, at(19, 55))
    assert before[CTR] == EventDemand("sale-20h", 3.0, at(19, 55), 1200.0)
    assert before[CTR].rate_per_s == 3600.0
    # Nothing is known of cvr, and nothing of the event's own demand is multiplied.
    assert before[CVR].baseline_per_s is None
    baselines.add_rate(CTR, at(20, 30), 3600.0)
    assert planned(calendar, baselines, at(21, 59))[CTR].rate_per_s == 3600.0
    assert planned(calendar, baselines, at(22)) == {}


def test_the_baseline_is_that_of_each_day() -> None:
    baselines = measured((at(19, 50), 100.0))
    calendar = a_calendar(SALE)
    assert planned(calendar, baselines, at(20))[CTR].rate_per_s == 300.0
    baselines.add_rate(CTR, at(19, 50, day=16), 200.0)
    assert planned(calendar, baselines, at(20, day=16))[CTR].rate_per_s == 600.0


def test_of_overlapping_events_the_largest_factor_counts_and_no_product() -> None:
    baselines = measured((at(19, 50), 1000.0))
    calendar = a_calendar(SALE, LATE)
    for now in (at(20), at(20, 59), at(21, 59)):
        baselines.add_rate(CTR, now - MINUTE, 3000.0)
        assert planned(calendar, baselines, now)[CTR].rate_per_s == 3000.0, now
    # The second one goes on alone, with the demand before the first.
    assert planned(calendar, baselines, at(22))[CTR] == EventDemand("late", 2.0, at(19, 55), 1000.0)


def test_events_in_a_row_have_the_demand_before_the_first() -> None:
    flash = {"name": "flash", "schedule": "*/15 18-20 * * *", "duration": "5m", "factor": "4"}
    baselines, calendar = measured((at(17, 50), 500.0)), a_calendar(flash)
    assert planned(calendar, baselines, at(18))[CTR].rate_per_s == 2000.0
    for read_at in (at(18, 9), at(20, 24)):
        baselines.add_rate(CTR, read_at, 2000.0)
    assert planned(calendar, baselines, at(20, 31))[CTR].rate_per_s == 2000.0
    # After a restart as well, from history.
    assert planned(calendar, EventBaselines(), at(20, 31))[CTR].quiet_until == at(17, 55)


def test_events_that_never_end_have_no_demand_before_them() -> None:
    always = {"name": "always", "schedule": "* * * * *", "duration": "1h", "factor": "2"}
    baselines = measured((at(11, 50), 500.0))
    assert planned(a_calendar(always), baselines, at(12))[CTR] == EventDemand("always", 2.0, None, None)


def test_events_that_never_end_have_no_demand_of_an_earlier_day() -> None:
    baselines = measured((at(19, 50), 500.0))
    assert planned(a_calendar(SALE), baselines, at(20))[CTR].baseline_per_s == 500.0
    always = a_calendar({"name": "always", "schedule": "* * * * *", "duration": "1h", "factor": "2"})
    for minute in range(2):
        assert planned(always, baselines, at(20, minute, day=16))[CTR].baseline_per_s is None


def test_an_event_concerns_the_inferences_that_it_names() -> None:
    baselines = measured((at(19, 50), 100.0), key=CVR)
    calendar = a_calendar({**SALE, "inferences": [{"namespace": "ads", "name": "cvr"}]})
    assert planned(calendar, baselines, at(20)) == {CVR: EventDemand("sale-20h", 3.0, at(19, 55), 100.0)}


def test_history_is_the_baseline_of_controllers_that_start_during_the_event() -> None:
    baselines = measured((at(20, 30), 3600.0))
    calendar = a_calendar(SALE)
    assert planned(calendar, baselines, at(20, 31))[CTR].baseline_per_s is None
    baselines.add_history(RateHistory(at(19, 45), {CTR: [1100.0, 1200.0], CVR: [nan, nan]}))
    demands = planned(calendar, baselines, at(20, 31))
    assert demands[CTR].rate_per_s == 3600.0
    assert demands[CVR].baseline_per_s is None


def test_controllers_that_start_shortly_before_the_event_take_the_rates_of_then() -> None:
    baselines = measured((at(19, 57), 1200.0), (at(20), 3600.0))
    assert planned(a_calendar(SALE), baselines, at(20, 1))[CTR].rate_per_s == 3600.0


def test_an_absurd_rate_is_limited() -> None:
    baselines = measured((at(19, 50), 1e9))
    calendar = a_calendar({**SALE, "factor": "100"})
    assert planned(calendar, baselines, at(20))[CTR].rate_per_s == 1e9


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schedule": "0 25 * * *"}, "schedule '0 25 * * *' is no cron schedule (bad hour)"),
        ({"timeZone": "Mars/Olympus"}, "timeZone 'Mars/Olympus': there is no such time zone"),
    ],
)
def test_an_event_that_cannot_be_read_is_named_and_the_others_count(
    change: dict[str, str], said: str
) -> None:
    calendar = a_calendar({**LATE, **change}, SALE)
    [problem] = calendar.problems
    assert problem.startswith(f"late is ignored until it is corrected: spec.policy.events[0].{said}")
    assert [item.event.name for item in calendar.find_near(at(21))] == ["sale-20h"]


def test_an_event_after_the_calendar_is_named_and_the_others_count() -> None:
    last = {"name": "last", "at": "9999-12-31T23:00:00Z", "duration": "2h", "factor": "3"}
    calendar = a_calendar(last, SALE)
    assert calendar.problems == (
        "last is ignored until it is corrected: spec.policy.events[0].at '9999-12-31T23:00:00Z' with duration '2h' ends after "
        "the year 9999",
    )
    assert calendar.find_next_change(at(12)) == at(19, 55)
    view = observed(a_member(capacity=CAPACITY), policy={"events": [last]}, now=at(12), calendar=calendar)
    verdict = judge(view)
    assert verdict is not None
    assert verdict.reason is Reason.EVENT_INVALID
    assert not a_calendar({**last, "duration": "1m"}).problems


def test_a_baseline_stays_while_its_event_runs_even_if_another_lead_joins_earlier_events() -> None:
    first = {"name": "first", "schedule": "0 18 * * *", "duration": "104m", "factor": "2"}
    baselines = measured((at(19, 50), 100.0))
    # Between 19:44 and 19:55 is a baseline window; with a lead of eight minutes it is too short.
    early = a_calendar(first, SALE)
    assert planned(early, baselines, at(20))[CTR].baseline_per_s == 100.0
    late = a_calendar(first, SALE, loads=(480.0,))
    assert planned(late, EventBaselines(), at(20, 1))[CTR].quiet_until == at(17, 52)
    assert planned(late, baselines, at(20, 1))[CTR].baseline_per_s == 100.0
    assert planned(early, baselines, at(20, 2))[CTR].baseline_per_s == 100.0
    # Another event of the next day has its own.
    assert planned(early, baselines, at(20, day=16))[CTR].baseline_per_s is None
    assert planned(early, baselines, at(20, 1, day=16))[CTR].baseline_per_s is None


@pytest.mark.parametrize(
    ("now", "lead"), [(at(19, 53), 8), (at(21), 8), (at(19, 51), 5), (at(22), 5), (at(12), 5)]
)
def test_the_lead_is_not_shortened_while_an_event_is_near(now: datetime, lead: int) -> None:
    policy = AllocationPolicy.model_validate({"events": [SALE]})
    assert read_calendar(policy, (300.0,), now, 8 * MINUTE).lead == lead * MINUTE


@given(
    now=st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    hour=st.integers(0, 23),
    minutes=st.integers(1, 3000),
)
def test_a_change_lies_ahead_and_nothing_changes_before_it(now: datetime, hour: int, minutes: int) -> None:
    calendar = a_calendar({**SALE, "schedule": f"0 {hour} * * *", "duration": f"{minutes}m"})
    change = calendar.find_next_change(now)
    assert change is not None
    assert now < change

    def begins(moment: datetime) -> list[datetime]:
        return [item.begins for item in calendar.find_near(moment)]

    assert begins(now) == begins(change - timedelta(microseconds=1))
    assert begins(now) != begins(change)


CAPACITY = {"requestsPerSecond": "100"}


def seen(
    rate: float | None = 90.0, demand: EventDemand | None = None, *, holds: int = 1, **more: Any
) -> AllocationObserved:
    known = signals() if rate is None else signals(ctr=rate)
    demands = {CTR: demand} if demand is not None else {}
    policy = {"events": [SALE], **more.pop("policy", {})}
    return observed(
        a_member(held=holds, capacity=CAPACITY),
        policy=policy,
        signals=known,
        event_demands=demands,
        now=at(19, 56),
        calendar=a_calendar(SALE),
        **more,
    )


def load_of(view: AllocationObserved) -> DemandInput | None:
    return build_allocation_view(view).snapshot.inferences[0].load


def test_an_event_only_raises_the_demand() -> None:
    sale = EventDemand("sale-20h", 3.0, at(19, 55), 90.0)
    expected = DemandInput((270.0,), expectation="expected for sale-20h: 3 x 90/s")
    assert load_of(seen(90.0, sale)) == expected
    assert load_of(seen(400.0, sale)) == DemandInput((400.0,))
    forecast = {"forecast": {"horizon": "5m"}}
    assert load_of(seen(90.0, sale, policy=forecast, forecasts={CTR: 200.0})) == expected
    higher = DemandInput((300.0,), expectation="expected within 5m")
    assert load_of(seen(90.0, sale, policy=forecast, forecasts={CTR: 300.0})) == higher
    assert load_of(seen(None, sale)) is None


def test_a_move_names_the_event() -> None:
    view = build_allocation_view(seen(90.0, EventDemand("sale-20h", 3.0, at(19, 55), 90.0)))
    [move] = Solver(lambda: 0.0).solve(view.snapshot).moves
    assert move.reason == (
        "realtime ads/ctr +2 in cpu-a: demand 270/s expected for sale-20h: 3 x 90/s exceeds 100/s; from free slices"
    )


def test_without_a_baseline_an_inference_keeps_its_replicas() -> None:
    unknown = EventDemand("sale-20h", 3.0, at(19, 55), None)
    held = build_allocation_view(seen(90.0, unknown, holds=4)).snapshot.inferences[0]
    assert (held.load, held.bounds.floor) == (DemandInput((90.0,)), 4)
    assert held.bounds.floor_source == "what it holds, since its demand before sale-20h is unknown,"
    assert build_allocation_view(seen(90.0, holds=4)).snapshot.inferences[0].bounds.floor == 1


def test_an_event_that_comes_near_or_ends_is_decided_at_once() -> None:
    def inputs(now: datetime) -> DecisionInputs:
        return DecisionInputs.from_observed(observed(a_member(), now=now, calendar=a_calendar(SALE)))

    assert find_trigger(inputs(at(19, 54)), inputs(at(19, 55))) is not None
    assert find_trigger(inputs(at(19, 55)), inputs(at(21, 59))) is None
    assert find_trigger(inputs(at(21, 59)), inputs(at(22))) is not None


def judge(view: AllocationObserved) -> Verdict | None:
    assignment = Solver(lambda: 0.0).solve(build_allocation_view(view).snapshot)
    return summarise_allocation(view, assignment, {}).events_verdict


def test_the_pool_says_which_events_are_near_or_next() -> None:
    sale = EventDemand("sale-20h", 3.0, at(19, 55), 90.0)
    said = {
        at(12): "no event is near; next is sale-20h at 2026-01-15T20:00:00Z, 3 x",
        at(19, 56): "sale-20h: 3 x from 2026-01-15T20:00:00Z to 2026-01-15T22:00:00Z",
        at(20, 30): "sale-20h: 3 x until 2026-01-15T22:00:00Z",
    }
    for now, message in said.items():
        view = observed(
            a_member(capacity=CAPACITY),
            policy={"events": [SALE]},
            now=now,
            calendar=a_calendar(SALE),
            event_demands={CTR: sale},
        )
        assert judge(view) == Verdict(True, Reason.EVENTS_PLANNED, message)
    assert judge(observed(a_member(capacity=CAPACITY), now=at(20))) is None


def test_the_pool_says_what_no_event_counts_for() -> None:
    unknown = judge(seen(90.0, EventDemand("sale-20h", 3.0, at(19, 55), None)))
    assert unknown == Verdict(
        False,
        Reason.EVENT_BASELINE_UNKNOWN,
        "sale-20h: 3 x from 2026-01-15T20:00:00Z to 2026-01-15T22:00:00Z; the demand before it is unknown for ads/ctr, "
        "which keeps at least the present replicas",
    )
    other = {**SALE, "inferences": [{"namespace": "ads", "name": "cvr"}]}
    wrong = judge(
        observed(
            a_member(capacity=CAPACITY), policy={"events": [other]}, now=at(12), calendar=a_calendar(other)
        )
    )
    assert wrong == Verdict(
        False,
        Reason.EVENT_INVALID,
        "sale-20h ignores ads/cvr: spec.policy.events[0].inferences[0] is not a real-time Inference of the pool with "
        "spec.scaling; no event is near; next is sale-20h at 2026-01-15T20:00:00Z, 3 x",
    )
