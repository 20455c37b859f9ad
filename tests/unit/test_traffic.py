"""Counters of gateways that come, go and restart, as rates."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from builders.model_access import a_model_access, a_route
from tidegate.api.meta import ObjectKey
from tidegate.planning.access.release_sample import RequestTally
from tidegate.planning.access.traffic import (
    CounterPage,
    CounterPages,
    RequestCounters,
    RouteCounters,
    compute_p99_s,
    compute_rates,
)
from tidegate.planning.access.value_classes import RouteDemand, index_routes
from tidegate.planning.allocator.signals import ClassRates, MetricsScrape

CTR = ObjectKey("ads", "ctr")
PLACE, RELEASED = "inference/ads/ctr/grpc", "release/ads/ctr/ctr/grpc"


def a_page(at_s: float, requests: int, *, uptime_s: float | None = None, failures: int = 0) -> CounterPage:
    uptime = at_s if uptime_s is None else uptime_s
    return CounterPage(uptime, at_s, {PLACE: RequestCounters(CTR, requests, answered=requests - failures)})


def between(before: CounterPages, **pages: CounterPage) -> MetricsScrape:
    return compute_rates(before, tuple(pages), pages, {})[0]


def offered(look: MetricsScrape) -> float | None:
    return look.by_key[CTR].offered_per_s


def test_a_rate_is_what_came_between_two_looks_at_all_gateways() -> None:
    look = between(
        {"a": a_page(100, 50), "b": a_page(100, 7)}, a=a_page(130, 350, failures=60), b=a_page(130, 37)
    )
    assert offered(look) == 11.0
    assert look.by_key[CTR].served_per_s == 9.0
    assert (look.silent_gateways, look.failure) == ((), "")


def test_the_first_look_has_no_rates() -> None:
    look = between({}, a=a_page(100, 50))
    assert look.failure == "a rate needs two looks, and this was the first"
    assert not look.by_key


def test_one_that_does_not_answer_is_silent_and_counts_from_where_it_was_heard_last() -> None:
    before = {"a": a_page(100, 0), "b": a_page(100, 0)}
    look, pages = compute_rates(before, ("a", "b"), {"a": a_page(130, 300)}, {})
    assert (offered(look), look.silent_gateways) == (10.0, ("b",))
    look, _ = compute_rates(pages, ("a", "b"), {"a": a_page(160, 600), "b": a_page(160, 600)}, {})
    assert (offered(look), look.silent_gateways) == (20.0, ())


def test_one_that_is_gone_took_along_what_it_counted_last() -> None:
    look, pages = compute_rates(
        {"a": a_page(100, 0), "b": a_page(100, 0)}, ("a",), {"a": a_page(130, 30)}, {}
    )
    assert look.silent_gateways == ("b",)
    assert pages.keys() == {"a"}


def test_a_new_one_counts_from_its_start_and_an_unknown_one_is_silent_once() -> None:
    known = {"a": a_page(100, 0)}
    new = between(known, a=a_page(130, 300), b=a_page(130, 60, uptime_s=20))
    assert (offered(new), new.silent_gateways) == (12.0, ())
    old = between(known, a=a_page(130, 300), b=a_page(130, 6_000, uptime_s=900))
    assert (offered(old), old.silent_gateways) == (10.0, ("b",))


def test_one_that_restarted_counts_from_nothing_and_is_silent_once() -> None:
    for page in (a_page(130, 60, uptime_s=12), a_page(130, 20_000, uptime_s=12)):
        look = between({"a": a_page(100, 9_000)}, a=page)
        assert offered(look) == page.counters[PLACE].attempts / 30
        assert look.silent_gateways == ("a",)


@given(steps=st.lists(st.floats(1.0, 60.0), min_size=2, max_size=30), started=st.floats(0.0, 5.0))
def test_one_that_looks_at_its_age_every_five_seconds_only_began_once(
    steps: list[float], started: float
) -> None:
    """As Envoy does, when it flushes its statistics; between two of those it is as old as it was."""
    pages: CounterPages = {}
    at_s = 100.0
    for number, step in enumerate(steps):
        at_s += step
        seen_at = at_s - (at_s - started) % 5.0
        page = a_page(at_s, 0, uptime_s=float(int(seen_at - started)))
        look, pages = compute_rates(pages, ("a",), {"a": page}, {})
        assert look.silent_gateways == (("a",) if number == 0 else ())


@given(st.lists(st.integers(0, 1_000), min_size=2, max_size=20))
def test_requests_in_flight_are_no_failures_that_come_and_go(in_flight: list[int]) -> None:
    pages: CounterPages = {}
    for number, waiting in enumerate(in_flight, start=1):
        sent = 5_000_000 + 30_000 * number
        counters = RequestCounters(CTR, sent, answered=sent - waiting, times={5: sent - waiting})
        page = CounterPage(9_000 + 30.0 * number, 30.0 * number, {PLACE: counters})
        look, pages = compute_rates(pages, ("a",), {"a": page}, {})
        if number > 1:
            answered = 30_000 + in_flight[number - 2] - waiting
            assert (offered(look), look.by_key[CTR].served_per_s) == (1_000.0, answered / 30)


def test_an_envoy_cluster_that_goes_or_restarts_is_no_gateway_that_does() -> None:
    def page(at_s: float, **attempts: int) -> CounterPage:
        places = {"direct": PLACE, "released": RELEASED}
        return CounterPage(
            at_s,
            at_s,
            {places[one]: RequestCounters(CTR, count, answered=count) for one, count in attempts.items()},
        )

    before = page(100, direct=9_000, released=50_000)
    ended = between({"a": before}, a=page(130, direct=9_300))
    assert (offered(ended), ended.silent_gateways) == (10.0, ())
    again = between({"a": before}, a=page(130, direct=9_300, released=60))
    assert (offered(again), again.silent_gateways) == (12.0, ())
    came = between({"a": page(100, direct=9_000)}, a=page(130, direct=9_300, released=90))
    assert (offered(came), came.silent_gateways) == (13.0, ())


def test_any_figure_that_fell_says_that_all_of_its_place_are_new() -> None:
    base = RequestCounters(CTR, 100, 10, 80, 5, 4, {5: 80})
    new = RequestCounters(CTR, 300, 30, 240, 15, 12, {5: 240})
    assert new.count_since(base) == RequestCounters(CTR, 200, 20, 160, 10, 8, {5: 160})
    for fell in (
        replace(new, attempts=99),
        replace(new, retries=9),
        replace(new, answered=79),
        replace(new, failed_later=4),
        replace(new, timed_out=3),
        replace(new, times={5: 79, 9: 161}),
    ):
        assert fell.count_since(base) is fell


def test_a_count_of_unserved_requests_that_fell_is_new() -> None:
    pages = {"a": CounterPage(130, 130, {}, {"access/ads/ctr/default": 60})}
    before = {"a": CounterPage(100, 100, {}, {"access/ads/ctr/default": 800})}
    look, _ = compute_rates(before, ("a",), pages, {"access/ads/ctr/default": RouteDemand({CTR: 1.0})})
    assert offered(look) == 2.0


def test_requests_beyond_the_admitted_share_are_demand_that_was_refused() -> None:
    pages = {"a": CounterPage(130, 130, {}, priced_out={"access/ads/ctr/default": 90})}
    before = {"a": CounterPage(100, 100, {}, priced_out={"access/ads/ctr/default": 30})}
    demand = RouteDemand({CTR: 1.0}, value=2.0, sheds=True)
    look, _ = compute_rates(before, ("a",), pages, {"access/ads/ctr/default": demand})
    assert (offered(look), look.by_key[CTR].refused_per_s) == (2.0, 2.0)
    assert look.by_key[CTR].classes == (ClassRates(2.0, True, 2.0, 0.0, 2.0),)


def test_requests_that_a_pipeline_refuses_are_demand_of_each_model_that_it_needs() -> None:
    """Those that it answers are not, because its calls are counted; nor are those without an available pod of its own."""
    models = [
        {"inference": "small", "as": "prerank"},
        {"inference": "ctr", "as": "pctr"},
        {"inference": "ctr", "as": "second"},
        {"inference": "cvr", "as": "pcvr", "optional": True, "timeout": "20ms", "default": "0"},
        {"access": "other", "as": "third"},
    ]
    route = {"name": "home", "pipeline": {"models": models}, "value": "2"}
    control = {"admissionControl": {"mode": "Priced"}}
    routes = index_routes([a_model_access("scene", routes=[route], protection=control)])
    name = "access/ads/scene/home"
    pages = {"a": CounterPage(130, 130, {}, {name: 60}, {name: RouteCounters(90, 90)}, priced_out={name: 90})}
    before = {"a": CounterPage(100, 100, {}, {name: 30}, {name: RouteCounters(0, 0)}, priced_out={name: 30})}
    look, _ = compute_rates(before, ("a",), pages, routes)
    assert {key.name: one.offered_per_s for key, one in look.by_key.items()} == {"ctr": 2.0, "small": 2.0}
    for one in look.by_key.values():
        assert one.refused_per_s == 2.0
        assert one.classes == (ClassRates(2.0, True, 2.0, 0.0, 2.0),)


def test_what_a_fallback_answers_for_less_is_demand_that_its_targets_lack() -> None:
    fallback = {"inference": "small", "valuePercent": 75}
    targets = [{"inference": "ctr", "weight": 1}, {"inference": "cvr", "weight": 3}]
    route = a_route(targets=targets, fallback=fallback, value="2")
    control = {"admissionControl": {"mode": "Priced"}}
    routes = index_routes([a_model_access("ctr", routes=[route], protection=control)])
    name = "access/ads/ctr/default/reduced"
    pages = {"a": CounterPage(130, 130, {}, routes={name: RouteCounters(100, 90)})}
    before = {"a": CounterPage(100, 100, {}, routes={name: RouteCounters(40, 30)})}
    look, _ = compute_rates(before, ("a",), pages, routes)
    refused = {key.name: (one.offered_per_s, one.refused_per_s) for key, one in look.by_key.items()}
    assert refused == {"ctr": (0.5, 0.5), "cvr": (1.5, 1.5)}
    # A target's answer would have been worth 2 instead of 1.5.
    assert look.by_key[CTR].classes == (ClassRates(0.5, True, 0.5, 0.0, 0.5),)


def test_nobody_at_all_is_a_failure() -> None:
    before = {"a": a_page(100, 0)}
    assert compute_rates(before, (), {}, {})[0].failure == "none takes traffic"
    assert compute_rates(before, ("a",), {}, {})[0].failure == "none of 1 answers"


def test_a_page_read_twice_is_no_division_by_zero() -> None:
    assert between({"a": a_page(100, 5)}, a=a_page(100, 5)).silent_gateways == ("a",)


def test_what_no_pod_answered_goes_to_the_targets_by_weight() -> None:
    targets = [{"inference": "ctr", "weight": 3}, {"inference": "cvr", "weight": 1}]
    routes = index_routes([a_model_access("ctr", routes=[a_route(targets=targets)])])
    pages = {"a": CounterPage(130, 130, {}, {"access/ads/ctr/default": 120, "access/ads/other/default": 50})}
    before = {"a": CounterPage(100, 100, {}, {"access/ads/ctr/default": 80})}
    look, _ = compute_rates(before, ("a",), pages, routes)
    assert {key.name: one.offered_per_s for key, one in look.by_key.items()} == {
        "ctr": 1.0,
        "cvr": 40 / 4 / 30,
    }


def test_a_percentile_counts_those_without_an_answer_as_the_slowest() -> None:
    assert compute_p99_s(RequestTally()) is None
    assert compute_p99_s(RequestTally(1_000, 0, {10: 990, 250: 10})) == 0.010
    assert compute_p99_s(RequestTally(1_000, 0, {10: 989, 250: 11})) == 0.250
    assert compute_p99_s(RequestTally(100, 5, {10: 95}, 5)) == float("inf")


@given(st.lists(st.tuples(st.integers(0, 10_000), st.booleans()), max_size=20))
def test_a_rate_is_never_negative_nor_more_than_what_was_counted(counters: list[tuple[int, bool]]) -> None:
    pages: CounterPages = {}
    for number, (count, young) in enumerate(counters, start=1):
        at_s = 30.0 * number
        page = a_page(at_s, count, uptime_s=3.0 if young else at_s)
        look, pages = compute_rates(pages, ("a",), {"a": page}, {})
        for reading in look.by_key.values():
            assert 0 <= (reading.offered_per_s or 0) <= count / 30
