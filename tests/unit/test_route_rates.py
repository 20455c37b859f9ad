"""Rates of routes from pages of gateways: over some seconds, summed, and unknown rather than zero."""

from __future__ import annotations

import pytest

from tidegate.telemetry.gateways import EnvoyStatistics
from tidegate.telemetry.route_rates import RoutePage, RouteRates, parse_route_page

REST = "access/ads/ctr/rest"
REJECTIONS = "tidegate.refused.route.access/ads/ctr/rest"


def test_a_page_counts_answers_and_what_models_were_to_answer_but_no_caller_that_may_not_call() -> None:
    statistics = EnvoyStatistics(7.0)
    statistics.add_lines(
        line.encode()
        for line in (
            "vhost.access/ads/ctr.route.rest.upstream_rq_completed: 10",
            "vhost.access/ads/ctr.route.rest.upstream_rq_2xx: 9",
            f"{REJECTIONS}/refused-grpc.reason.direct_response.envoy_cluster_name.-: 3",
            f"{REJECTIONS}/http.reason.denied_by_admission_control.envoy_cluster_name.inference/ads/ctr/http: 2",
            f"{REJECTIONS}/grpc.reason.direct_response.envoy_cluster_name.-: 4",
            f"{REJECTIONS}/http.reason.jwt_authn_access_denied_Jwt_is_missing.envoy_cluster_name.inference/ads/ctr/http: 70",
            f"{REJECTIONS}/grpc.reason.rbac_access_denied_matched_policy_none.envoy_cluster_name.-: 80",
            # The model rejected these: they are among its answers.
            f"{REJECTIONS}/grpc.reason.via_upstream.envoy_cluster_name.inference/ads/ctr/grpc: 90",
            "server.uptime: 5",
        )
    )
    assert parse_route_page(statistics) == RoutePage(7.0, {REST: 19})


def test_rates_are_taken_over_three_seconds_and_summed_over_gateways() -> None:
    rates = RouteRates()
    assert rates.add_pages({"a": RoutePage(0, {REST: 100}), "b": RoutePage(0, {})}, 0) is None
    measured = [
        rates.add_pages(
            {"a": RoutePage(second, {REST: count}), "b": RoutePage(second, {REST: 2 * second})}, second
        )
        for second, count in enumerate((110, 130, 130, 190, 190), start=1)
    ]
    assert measured[0] == {REST: pytest.approx(10 + 2)}
    assert measured[-1] == {REST: pytest.approx((190 - 130) / 3 + 2)}


def test_a_silent_gateway_keeps_its_rate_for_a_while() -> None:
    rates = RouteRates()
    rates.add_pages({"a": RoutePage(0, {REST: 0})}, 0)
    rates.add_pages({"a": RoutePage(1, {REST: 50})}, 1)
    assert rates.add_pages({"a": None}, 8) == {REST: 50}
    assert rates.add_pages({"a": None}, 12) is None


def test_rates_begin_again_after_a_pause() -> None:
    rates = RouteRates()
    rates.add_pages({"a": RoutePage(0, {REST: 0})}, 0)
    rates.add_pages({"a": RoutePage(1, {REST: 50})}, 1)
    assert rates.add_pages({"a": RoutePage(3600, {REST: 50})}, 3600) is None
    assert rates.add_pages({"a": RoutePage(3601, {REST: 80})}, 3601) == {REST: 30}


def test_a_gateway_that_restarted_offers_no_negative_rate() -> None:
    rates = RouteRates()
    rates.add_pages({"a": RoutePage(0, {REST: 1000})}, 0)
    assert rates.add_pages({"a": RoutePage(1, {REST: 10})}, 1) == {}
