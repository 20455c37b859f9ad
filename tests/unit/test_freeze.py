"""Windows in which a pool is held."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.allocator import observed
from tidegate.api.compute_pool import FreezeWindow, PolicyMode
from tidegate.planning.allocator.freeze import Freeze, find_freeze, find_next_begin

# Hypothesis gives them their zone.
_FIRST, _LAST = (datetime(year, 1, 1) for year in (2026, 2027))  # noqa: DTZ001
FRIDAY = datetime(2026, 1, 2, 18, 0, tzinfo=UTC)


def a_window(schedule: str = "0 18 * * FRI", duration: str = "2h", zone: str = "UTC") -> FreezeWindow:
    return FreezeWindow.model_validate({"schedule": schedule, "duration": duration, "timeZone": zone})


@pytest.mark.parametrize(
    ("after", "held"),
    [
        pytest.param(timedelta(seconds=-1), False, id="just before"),
        pytest.param(timedelta(), True, id="as it begins"),
        pytest.param(timedelta(hours=2, seconds=-1), True, id="just before its end"),
        pytest.param(timedelta(hours=2), False, id="at its end"),
        pytest.param(timedelta(days=7, minutes=5), True, id="a week later"),
    ],
)
def test_a_pool_is_held_from_the_windows_begin_to_its_end(after: timedelta, held: bool) -> None:
    assert (find_freeze([a_window()], FRIDAY + after) is not None) == held


def test_the_zones_clock_counts_in_summer_as_in_winter() -> None:
    window = a_window("0 18 * * *", "1h", "Europe/Berlin")
    winter, summer = (datetime(2026, month, 5, tzinfo=UTC) for month in (1, 7))
    assert find_next_begin([window], winter) == winter.replace(hour=17)
    assert find_next_begin([window], summer) == summer.replace(hour=16)
    assert find_freeze([window], summer.replace(hour=16, minute=30)) is not None
    assert find_freeze([window], summer.replace(hour=17, minute=30)) is None


def test_the_hour_that_comes_twice_has_its_windows_twice() -> None:
    window = a_window("*/30 * * * *", "10m", "Europe/Berlin")
    first = datetime(2026, 10, 25, 0, 0, tzinfo=UTC)
    for half_hours in range(6):
        begin = first + half_hours * timedelta(minutes=30)
        assert find_freeze([window], begin + timedelta(minutes=5)) is not None, begin
        assert find_freeze([window], begin + timedelta(minutes=15)) is None, begin


def test_of_several_windows_the_one_that_lasts_longest_is_named() -> None:
    found = find_freeze([a_window(), a_window("30 17 * * *", "6h"), a_window()], FRIDAY)
    ends = FRIDAY.replace(hour=23, minute=30)
    assert found == Freeze("frozen until 2026-01-02T23:30:00Z by spec.policy.freeze[1]", ends)
    assert find_next_begin([a_window(), a_window("30 17 * * *")], FRIDAY) == FRIDAY.replace(
        day=3, hour=17, minute=30
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"schedule": "60 18 * * *"}, "freeze[1].schedule '60 18 * * *' is no cron schedule (bad minute)"),
        ({"schedule": "every friday"}, "is no cron schedule (wrong number of fields)"),
        ({"zone": "Mars/Olympus"}, "freeze[1].timeZone 'Mars/Olympus': there is no such time zone"),
        ({"zone": "../../etc/passwd"}, "there is no such time zone"),
        ({"zone": "Europe"}, "there is no such time zone"),
    ],
)
def test_a_window_that_cannot_be_read_holds_the_pool_and_says_which(
    fields: dict[str, Any], said: str
) -> None:
    """Whoever wrote it wanted something held; nothing moves until it is clear when."""
    windows = [a_window("0 3 * * *"), a_window(**fields)]
    found = find_freeze(windows, FRIDAY)
    assert found is not None
    assert found.until is None
    assert said in found.reason
    assert find_next_begin(windows, FRIDAY) == FRIDAY.replace(day=3, hour=3)


@given(
    moment=st.datetimes(_FIRST, _LAST, timezones=st.just(UTC)),
    minute=st.integers(0, 59),
    hour=st.integers(0, 23),
    minutes=st.integers(1, 3000),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kolkata", "America/St_Johns"]),
)
def test_a_freeze_has_begun_and_ends_and_the_next_begin_lies_ahead(
    moment: datetime, minute: int, hour: int, minutes: int, zone: str
) -> None:
    window = a_window(f"{minute} {hour} * * *", f"{minutes}m", zone)
    found, begins = find_freeze([window], moment), find_next_begin([window], moment)
    assert begins is not None
    assert moment < begins <= moment + timedelta(hours=25)
    assert find_freeze([window], begins) is not None
    if found is not None:
        assert found.until is not None
        assert moment < found.until <= moment + timedelta(minutes=minutes)


def test_auto_counts_as_hold_in_a_window_and_a_recommendation_stays_one() -> None:
    window = find_freeze([a_window()], FRIDAY)
    assert observed(policy={"mode": "Auto"}, freeze=window).effective_mode is PolicyMode.HOLD
    assert observed(policy={"mode": "Auto"}).effective_mode is PolicyMode.AUTO
    assert observed(freeze=window).effective_mode is PolicyMode.RECOMMEND_ONLY
