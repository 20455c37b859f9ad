"""The allocator's question, changed: what the solver is told then, and what it answers."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from pydantic import ValidationError
from typer.testing import CliRunner

from builders.allocation import a_model, a_placement, a_pool, a_snapshot, snapshots
from tidegate.allocation import codec
from tidegate.allocation.errors import InvalidInputError
from tidegate.allocation.snapshot import AllocationSnapshot, DemandInput, ReplicaBounds, TierRule, ValueClass
from tidegate.allocation.solver import Solver
from tidegate.api.allocation_decision import MeasuredValue
from tidegate.api.compute_pool import PolicyMode
from tidegate.api.inference import Tier
from tidegate.api.what_if import WhatIf
from tidegate.main import app
from tidegate.planning.allocator.latency import LatencyMeasurement
from tidegate.planning.allocator.what_if import WhatIfAnswer, apply_changes, build_answer
from tidegate.reports.plan import PlanReport

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def four_slices() -> AllocationSnapshot:
    """ads/ctr has one of the four and is asked for what one serves; nobody has the others."""
    held = a_placement(ready=1)
    return a_snapshot(
        a_pool(slices=4),
        a_model("ctr", Tier.REALTIME, held, load=DemandInput((90.0,)), bounds=ReplicaBounds(1, 4)),
    )


def otherwise(snapshot: AllocationSnapshot, **question: Any) -> AllocationSnapshot:
    return apply_changes(snapshot, WhatIf.model_validate(question))


def asked(snapshot: AllocationSnapshot, **question: Any) -> WhatIfAnswer:
    after = otherwise(snapshot, **question)
    assignment = Solver(time.monotonic).solve(after)
    return build_answer(after, assignment, pool="gpu-a", time=NOW, mode=PolicyMode.AUTO, seconds=0.01)


@given(snapshots())
def test_a_snapshot_is_read_as_it_was_written(snapshot: AllocationSnapshot) -> None:
    read = codec.decode_snapshot(json.loads(json.dumps(codec.encode_snapshot(snapshot), allow_nan=False)))
    assert read == snapshot


def test_what_was_read_is_decided_about_alike() -> None:
    assert (
        codec.decode_snapshot(codec.encode_snapshot(four_slices())).inputs_hash == four_slices().inputs_hash
    )


@pytest.mark.parametrize("body", [None, [], {"pools": []}, {"pools": [], "inferences": [{"key": 1}]}])
def test_what_is_no_snapshot_is_refused(body: object) -> None:
    with pytest.raises(InvalidInputError):
        codec.decode_snapshot(body)


@given(snapshots())
def test_without_changes_it_is_the_same_question(snapshot: AllocationSnapshot) -> None:
    assert apply_changes(snapshot, WhatIf()) == snapshot


def test_more_demand_takes_more_slices_and_says_what_they_serve() -> None:
    calm = asked(four_slices())
    assert (calm.decision.moves, calm.now.slo_misses) == ((), 0.0)
    rush = asked(four_slices(), inferences=[{"inference": "ads/ctr", "demand": 250}])
    [move] = rush.decision.moves
    assert (move.before, move.after) == (1, 3)
    assert (rush.now.slo_misses, rush.decision.predicted and rush.decision.predicted.slo_misses) == (
        150.0,
        0.0,
    )
    assert rush.decision.trigger is None
    twice = asked(four_slices(), factor=2)
    assert [each.after for each in twice.decision.moves] == [2]
    # Its own factor is the one that counts.
    own = otherwise(four_slices(), factor=2, inferences=[{"inference": "ads/ctr", "factor": 3}])
    assert own.inferences[0].load == DemandInput((270.0,))


@pytest.mark.parametrize(("factor", "expectation"), [(1.5, ""), (1, "expected for sale-20h: 3 x 200/s")])
def test_a_multiple_of_the_demand_is_not_what_an_event_brings(factor: float, expectation: str) -> None:
    [ctr] = four_slices().inferences
    load = DemandInput((600.0,), expectation="expected for sale-20h: 3 x 200/s")
    sale = replace(four_slices(), inferences=(replace(ctr, load=load),))
    assert otherwise(sale, factor=factor).inferences[0].load == DemandInput(
        (600.0 * factor,), expectation=expectation
    )


def test_fewer_slices_are_not_exceeded() -> None:
    rush = asked(four_slices(), slices=2, inferences=[{"inference": "ads/ctr", "demand": 400}])
    assert [each.after for each in rush.decision.moves] == [2]
    assert rush.decision.predicted is not None
    assert rush.decision.predicted.slo_misses == 200.0


def test_bounds_floors_and_values() -> None:
    bounded = otherwise(four_slices(), inferences=[{"inference": "ads/ctr", "maxReplicas": 2, "value": 5}])
    [model] = bounded.inferences
    assert (model.bounds.ceiling, model.bounds.ceiling_source, model.value) == (2, "the question", 5.0)
    below = otherwise(four_slices(), inferences=[{"inference": "ads/ctr", "maxReplicas": 0}])
    assert (below.inferences[0].bounds.floor, below.inferences[0].bounds.ceiling) == (0, 0)
    floors = otherwise(
        four_slices(), tiers=[{"tier": "offline", "floor": 2}, {"tier": "realtime", "ceiling": 1}]
    )
    assert set(floors.pools[0].tiers) == {TierRule(Tier.OFFLINE, 2), TierRule(Tier.REALTIME, 0, 1)}


def test_what_holds_the_pool_can_be_left_aside() -> None:
    held = a_snapshot(a_pool(slices=4, hold=True, budget=0), a_model("ctr", Tier.REALTIME, a_placement()))
    [pool] = otherwise(held, withoutBudget=True).pools
    assert (pool.hold, pool.budget) == (False, None)


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (
            {"inferences": [{"inference": "ads/cvr", "factor": 2}]},
            "decides about no ads/cvr; there are ads/ctr",
        ),
        ({"inferences": [{"inference": "ads/ctr", "minReplicas": 9}]}, "9 is above 4"),
        ({"tiers": [{"tier": "offline", "floor": 3, "ceiling": 2}]}, "2 is below 3"),
    ],
)
def test_questions_that_cannot_be_are_refused_by_name(question: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        otherwise(four_slices(), **question)


@pytest.mark.parametrize(
    "question",
    [
        {"inferences": [{"inference": "ads/ctr", "demand": 1, "factor": 2}]},
        {"factor": -1},
        {"slices": 1.5},
        {"tiers": [{"tier": "sometime"}]},
        {"unknown": 1},
    ],
)
def test_questions_of_another_shape_are_refused(question: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        WhatIf.model_validate(question)


def test_the_report_says_moves_and_what_they_are_for() -> None:
    question = WhatIf.model_validate({"inferences": [{"inference": "ads/ctr", "demand": 250}]})
    report = PlanReport.from_answer(asked(four_slices(), **question.model_dump(by_alias=True)), NOW, question)
    lines = list(report.render_lines(wide=True))
    assert lines[0] == "ComputePool gpu-a, as the allocator saw it at 2026-01-01T12:00:00Z"
    assert lines[1].startswith("  moves       ads/ctr (realtime) 1 -> 3: ")
    [missed] = [line for line in lines if line.startswith("  missed ")]
    assert missed == "  missed      150 -> 0 real-time requests per second beyond the SLO, worth 150 -> 0"
    assert not any(line.startswith("  measured ") for line in lines)
    assert lines[-1].startswith("  found       by LP in 0.01 s")
    assert list(report.object_names()) == ["inference.tidegate.io/ctr"]
    calm = list(PlanReport.from_answer(asked(four_slices()), NOW, WhatIf()).render_lines(wide=False))
    assert calm[1] == "  moves       nothing: everybody has what they would be given"


def test_the_report_says_what_became_of_the_value_that_was_asked_for() -> None:
    values = {
        "ads/ctr": MeasuredValue(offered=120, served=100, refused=15, lost=5),
        "ads/cvr": MeasuredValue(offered=300, served=300),
        "ads/log": MeasuredValue(offered=50, served=25, lost=25),
    }
    report = PlanReport.from_answer(asked(four_slices()), NOW, WhatIf(), values)
    assert report.measured == MeasuredValue(offered=470, served=425, refused=15, lost=30)
    # The one that misses most comes first.
    assert [each.inference for each in report.values] == ["ads/log", "ads/ctr", "ads/cvr"]
    told = "  measured    425 of 470 value per second served, 15 refused, 30 lost"
    assert told in list(report.render_lines(wide=False))


def p99_lines(*, wide: bool = False, slo: LatencyMeasurement | None, **question: Any) -> list[str]:
    """What a plan says about the p99."""
    answer = asked(four_slices(), **question)
    latencies = {} if slo is None else {"ads/ctr": slo}
    report = PlanReport.from_answer(answer, NOW, WhatIf.model_validate(question), {}, latencies)
    return [line.strip() for line in report.render_lines(wide=wide) if line.startswith("  p99 ")]


def test_the_report_predicts_the_p99_with_its_bounds() -> None:
    rush: dict[str, Any] = {"inferences": [{"inference": "ads/ctr", "demand": 250}]}
    slo = LatencyMeasurement(0.05, 0.02, 0.4)
    expected = "p99         ads/ctr over 50 ms -> about 35.3 ms (20 to 50), the SLO is 50 ms"
    assert p99_lines(slo=slo, **rush) == [expected]
    low = "p99         ads/ctr about 14.4 ms (at most 20), the SLO is 50 ms"
    assert p99_lines(slo=slo, inferences=[{"inference": "ads/ctr", "demand": 1}]) == [low]
    unmeasured = "p99         ads/ctr over 50 ms -> at most 50 ms, the SLO is 50 ms"
    assert p99_lines(slo=LatencyMeasurement(0.05), **rush) == [unmeasured]


def test_the_report_says_what_a_p99_takes_that_is_not_known() -> None:
    rush: dict[str, Any] = {"inferences": [{"inference": "ads/ctr", "demand": 250}]}
    assert p99_lines(slo=None, **rush) == [
        "p99         ads/ctr not known: it takes spec.slo, spec.capacity and a demand"
    ]


def test_the_report_leaves_out_a_p99_that_nothing_changes() -> None:
    slo = LatencyMeasurement(0.05, 0.02, 0.4)
    assert p99_lines(slo=slo) == []
    assert p99_lines(slo=slo, wide=True) == ["p99         ads/ctr about 40 ms (20 to 50), the SLO is 50 ms"]
    assert p99_lines(slo=None) == []


def test_the_mix_of_an_inference_is_that_of_the_solver() -> None:
    [ctr] = four_slices().inferences
    mixed = replace(
        ctr,
        load=DemandInput((90.0,), classes=(ValueClass(5.0, 0.2), ValueClass(1.0, 0.8))),
        value=1.8,
    )
    report = PlanReport.from_answer(asked(replace(four_slices(), inferences=(mixed,))), NOW, WhatIf())
    [row] = report.asked
    assert (row.value, [(part.value, part.share) for part in row.mix]) == (1.8, [(5.0, 0.2), (1.0, 0.8)])


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--demand", "ads/ctr"), 2, "want name=number"),
        (("--demand", "ads/ctr=many"), 2, "inferences.0.demand"),
        (("--floor", "sometime=1"), 2, "tiers.0.tier"),
        ((), 3, "no controllers process answers at 127.0.0.1:1"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: tuple[str, ...], code: int, said: str) -> None:
    given = ["plan", "gpu-a", "--address", "127.0.0.1:1", *arguments]
    refused = CliRunner().invoke(app, given, env={"COLUMNS": "200", "TERM": "dumb"})
    assert refused.exit_code == code
    assert said in refused.output + refused.stderr
