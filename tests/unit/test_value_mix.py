"""What requests are worth: the mix that clients send, what the solver makes of it, and the value that is served, refused and lost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from numpy.random import Generator, default_rng

from builders.allocator import NOW, a_member, observed
from builders.inference import an_inference
from builders.model_access import a_model_access, a_route
from tidegate.allocation.curves import linear_curve
from tidegate.allocation.errors import InvalidInputError
from tidegate.allocation.snapshot import DemandInput, ModelInput, PlacementInput, ValueClass
from tidegate.allocation.solver import Solver
from tidegate.api.inference import Tier
from tidegate.api.meta import ObjectKey
from tidegate.planning.access.traffic import CounterPage, RequestCounters, RouteCounters, compute_rates
from tidegate.planning.access.value_classes import RouteDemands, index_routes
from tidegate.planning.allocator.observed_pool import AllocationObserved
from tidegate.planning.allocator.signals import ClassRates, Signal, Signals
from tidegate.planning.allocator.snapshot_builder import build_allocation_view
from tidegate.planning.allocator.value_mix import (
    ValueMix,
    ValueRates,
    compute_mix,
    compute_value_rates,
    update_mixes,
)

CTR, CVR = ObjectKey("ads", "ctr"), ObjectKey("ads", "cvr")
GOLD = {"headers": [{"name": "x-segment", "exact": "gold"}]}
CAPACITY = {"requestsPerSecond": "100"}


def rates(value: float | None, offered: float, *, sheds: bool = False, **more: float) -> ClassRates:
    return ClassRates(value, sheds, offered, **more)


def a_signal(*classes: ClassRates, **more: Any) -> Signal:
    return Signal(sum(each.offered_per_s for each in classes), NOW, classes=classes, **more)


def access_of(name: str, *, gold: str = "5", **spec: Any) -> Any:
    return a_model_access(
        name, routes=[a_route("gold", name, match=GOLD, value=gold), a_route("rest", name)], **spec
    )


def page(at_s: float, count: int, gold: int) -> CounterPage:
    """Both models were sent `count` requests, `gold` of those to ctr on its route gold."""
    counters = {
        f"inference/ads/{key.name}/grpc": RequestCounters(key, count, answered=count) for key in (CTR, CVR)
    }
    routes = {
        "access/ads/ctr/gold": RouteCounters(gold, gold),
        "access/ads/ctr/rest": RouteCounters(count - gold, count - gold),
        "access/ads/cvr/rest": RouteCounters(count, count),
    }
    return CounterPage(at_s, at_s, counters, {}, routes)


def contended(gold: int, **spec: Any) -> AllocationObserved:
    """Two models of one replica each are sent 200/s, `gold` of them a segment that is worth 5, and one slice is free."""
    routes = index_routes([access_of("ctr", **spec), access_of("cvr", **spec)])
    return compete(routes, page(100, 0, 0), page(110, 2_000, 10 * gold))


def compete(routes: RouteDemands, before: CounterPage, after: CounterPage) -> AllocationObserved:
    """Both models have one replica, and one slice is free."""
    scrape, _ = compute_rates({"a": before}, ("a",), {"a": after}, routes)
    by_key = {
        key: Signal(metrics.offered_per_s or 0.0, NOW, classes=metrics.classes)
        for key, metrics in scrape.by_key.items()
    }
    members = [a_member(name, 1, least=1, capacity=CAPACITY) for name in ("cvr", "ctr")]
    signals = Signals(by_key, "")
    mixes = update_mixes({}, [member.inference for member in members], signals)
    return observed(*members, slices=(3,), signals=signals, mixes=mixes)


def replicas(seen: AllocationObserved) -> dict[str, int]:
    assignment = Solver(time.monotonic).solve(build_allocation_view(seen).snapshot)
    return {assigned.inference: assigned.replicas for assigned in assignment.replicas}


@pytest.mark.parametrize("protection", [{}, {"protection": {"admissionControl": {}}}], ids=["mean", "shed"])
def test_a_segment_worth_more_decides_who_gets_the_slice(protection: dict[str, Any]) -> None:
    # All requests of ctr are of the segment, then none: with equal mixes the free slice goes by name alone, as without values.
    assert replicas(contended(200, **protection)) == {"ads/ctr": 2, "ads/cvr": 1}
    plain = replicas(contended(0, **protection))
    assert plain == replicas(replace(contended(0, **protection), mixes={}))
    assert sum(plain.values()) == 3


@pytest.mark.parametrize("model", ["ctr", "cvr"])
def test_requests_that_a_pipeline_refuses_get_its_model_the_slice(model: str) -> None:
    route = {"name": "home", "pipeline": {"models": [{"inference": model, "as": "p"}]}, "value": "2"}
    protection = {"admissionControl": {"mode": "Priced"}}
    routes = index_routes([a_model_access("scene", routes=[route], protection=protection)])
    before, after = (
        replace(page(at_s, count, 0), priced_out={"access/ads/scene/home": count})
        for at_s, count in ((100, 0), (110, 900))
    )
    other = {"ctr": "cvr", "cvr": "ctr"}[model]
    assert replicas(compete(routes, before, after)) == {f"ads/{model}": 2, f"ads/{other}": 1}


def test_where_low_values_are_rejected_first_another_replica_serves_the_rest_alone() -> None:
    # 100/s of the segment fit into the one replica: a second one would serve requests worth 1, a tenth less than cvr's.
    shed = {"protection": {"admissionControl": {}}}
    for spec, expected in ((shed, {"ads/ctr": 1, "ads/cvr": 2}), ({}, {"ads/ctr": 2, "ads/cvr": 1})):
        seen = contended(100, **spec)
        worth = replace(seen, mixes={**seen.mixes, CVR: ValueMix(1.1)})
        assert replicas(worth) == expected


def test_the_mix_is_the_mean_or_the_classes_that_are_shed() -> None:
    assert compute_mix(2.0, []) == ValueMix(2.0)
    mix = compute_mix(2.0, [rates(None, 30), rates(8.0, 10)])
    assert (mix.mean, mix.classes) == (3.5, ())
    shed = compute_mix(2.0, [rates(None, 30, sheds=True), rates(8.0, 10, sheds=True)])
    assert (shed.mean, shed.classes) == (3.5, (ValueClass(8.0, 0.25), ValueClass(2.0, 0.75)))
    # Those of another access that sheds nothing are one class of their mean.
    both = compute_mix(2.0, [rates(6.0, 20), rates(None, 20), rates(9.0, 40, sheds=True)])
    assert both.classes == (ValueClass(9.0, 0.5), ValueClass(4.0, 0.5))
    assert compute_mix(1.0, [rates(0.0, 5)]).mean == 1e-9
    many = compute_mix(1.0, [rates(float(value), 1, sheds=True) for value in range(1, 65)])
    assert len(many.classes) == 6
    assert sum(each.value * each.share for each in many.classes) == pytest.approx(many.mean)


def follow(
    *scrapes: Signal, inference: Any = None, before: Mapping[ObjectKey, ValueMix] | None = None
) -> list[ValueMix]:
    """Return the mix after each of these scrapes, which are 15 s apart."""
    mixes, seen, first = before or {}, [], 1 + len(before or {})
    for number, scrape in enumerate(scrapes, first):
        signal = replace(scrape, read_at=NOW + number * timedelta(seconds=15))
        mixes = update_mixes(mixes, [inference or an_inference("ctr")], Signals({CTR: signal}, ""))
        seen.append(mixes[CTR])
    return seen


def chance_of(random: Generator, minutes: int, *classes: tuple[float | None, float]) -> list[Signal]:
    """Return scrapes of minutes of (value, requests per second), each with as many requests as chance has it."""
    return [
        a_signal(*(rates(value, random.poisson(15 * rate) / 15) for value, rate in classes))
        for _ in range(4 * minutes)
    ]


def test_chance_changes_no_mix_and_a_change_does() -> None:
    random = default_rng(5)
    rare = chance_of(random, 60, (1.0, 0.5), (100.0, 0.05))
    means = [mix.mean for mix in follow(*rare)]
    assert sum(old != new for old, new in pairwise(means)) <= 12
    assert all(5 < mean < 20 for mean in means[40:])
    steady = follow(*chance_of(random, 60, (None, 100.0), (5.0, 100.0)))
    assert len(set(steady)) == 1
    (fewer,) = follow(*rare)[-1:]
    gone = follow(*chance_of(random, 30, (1.0, 0.5), (100.0, 0.0)), before={CTR: fewer})
    assert gone[-1].mean < 2


def test_silence_keeps_the_mix_and_a_new_value_counts_at_once() -> None:
    both = a_signal(rates(None, 100), rates(5.0, 100))
    (first,) = follow(both)
    assert first.mean == 3.0
    silent = [a_signal(rates(None, 0), rates(5.0, 0))] * 4_000
    assert follow(both, *silent)[-1] == first
    assert follow(both, replace(a_signal(), held_reason="the gateways say nothing"))[-1] == first
    # Ten requests after a long silence do not decide the mix.
    assert follow(both, *silent, a_signal(rates(None, 0.7), rates(5.0, 0)))[-1] == first
    # Of 5.0 there is no route any more: its requests do not count.
    changed = follow(both, a_signal(rates(None, 100), rates(5.1, 100)))[-1]
    assert changed.stated == {1.0, 5.1}
    assert 2 < changed.mean < 3
    assert update_mixes({CTR: first}, [an_inference("cvr")], Signals({CTR: both}, "")) == {}


def test_requests_that_no_route_counts_have_the_value_of_the_inference() -> None:
    # A thousand requests a second of a pipeline, and one of a route.
    signal = replace(a_signal(rates(100.0, 1, served_per_s=1.0)), offered_per_s=1001.0, served_per_s=1001.0)
    (mix,) = follow(signal)
    assert mix.mean == pytest.approx(1100 / 1001)
    measured = compute_value_rates(an_inference("ctr"), signal)
    assert measured is not None
    assert (measured.offered, measured.served) == pytest.approx((1100, 1100))
    assert (measured.refused, measured.lost) == (0.0, 0.0)


def test_a_rise_that_is_held_has_no_value_yet() -> None:
    held = Signal(200.0, NOW, held_reason="rose to 900/s at once", served_per_s=900.0)
    assert compute_value_rates(an_inference("ctr"), held) is None
    assert compute_value_rates(an_inference("ctr"), replace(held, held_reason="")) is not None


def test_value_is_served_refused_or_lost() -> None:
    ctr = an_inference("ctr", value={"perRequest": "2"})
    gold = rates(10.0, 50, sheds=True, served_per_s=40.0)
    rest = rates(None, 150, sheds=True, served_per_s=60.0, refused_per_s=70.0)
    signal = a_signal(gold, rest, served_per_s=100.0, refused_per_s=70.0)
    assert compute_value_rates(ctr, signal) == ValueRates(800.0, 520.0, 140.0, 140.0)
    # What a limit refuses is of the mix that admission control lets pass: 50 at 10 and 80 at 2.
    limited = compute_value_rates(ctr, replace(signal, refused_per_s=83.0))
    assert limited is not None
    assert limited.refused == pytest.approx(140 + 13 * 660 / 130)
    assert compute_value_rates(ctr, Signal(10.0, NOW, served_per_s=9.0)) == ValueRates(20.0, 18.0, 0.0, 2.0)
    assert compute_value_rates(ctr, Signal(10.0, NOW, fresh=False, served_per_s=9.0)) is None
    assert compute_value_rates(ctr, Signal(10.0, NOW)) is None


def a_model(*classes: ValueClass, value: float = 1.0) -> ModelInput:
    placement = PlacementInput("cpu-a", linear_curve(100.0))
    return ModelInput(
        "ads/ctr", Tier.REALTIME, (placement,), DemandInput((100.0,), classes=classes), value=value
    )


@pytest.mark.parametrize(
    ("classes", "path"),
    [
        ([(float("nan"), 1.0)], "load.classes[0].value: nan is not a number"),
        ([(-1.0, 1.0)], "load.classes[0].value: -1 is outside"),
        ([(1e308, 1.0)], "load.classes[0].value: 1e+308 is outside"),
        ([(5.0, 0.5), (1.0, float("inf"))], "load.classes[1].share: inf is not a number"),
        ([(5.0, 0.5), (1.0, 0.4)], "load.classes: the shares sum to 0.9"),
        ([(1.0, 0.5), (5.0, 0.5)], "load.classes[1].value: is not below"),
    ],
)
def test_impossible_classes_are_refused_by_their_path(classes: list[tuple[float, float]], path: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        a_model(*(ValueClass(value, share) for value, share in classes))
    assert str(refused.value).startswith(f"inference ads/ctr: {path}")


def test_the_value_of_what_is_served_is_concave() -> None:
    model = a_model(ValueClass(5.0, 0.2), ValueClass(1.0, 0.8), value=1.8)
    assert [model.value_of_served(100.0, rate) for rate in (0, 10, 20, 60, 100, 500)] == [
        0,
        50,
        100,
        140,
        180,
        180,
    ]
    assert a_model(value=3.0).value_of_served(100.0, 40.0) == 120.0
