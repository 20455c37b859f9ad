"""The comparison of bench/simulator_fidelity.py: what counts as near, and a trace that has the rates it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path

import pytest
from harness.cluster_recorder import ClusterTick
from harness.fidelity import (
    ComparedFigure,
    MissedSeconds,
    RequestCounts,
    RunFigures,
    compare_figures,
    make_courses,
    measure_shortage,
    plan_arrivals,
    sample_course,
)
from harness.fidelity_run import ClusterRun, RunDecision, load_run, save_run

from builders.compute_pool import a_compute_pool
from builders.inference import an_inference
from tidegate.api.inference import Tier
from tidegate.simulation.changes import SimulatedDay
from tidegate.simulation.trace import DemandTrace

TICK_S = 5.0


def figures(
    realtime: float = 40.0, missed: float = 2.0, moved: float = 20.0, value: float = 1000.0
) -> RunFigures:
    minutes: Mapping[Tier, float] = {Tier.REALTIME: realtime, Tier.NEARLINE: 10.0, Tier.OFFLINE: 30.0}
    return RunFigures(minutes, dict.fromkeys(Tier, value), 1.0, missed, moved)


def compare(simulated: RunFigures, cluster: RunFigures | None = None) -> Mapping[str, ComparedFigure]:
    compared = compare_figures(cluster or figures(), simulated, TICK_S, moved_slack=2.0)
    return {figure.name: figure for figure in compared}


def test_figures_within_fifteen_percent_are_near() -> None:
    compared = compare(figures(realtime=45.9, missed=1.71, moved=22.9, value=1149.0))
    assert all(figure.is_near for figure in compared.values())
    assert compared["slice-minutes realtime"].ratio == pytest.approx(1.1475)


@pytest.mark.parametrize(
    ("simulated", "names"),
    [
        (figures(realtime=46.2), {"slice-minutes realtime"}),
        (figures(realtime=33.8), {"slice-minutes realtime"}),
        (figures(missed=1.6), {"SLO-miss minutes"}),
        (figures(moved=23.5), {"moved slices"}),
        (figures(value=1151.0), {"value realtime", "value nearline", "value offline"}),
    ],
)
def test_a_figure_beyond_fifteen_percent_is_not_near(simulated: RunFigures, names: set[str]) -> None:
    assert {name for name, figure in compare(simulated).items() if not figure.is_near} == names


def test_tiny_figures_may_differ_by_one_tick_and_no_more() -> None:
    none = figures(missed=0.0)
    assert compare(figures(missed=TICK_S / 60), none)["SLO-miss minutes"].is_near
    assert compare(none, none)["SLO-miss minutes"].ratio is None
    assert not compare(figures(missed=2 * TICK_S / 60), none)["SLO-miss minutes"].is_near


def test_a_second_is_missed_with_more_than_one_request_in_a_hundred() -> None:
    seconds = MissedSeconds()
    for second, (due, missed) in enumerate([(100, 1), (100, 2), (1, 1), (3, 0)]):
        for number in range(due):
            seconds.count_request(second + 0.5, is_missed=number < missed)
    assert seconds.list_missed() == [1, 2]


def test_a_tick_is_short_for_as_long_as_replicas_are_missing() -> None:
    assert measure_shortage(9.0, 4.5, 2.0) == 0
    assert measure_shortage(9.1, 4.5, 2.25) == 0.75
    assert measure_shortage(30.0, 4.5, 2.0) == 1


def test_requests_come_at_the_rate_of_each_tick() -> None:
    rates = sample_course(make_courses(1)["home"], ticks=60, lead=6)
    assert len(rates) == 66
    end_s = len(rates) * TICK_S
    arrivals = takewhile(lambda due_s: due_s < end_s, plan_arrivals(rates, TICK_S, seed=1))
    counts = Counter(int(due_s // TICK_S) for due_s in arrivals)
    assert max(abs(counts[tick] - rate * TICK_S) for tick, rate in enumerate(rates)) <= 1.5
    assert counts.total() == pytest.approx(sum(rates) * TICK_S, abs=2)


def test_requests_go_on_at_the_last_rate() -> None:
    later = takewhile(lambda due_s: due_s < 110.0, plan_arrivals([1.0, 2.0], TICK_S, seed=1))
    assert sum(due_s >= 10.0 for due_s in later) == pytest.approx(200, abs=2)


def test_a_decision_has_its_time_in_the_trace_and_what_it_moved() -> None:
    move = {"inference": "bench-fidelity/home", "from": 1, "to": 3}
    body = {
        "spec": {"at": "2026-01-01T12:01:30.250+00:00", "trigger": "Interval", "moves": [move]},
        "status": {"outcome": {"movedSlices": 2, "reclaimSeconds": 4.1}},
    }
    begin = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
    assert RunDecision.parse(body, begin) == RunDecision(90.2, "Interval", {"home": [1, 3]}, 2, 4.1)
    unfinished = {"spec": {**body["spec"], "moves": []}}
    assert RunDecision.parse(unfinished, begin) == RunDecision(90.2, "Interval", {}, 0, None)


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    counts, trace = RequestCounts(20.0, 21.0), DemandTrace((0.0, 5.0), {"bench-fidelity/home": (4.0, None)})
    day = SimulatedDay(a_compute_pool(), [an_inference("home", namespace="bench-fidelity")], trace)
    run = ClusterRun(
        ticks=[ClusterTick(0.0, {"home": 1.5}, {"home": 1.0}, {"home": counts}, 12, 31.0)],
        missed={"home": [2, 3]},
        decisions=[RunDecision(90.2, "Interval", {"home": [1, 3]}, 2, 4.1)],
        day=day,
        what_if={"asked": {"home": [1, 3]}},
        played={"home": {"answered": 20}},
        problems={"TimeoutError()": 1},
    )
    save_run(run, tmp_path / "run.json")
    assert load_run(tmp_path / "run.json") == run
