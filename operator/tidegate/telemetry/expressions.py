"""PromQL expressions of the signals, shared by queries and by the chart's recording rules (recording_rules.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from tidegate.planning.access.value_classes import RouteOutcome
from tidegate.routing import envoy_names
from tidegate.routing.ir import REDUCED as REDUCED_ENTRY
from tidegate.telemetry.gateway_traffic import ATTEMPTS, RETRIES
from tidegate.telemetry.gateway_traffic import LIMITED as LIMIT_COUNTERS
from tidegate.telemetry.scope import INFERENCE_PODS, OWN_CLUSTERS, OWN_ROUTES, object_series, own_model_series

WINDOW: Final = "1m"
"""Four scrapes of an ordinary Prometheus: a rate needs two of them."""

_SECONDS: Final = {"1m": 60, "5m": 300}

_CLUSTER: Final = "envoy_cluster_name"
_TIMES: Final = "envoy_cluster_upstream_rq_time_bucket"
INFERENCE_CLUSTERS: Final = f'{_CLUSTER}=~"{OWN_CLUSTERS}"'
"""Matcher of the Envoy clusters that send requests to Inferences."""
# inference/<namespace>/<name>/<protocol>, and release/<namespace>/<access>/<target>[+<fallback>]/<protocol>, where the target is
# <name>, or <namespace>/<name> in another namespace.
_WHOSE: Final = (
    "(?:inference/([^/]+)/([^/]+)|release/([^/]+)/[^/]+/([^/+]+)(?:[+].*)?"
    "|release/[^/]+/[^/]+/([^/+]+)/([^/+]+)(?:[+].*)?)/[a-z]+"
)
_BY_INFERENCE: Final = "namespace, inference"
_NOT_THE_CALLERS: Final = "404|408|429"
"""Missing model, request timeout and rate limit: faults of the platform, although HTTP blames the caller."""
_INVALID_ARGUMENT: Final = "envoy_cluster_grpc_3"
"""Envoy exports it only for released routes, like envoy_cluster_grpc_failure, which includes it."""
ROUTE_DEMAND_RATIO: Final = "tidegate_route_demand_ratio"
"""The controllers' metric that says which Inferences the requests of a route are for (exporters/route_demand.py)."""
_ROUTES: Final = 'envoy_virtual_host=~"access/.*"'
_PRICED_OUT_ROUTES: Final = f"{OWN_ROUTES}/{envoy_names.PRICED_OUT}[^/]*"
_DIRECT: Final = f'reason="{envoy_names.NO_POD_DETAILS}"'
_PRICED_OUT: Final = f'route=~"{_PRICED_OUT_ROUTES}", {_DIRECT}'


class _RateExpression(Protocol):
    def __call__(self, metric: str, matchers: str = INFERENCE_CLUSTERS, window: str = WINDOW) -> str: ...


def _rate_of(metric: str, matchers: str = INFERENCE_CLUSTERS, window: str = WINDOW) -> str:
    return f"rate({metric}{{{matchers}}}[{window}])"


def _growth_of(metric: str, matchers: str = INFERENCE_CLUSTERS, window: str = WINDOW) -> str:
    """Return a rate that includes the first value of a series, which rate() ignores.

    Envoy exports a class of responses only once it has counted one, so the first value counts requests of the window.
    It does not for a gateway that started before the window and was not scraped then, such as during an outage of
    Prometheus: its first values count the requests of all that time, and are left out.
    """
    series = f"{metric}{{{matchers}}}"
    unseen = f"(envoy_server_uptime > {_SECONDS[window]} unless envoy_server_uptime offset {window})"
    first_values = (
        f"min_over_time({series}[{window}]) / {_SECONDS[window]}"
        f" unless {series} offset {window} unless on (instance, pod) {unseen}"
    )
    rate = f"rate({series}[{window}])"
    return f"({rate} + ({first_values}) or {rate} or ({first_values}))"


def _label_counted(source: str, expression: str) -> str:
    """Return the series with a label `counted`, because series with equal labels would replace one another in a union."""
    return f'label_replace({expression}, "counted", "{source}", "", "")'


def label_inference(expression: str) -> str:
    """Return series of Envoy clusters with the labels `namespace` and `inference` of the Inference that answers."""
    labelled = f'label_replace({expression}, "namespace", "$1$3$5", "{_CLUSTER}", "{_WHOSE}")'
    return f'label_replace({labelled}, "inference", "$2$4$6", "{_CLUSTER}", "{_WHOSE}")'


def _sum_by_inference(expression: str, extra_labels: str = "") -> str:
    return f"sum by ({_BY_INFERENCE}{extra_labels}) ({label_inference(expression)})"


def route_shares(outcome: RouteOutcome, series: str = "") -> str:
    """Return which part of a route's requests counts for each Inference, by route, namespace and inference.

    `series`: those of tidegate_route_demand_ratio with that outcome; empty: of all Inferences.
    """
    selected = series or object_series(ROUTE_DEMAND_RATIO, select_outcome(outcome))
    return f"max by (route, {_BY_INFERENCE}) ({selected})"


def select_outcome(outcome: RouteOutcome) -> str:
    """Return the matcher of tidegate_route_demand_ratio for an outcome."""
    return f'outcome="{outcome}"'


def offered_rate(window: str = WINDOW, routed: str = "") -> str:
    """Return requests per second that clients send, by namespace and inference, each counted where it was to be answered first.

    They are those of `routed_rate`, and the requests beyond the admitted share of their route, which no Envoy cluster counts.
    `routed`: a recorded series to use instead of the former.
    """
    refused = f"sum by (route) ({_label_route(_rate_of('envoy_tidegate_refused', _PRICED_OUT, window))})"
    return _sum_counted(
        {"routed": routed or routed_rate(window), "refused": _attribute_routes(refused, RouteOutcome.REFUSED)}
    )


def demand_rate(window: str = WINDOW, offered: str = "") -> str:
    """Return requests per second that an Inference needs capacity for, by namespace and inference.

    They are those of `offered_rate`, and those that a fallback answered because the Inference had no capacity for them.
    `offered`: a recorded series to use instead of the former.
    """
    answered = _growth_of(
        "envoy_vhost_route_upstream_rq_completed", f'{_ROUTES}, envoy_route=~".+{REDUCED_ENTRY}"', window
    )
    reduced = f'label_join({answered}, "route", "/", "envoy_virtual_host", "envoy_route")'
    return _sum_counted(
        {
            "offered": offered or offered_rate(window),
            "reduced": _attribute_routes(f"sum by (route) ({reduced})", RouteOutcome.REDUCED),
        }
    )


def _label_route(refused: str) -> str:
    """Return a counter of refusals whose label `route` lacks the last part, the protocol."""
    return f'label_replace({refused}, "route", "$1", "route", "(.+)/[^/]+")'


def _attribute_routes(by_route: str, outcome: RouteOutcome) -> str:
    """Return requests per second by namespace and inference, from those by route."""
    return f"sum by ({_BY_INFERENCE}) ({by_route} * on (route) group_right () {route_shares(outcome)})"


def _sum_counted(terms: Mapping[str, str]) -> str:
    counted = " or ".join(_label_counted(source, term) for source, term in terms.items())
    return f"sum by ({_BY_INFERENCE}) ({counted})"


def routed_rate(window: str = WINDOW) -> str:
    """Return requests per second that gateways sent to an Inference or that a limit there refused, by namespace and inference.

    They are all attempts except retries, and the requests that admission control rejected.
    """
    attempts = [_label_counted(name, _rate_of(f"envoy_cluster_{name}", window=window)) for name in ATTEMPTS]
    retries = _label_counted(RETRIES, f"-{_rate_of(f'envoy_cluster_{RETRIES}', window=window)}")
    return f"clamp_min({_sum_by_inference(' or '.join((*attempts, retries, _shed_rate(window))))}, 0)"


def _shed_rate(window: str) -> str:
    matchers = f'{INFERENCE_CLUSTERS}, reason="{envoy_names.OVERLOAD_DETAILS}"'
    return _label_counted("shed", _rate_of("envoy_tidegate_refused", matchers, window))


def limited_rate(window: str = WINDOW) -> str:
    """Return requests per second that a limit or admission control refused, by namespace and inference."""
    overflows = [
        _label_counted(name, _rate_of(f"envoy_cluster_{name}", window=window)) for name in LIMIT_COUNTERS
    ]
    return _sum_by_inference(" or ".join((*overflows, _shed_rate(window))))


def served_rate(window: str = WINDOW) -> str:
    """Return requests per second that a model answered, by namespace and inference."""
    return _answer_rate(_rate_of, window)


def well_answered_rate(window: str) -> str:
    """Return requests per second, by namespace and inference, whose answer was not a fault of the platform.

    These are the answered ones and those that the model rejected as invalid, including the first of each series.
    """
    matchers = f'{INFERENCE_CLUSTERS}, envoy_response_code=~"4..", envoy_response_code!~"{_NOT_THE_CALLERS}"'
    refusals = _label_counted("refusals", _growth_of("envoy_cluster_upstream_rq", matchers, window))
    invalid = _label_counted("invalid", _growth_of(_INVALID_ARGUMENT, window=window))
    return _answer_rate(_growth_of, window, refusals, invalid)


def _answer_rate(rate_of: _RateExpression, window: str, *extra_terms: str) -> str:
    matchers = f'{INFERENCE_CLUSTERS}, envoy_response_code_class=~"2|3"'
    answered = rate_of("envoy_cluster_upstream_rq_xx", matchers, window)
    failed = _label_counted("failed", f"-{rate_of('envoy_cluster_grpc_failure', window=window)}")
    return f"clamp_min({_sum_by_inference(' or '.join((answered, failed, *extra_terms)))}, 0)"


def latency_buckets(window: str = WINDOW) -> str:
    """Return answers per second in the cumulative buckets of milliseconds `le`, by namespace and inference."""
    return _sum_by_inference(_rate_of(_TIMES, window=window), ", le")


def answer_time_buckets(window: str) -> str:
    """Return the same as latency_buckets, including the first answers of each series."""
    return _sum_by_inference(_growth_of(_TIMES, window=window), ", le")


ROUTED: Final = routed_rate()
DELIVERED: Final = (
    f"sum by ({_BY_INFERENCE}) (label_replace(rate({own_model_series('tidegate_agent_nearline_messages_total')}[{WINDOW}]), "
    f'"inference", "$1", "pod", "{INFERENCE_PODS}"))'
)
"""Messages per second that the pods of streams receive, by namespace and inference."""
SERVED: Final = served_rate()

LATENCY_P99: Final = f"histogram_quantile(0.99, {latency_buckets()}) / 1000"
"""Seconds in which 99 of 100 requests were answered, by namespace and inference."""

LIMITED: Final = limited_rate()

SHED: Final = f"sum by (route, {_CLUSTER}) ({_shed_rate(WINDOW)})"
"""Requests per second that admission control rejected, by route with protocol and by Envoy cluster."""

_BY_ROUTE: Final = "sum by (envoy_virtual_host, envoy_route)"
ROUTE_ANSWERED: Final = f"{_BY_ROUTE} ({_growth_of('envoy_vhost_route_upstream_rq_completed', _ROUTES)})"
"""Answers per second of each route, those of the gateway included, except where it has not tried any pod."""
_SUCCESSES: Final = f'{_ROUTES}, envoy_response_code_class=~"2|3"'
ROUTE_SERVED: Final = f"{_BY_ROUTE} ({_growth_of('envoy_vhost_route_upstream_rq_xx', _SUCCESSES)})"
"""Answers 2xx and 3xx per second of each route."""

_UNSERVED: Final = f'route=~"{OWN_ROUTES}", route!~"{_PRICED_OUT_ROUTES}", {_DIRECT}'
UNSERVED: Final = f"sum by (route) ({_rate_of('envoy_tidegate_refused', _UNSERVED)})"
"""Requests per second for which no target had a pod, by route and protocol."""

PRICED_OUT: Final = f"sum by (route) ({_rate_of('envoy_tidegate_refused', _PRICED_OUT)})"
"""Requests per second beyond the admitted share of their route, by route and protocol."""


def _triton_rate(counter: str) -> str:
    """Return the rate of a counter of Triton in the models' pods."""
    return f"rate({own_model_series(f'nv_inference_{counter}')}[{WINDOW}])"


_REQUESTS: Final = f"sum by (namespace, pod) ({_triton_rate('request_success')})"

QUEUE_SECONDS: Final = f"sum by (namespace, pod) ({_triton_rate('queue_duration_us')}) / 1e6 / ({_REQUESTS} > 0) or 0 * {_REQUESTS}"
"""Mean seconds that a request waits in Triton's queue, by namespace and pod; 0 for a pod without requests."""

_EXECUTIONS: Final = _triton_rate("exec_count")

# Divide by version: an idle version divides 0 by 0, and a sum with NaN is NaN.
BUSY_SHARE: Final = (
    f"clamp_max(sum by (namespace, pod) ({_triton_rate('compute_infer_duration_us')} / 1e6"
    f" / ({_triton_rate('request_success')} > 0) * {_EXECUTIONS} or 0 * {_EXECUTIONS}), 1)"
)
"""Share of the time in which a pod computes, 0 to 1; Triton counts an execution's time once for each request in it."""

SCRAPE_AGE: Final = "time() - max by (instance, pod) (timestamp(envoy_server_uptime))"
"""Seconds since the last scrape of each gateway, by the clock of Prometheus."""

GATEWAY_UPTIME: Final = "min by (instance, pod) (envoy_server_uptime)"
"""Uptime of each gateway in seconds at its last scrape."""

OFFERED: Final = offered_rate()
DEMAND: Final = demand_rate()
