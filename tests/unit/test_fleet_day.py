"""The made-up day of the fleet demo: always the same for a seed, with two peaks, and made for the slices that there are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tidegate_localcluster.fleet_demo.day import START_HOUR, DemoClock, format_hours
from tidegate_localcluster.fleet_demo.workload import NEARLINE, OFFLINE, REALTIME, FleetModel, generate_models

SLICES = 2_000


def a_fleet(seed: int = 1) -> list[FleetModel]:
    return list(generate_models(1_000, SLICES, seed))


def needed(models: list[FleetModel], tier: str, hour: float) -> float:
    """Replicas' work of a tier at an hour."""
    return sum(model.demand_per_s(hour) / model.capacity_per_s for model in models if model.tier == tier)


def test_a_seed_is_a_fleet_and_another_seed_another_one() -> None:
    assert a_fleet() == a_fleet()
    assert a_fleet() != a_fleet(seed=2)
    assert [model.demand_per_s(11.3) for model in a_fleet()] == [
        model.demand_per_s(11.3) for model in a_fleet()
    ]


def test_names_are_unique_and_there_are_three_tiers() -> None:
    models = a_fleet()
    assert len({model.name for model in models}) == len(models) == 1_000
    assert Counter(model.tier for model in models) == {REALTIME: 320, NEARLINE: 300, OFFLINE: 380}


@pytest.mark.parametrize("inferences", [3, 12, 24, 1_000])
def test_as_many_models_as_were_asked_for(inferences: int) -> None:
    assert len(generate_models(inferences, 4 * inferences, seed=1)) == inferences


def test_the_day_has_two_peaks_and_the_nights_work_comes_at_night() -> None:
    models = a_fleet()
    by_hour = {hour: needed(models, REALTIME, hour) for hour in range(24)}
    assert by_hour[11] > 1.6 * by_hour[7]
    assert by_hour[20] > by_hour[16]
    assert by_hour[12] > by_hour[16]
    assert needed(models, NEARLINE, 3.0) > 1.6 * needed(models, NEARLINE, 13.0)


def test_the_busiest_hour_nearly_fills_the_pool_and_leaves_something_to_offline_work() -> None:
    models = a_fleet()
    realtime = sum(model.tier == REALTIME for model in models)
    worst = max(needed(models, REALTIME, quarter / 4) for quarter in range(96)) + 1.5 * realtime
    assert 0.4 * SLICES < worst < 0.6 * SLICES


def test_the_load_goes_on_smoothly_past_midnight() -> None:
    for model in a_fleet()[::100]:
        before, after = model.demand_per_s(23.999), model.demand_per_s(24.001)
        assert after == pytest.approx(before, rel=0.01)
        assert model.demand_per_s(30.5) == pytest.approx(model.demand_per_s(6.5))


def test_no_model_is_ever_asked_for_more_than_its_most_replicas_answer() -> None:
    for model in a_fleet():
        for quarter in range(96):
            assert model.demand_per_s(quarter / 4) <= model.max_replicas * model.capacity_per_s


def test_the_day_stands_until_it_begins_and_is_the_same_for_every_process(tmp_path: Path) -> None:
    clock = [1_000.0]
    day, other = (DemoClock(tmp_path / "day.json", 200.0, lambda: clock[0]) for _ in range(2))
    clock[0] += 500
    assert day.hours_at() == START_HOUR
    day.start_day()
    clock[0] += 18  # an hour at 200x
    assert day.hours_at() == other.hours_at() == START_HOUR + 1
    day.start_day()
    assert other.hours_at(clock[0] + 18) == START_HOUR + 2
    assert other.hours_at(0.0) == START_HOUR


def test_a_day_that_stands_still(tmp_path: Path) -> None:
    clock = [0.0]
    day = DemoClock(tmp_path / "day.json", 0.0, lambda: clock[0])
    day.start_day()
    clock[0] = 86_400.0
    assert day.hours_at() == START_HOUR


@pytest.mark.parametrize(("hours", "text"), [(7.0, "day 1, 07:00"), (31.5, "day 2, 07:30")])
def test_the_time_as_a_person_reads_it(hours: float, text: str) -> None:
    assert format_hours(hours) == text
