"""What people read of an Inference in several pools: its rows, its status, the lines of each pool, and who leaves it out."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from builders.compute_pool import a_compute_pool
from builders.inference import an_inference
from tidegate.api.inference import Inference
from tidegate.errors import PermanentError
from tidegate.reports.explanation import ExplanationInputs, explain_inference
from tidegate.reports.rows import InferenceRow
from tidegate.reports.status import RelatedObjects
from tidegate.reports.status_inference import report_inference
from tidegate.reports.status_pool import PoolObjects, report_pool
from tidegate.services.recorded_day import RecordedObjects, count_simulated_slices, explain_skip
from tidegate.simulation.changes import SimulatedDay
from tidegate.simulation.day import DayOptions, make_scenario
from tidegate.simulation.trace import DemandTrace

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SUMMARY = "cpu-a 2/2, cpu-b 0/1"


def spilled(**spec: Any) -> Inference:
    """Two replicas with two slices each in cpu-a, and one with three in cpu-b, which is not ready."""
    pools = [{"name": "cpu-a", "slices": 2}, {"name": "cpu-b", "slices": 3}]
    status = {
        "replicas": 3,
        "readyReplicas": 2,
        "poolSummary": SUMMARY,
        "pools": [
            {"name": "cpu-a", "replicas": 2, "readyReplicas": 2},
            {"name": "cpu-b", "replicas": 1, "readyReplicas": 0},
        ],
    }
    return an_inference(replicas=3, placement={"pools": pools}, status=status, **spec)


def test_rows_name_all_pools_and_the_status_has_each_pools_replicas() -> None:
    inference = spilled()
    assert InferenceRow.from_inference(inference).pool == "cpu-a,cpu-b"
    lines = list(report_inference(inference, (), (), RelatedObjects(NOW)).summary_lines(wide=False))
    assert any(f"ComputePools {SUMMARY} (ready/planned replicas)" in line for line in lines), lines
    explained = explain_inference(inference, ExplanationInputs(a_compute_pool("cpu-a"), (), (), NOW))
    assert explained.pool_summary == SUMMARY


def test_each_pool_lists_what_runs_there() -> None:
    placed: dict[str, tuple[int, int, int]] = {}
    for name in ("cpu-a", "cpu-b", "cpu-c"):
        report = report_pool(a_compute_pool(name), PoolObjects([spilled()], (), ()), RelatedObjects(NOW))
        for line in report.placed:
            placed[name] = line.decided, line.ready, line.slices
    assert placed == {"cpu-a": (2, 2, 4), "cpu-b": (1, 0, 3)}


def test_ready_slices_are_those_of_each_pool() -> None:
    assert spilled().ready_slices == 4
    one = an_inference(placement={"pool": "cpu-a", "slices": 3}, status={"readyReplicas": 2})
    assert one.ready_slices == 6
    assert an_inference().ready_slices is None


def test_a_recorded_day_leaves_it_out_and_its_slices_too() -> None:
    inference = spilled(capacity={"requestsPerSecond": "100"})
    assert explain_skip(inference) == "runs in several pools, and a simulation has one"
    pool = a_compute_pool("cpu-b", status={"slices": {"total": 8, "healthy": 8}})
    objects = RecordedObjects(pool, [inference])
    assert count_simulated_slices(objects) == 5


def test_a_simulation_refuses_it_by_name() -> None:
    trace = DemandTrace((0.0, 60.0), {"ads/ctr": (1.0, 1.0)})
    with pytest.raises(PermanentError, match=r"inference ads/ctr: runs in several pools.*placement\.pool"):
        make_scenario(
            SimulatedDay(a_compute_pool("cpu-a"), (spilled(capacity={"requestsPerSecond": "1"}),), trace),
            DayOptions(),
            lambda _: None,
        )
