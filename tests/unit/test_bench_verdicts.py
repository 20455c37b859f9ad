"""Benches exit with 1 if a figure misses the target that figures.md states, and name it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import feature_freshness
import feature_speed
import feature_tables
import policies
import pytest
from harness.figures import round_figures

from tidegate.api.inference import Tier
from tidegate.simulation.outcome import SimulationOutcome


def speed_loads(joined: float, *, before: float | None = None, wrong: int = 0) -> Mapping[str, Any]:
    def arm(per_second: float) -> Mapping[str, Any]:
        return {"per_second": per_second, "wrong": wrong, "failed": 0}

    slow = {"alone": arm(100.0), "joined": arm(50.0)}
    fast = {"alone": arm(100.0), "joined": arm(joined)}
    if before is not None:
        fast["alone, before"] = arm(before)
    return {"1 clients": slow, "32 clients": fast}


@pytest.mark.parametrize(
    ("loads", "missed"),
    [
        (speed_loads(300.0), []),
        (speed_loads(299.0), ["32 clients: joined over alone 2.99, not 3"]),
        (speed_loads(150.0, before=50.0), []),
        (speed_loads(300.0, before=120.0), ["32 clients: joined over alone, before 2.50, not 3"]),
    ],
)
def test_joined_features_are_judged_against_one_request_at_a_time(
    loads: Mapping[str, Any], missed: list[str]
) -> None:
    assert feature_speed.find_missed_targets(loads) == missed


def test_a_wrong_answer_is_a_miss_however_fast_it_was() -> None:
    missed = feature_speed.find_missed_targets(speed_loads(300.0, wrong=2))
    assert missed[0] == "1 clients, alone: 2 wrong, 0 failed"
    assert len(missed) == 4


def test_features_over_events_are_judged_by_each_p99() -> None:
    limits = {load: {"p99_ms": limit_ms} for load, limit_ms in feature_freshness.MOST_P99_MS.items()}
    assert feature_freshness.find_missed_targets(limits, {}) == []
    late = {**limits, "64_users_at_200_per_s": {"p99_ms": 8.7}}
    assert feature_freshness.find_missed_targets(late, {"TooLate": 3}) == [
        "64_users_at_200_per_s: p99 8.7 ms, not 5",
        "3 events refused: TooLate",
    ]


def test_mapped_tables_are_judged_at_every_size_and_by_their_conversion() -> None:
    def size(ratio: float, peak_mib: int) -> Mapping[str, Any]:
        ratios = {f"{feature_tables.RATIO}, {shape}": ratio for shape in feature_tables.SHAPES}
        return {"conversion": {"profiles": {"peak_mib": peak_mib}}, **ratios}

    good = {"small": size(1.1, 256), "large": size(0.9, 100)}
    assert feature_tables.find_missed_targets(good, 0) == []
    assert feature_tables.find_missed_targets({**good, "large": size(1.11, 257)}, 1) == [
        "1 answers are wrong",
        "large, 64 keys x 8 features: mapped over memory 1.11, not 1.1",
        "large, 1 user x 200 items: mapped over memory 1.11, not 1.1",
        "large: converting profiles took 257 MiB, not 256",
    ]


def test_mapped_tables_that_are_a_little_too_slow_miss_their_target() -> None:
    def ratios(mapped_ns: int) -> Mapping[str, float]:
        times = (
            {shape: [median_ns] for shape in feature_tables.SHAPES} for median_ns in (mapped_ns, 500_000)
        )
        return feature_tables.compute_ratios(*times)

    kept, missed = (
        feature_tables.find_missed_targets({"small": {"conversion": {}, **ratios(mapped_ns)}}, 0)
        for mapped_ns in (550_000, 552_000)
    )
    assert kept == []
    assert missed == [
        "small, 64 keys x 8 features: mapped over memory 1.104, not 1.1",
        "small, 1 user x 200 items: mapped over memory 1.104, not 1.1",
    ]


def test_figures_are_rounded_at_any_depth_for_printing() -> None:
    figures = {"ratio": 1.10449, "calls": 400, "arms": [{"ms": 0.00049}, (2.0, "2.00049")], "missed": None}
    assert round_figures(figures, 3) == {
        "ratio": 1.104,
        "calls": 400,
        "arms": [{"ms": 0.0}, [2.0, "2.00049"]],
        "missed": None,
    }


def policy(value: float, minutes: float) -> Mapping[str, Any]:
    return {"value_over_oracle": value, "missed_minutes": minutes}


def a_series(**changes: Mapping[str, Any]) -> Mapping[str, Any]:
    figures = {name: policy(0.9, 120.0) for name in policies.BASELINES}
    ours = {
        "forecast": policy(0.99, 110.0),
        "present": policy(0.995, 300.0),
        "free-moves": policy(0.999, 1.0),
    }
    return {**figures, **ours, "oracle": policy(1.0, 0.0), **changes}


@pytest.mark.parametrize(
    ("series", "missed"),
    [
        # The allocator's own arms may serve more.
        (a_series(), []),
        (a_series(hpa=policy(0.99, 120.0)), ["day: value 0.99, with hpa 0.99"]),
        (
            a_series(present=policy(0.9, 219.0)),
            ["day: 110 missed minutes, with the present rates 219"],
        ),
        (a_series(static=policy(0.91, 108.0)), ["day: 110 missed minutes, with static 108"]),
    ],
)
def test_the_allocator_is_judged_on_each_series_against_the_six_other_policies(
    series: Mapping[str, Any], missed: list[str]
) -> None:
    assert policies.find_missed_targets({"forecast": 0.95}, {"day": series}) == missed


def test_the_value_over_the_oracle_is_judged_in_the_mean() -> None:
    assert len(policies.BASELINES) == 6
    assert policies.find_missed_targets({"forecast": 0.949}, {"day": a_series()}) == [
        "value over the oracle 0.949, not 0.95"
    ]


@pytest.mark.parametrize(
    ("value", "minutes", "missed"),
    [
        (95.0, 150.0, []),
        (94.996, 150.0, ["value over the oracle 0.94996, not 0.95"]),
        (95.0, 150.04, ["day: 150.04 missed minutes, with the present rates 300"]),
    ],
)
def test_an_allocator_that_is_a_little_too_bad_misses_its_target(
    value: float, minutes: float, missed: list[str]
) -> None:
    def described(policy_value: float, policy_minutes: float) -> Mapping[str, Any]:
        outcome = SimulationOutcome("any", {Tier.REALTIME: policy_value}, policy_minutes)
        return policies.describe_outcome(outcome, 100.0)

    day = {
        **dict.fromkeys(policies.BASELINES, described(90.0, 400.0)),
        "forecast": described(value, minutes),
        "present": described(90.0, 300.0),
    }
    document = {"day": day}
    assert policies.find_missed_targets(policies.compute_means(document), document) == missed
