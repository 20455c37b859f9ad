"""What `tidegate top` says: figures where they are known, and why not where they are not."""

from __future__ import annotations

import json
from datetime import timedelta
from math import inf
from typing import Any

import pytest

from builders.allocator import NOW, a_decision
from builders.compute_pool import a_compute_pool
from builders.inference import an_inference
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.signals import InferenceMetrics, MetricsScrape
from tidegate.reports.report import Report
from tidegate.reports.top import ModelTop, TopInputs, TopOrder, report_inferences, report_pools


def a_model(name: str, ready: int = 2, *, slices: int = 2, **spec: Any) -> Inference:
    """On slices of cpu-a."""
    placement = {"pool": "cpu-a", "slices": slices}
    return an_inference(
        name, status={"readyReplicas": ready}, placement=placement, replicas=max(ready, 1), **spec
    )


def busy(failure: str = "", silent: tuple[str, ...] = (), **readings: InferenceMetrics) -> TopInputs:
    by_key = {ObjectKey("ads", name): reading for name, reading in readings.items()}
    look = MetricsScrape("gateways", by_key, timedelta(), silent_gateways=silent, failure=failure)
    return TopInputs(look, 5.0, NOW, {"ads/ctr": 120.0})


def only(inference: Inference, measured: TopInputs) -> ModelTop:
    [found] = report_inferences([inference], measured, "ads").items
    return found


def text(report: Report, *, wide: bool = False) -> str:
    return "\n".join(report.render_lines(wide=wide))


def test_what_was_answered_is_worth_its_value_per_slice() -> None:
    model = a_model("ctr", value={"perRequest": "0.5"}, slo={"latencyP99": "30ms"})
    one = only(model, busy(ctr=InferenceMetrics(110.0, 100.0, 0.025)))
    assert (one.slices, one.value_per_second, one.value_per_slice) == (4, 50.0, 12.5)
    assert (one.requests_per_second, one.latency_p99_ms, one.misses_slo) == (110.0, 25.0, False)
    assert one.demand_per_second == 120.0
    assert only(model, busy(ctr=InferenceMetrics(1.0, 1.0, 0.031))).misses_slo


def test_what_nobody_counts_is_not_known_and_not_nothing() -> None:
    one = only(a_model("ctr"), busy())
    assert (one.requests_per_second, one.value_per_second, one.latency_p99_ms) == (None, None, None)
    assert not one.misses_slo
    row = text(report_inferences([a_model("ctr")], busy(), "ads")).splitlines()[1]
    assert row.split() == ["ads/ctr", "realtime", "cpu-a", "2/2", "4", "-", "-", "-", "-", "-"]


def test_offline_work_is_worth_its_slices_and_what_is_in_no_pool_has_none() -> None:
    offline = a_model("batch", 3, slices=1, tier="offline", value={"perRequest": "2"})
    one = only(offline, busy())
    assert (one.value_per_second, one.value_per_slice) == (6.0, 2.0)
    free = only(an_inference("ctr"), busy(ctr=InferenceMetrics(10.0, 10.0)))
    assert (free.slices, free.value_per_second, free.value_per_slice) == (None, 10.0, None)


def test_a_p99_that_does_not_exist_is_said_and_is_no_number_in_json() -> None:
    model = a_model("ctr", slo={"latencyP99": "30ms"})
    report = report_inferences([model], busy(ctr=InferenceMetrics(10.0, 1.0, inf)), "ads")
    assert (report.items[0].p99_unanswered, report.items[0].latency_p99_ms) == (True, None)
    assert "none!" in text(report)
    json.dumps(report.to_json(), allow_nan=False)


def test_the_busiest_come_first_or_what_was_asked_for() -> None:
    models = [a_model("a", 1), a_model("b", 3), a_model("c", 0)]
    measured = busy(a=InferenceMetrics(9.0, 9.0, 0.1), b=InferenceMetrics(10.0, 10.0, 0.2))

    def order(by: TopOrder) -> str:
        return "".join(each.inference[-1] for each in report_inferences(models, measured, None, by).items)

    assert {by: order(by) for by in TopOrder} == {
        TopOrder.REQUESTS: "bac",
        TopOrder.VALUE: "abc",
        TopOrder.SLICES: "bac",
        TopOrder.LATENCY: "bac",
        TopOrder.NAME: "abc",
    }


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (busy("none takes traffic"), "are not known: gateways: none takes traffic"),
        (busy(silent=("gateway-2",)), "at least what is said: nothing is known of gateway-2"),
    ],
)
def test_why_figures_are_missing_is_said(measured: TopInputs, said: str) -> None:
    assert said in text(report_inferences([a_model("ctr")], measured, "ads"))
    assert said in text(report_pools([a_compute_pool()], [], [], measured))


def test_a_pool_adds_up_what_is_known_and_says_of_how_many_it_is_not() -> None:
    pool = a_compute_pool(
        status={
            "nodes": 2,
            "slices": {"total": 12, "healthy": 10, "free": 2},
            "tiers": [{"name": "realtime", "slices": 8}],
        }
    )
    models = [a_model("ctr"), a_model("cvr"), a_model("off", 0), an_inference("free")]
    report = report_pools(
        [a_compute_pool("empty"), pool],
        models,
        [a_decision(("ctr", 1, 3), price=0.25)],
        busy(ctr=InferenceMetrics(50.0, 40.0)),
    )
    first, second = report.items
    assert (first.pool, first.used, first.use, first.inferences) == ("cpu-a", 8, 0.8, 3)
    assert (first.value_per_second, first.value_per_slice, first.unknown) == (40.0, 5.0, 1)
    assert first.price == 0.25
    assert (second.use, second.value_per_second, second.price) == (None, None, None)
    assert "of 1 of its Inferences the value is not known" in text(report)
    assert "REALTIME" in text(report, wide=True)
