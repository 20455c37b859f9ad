"""What Prometheus is asked, in PromQL; the recording rules of the chart (recorded.py) are made of the same expressions."""

from __future__ import annotations

from typing import Final, Protocol

from tidegate.routing.envoy import refused
from tidegate.telemetry.gateway_traffic import ATTEMPTS, RETRIES
from tidegate.telemetry.scope import OWN_CLUSTERS, OWN_ROUTES, of_own_models

WINDOW: Final = "1m"
"""Four scrapes of an ordinary Prometheus: a rate needs two of them."""

_SECONDS: Final = {"1m": 60, "5m": 300}

_CLUSTER: Final = "envoy_cluster_name"
_TIMES: Final = "envoy_cluster_upstream_rq_time_bucket"
OF_INFERENCES: Final = f'{_CLUSTER}=~"{OWN_CLUSTERS}"'
"""All that gateways send to Inferences."""
# inference/<namespace>/<name>/<protocol>, and release/<namespace>/<access>/<name>[+<fallback>]/<protocol>
_WHOSE: Final = "(?:inference/([^/]+)/([^/]+)|release/([^/]+)/[^/]+/([^/+]+)[^/]*)/[a-z]+"
_BY_INFERENCE: Final = "namespace, inference"
_NOT_THE_CALLERS: Final = "404|408|429"
"""A model that is not there, a request that could not be read in time, and too many of them: the platform's, whatever HTTP says."""
_INVALID_ARGUMENT: Final = "envoy_cluster_grpc_3"
"""Of released routes alone, as envoy_cluster_grpc_failure, which counts these too."""


class _Rate(Protocol):
    def __call__(self, metric: str, matchers: str = OF_INFERENCES, window: str = WINDOW) -> str: ...


def _rate(metric: str, matchers: str = OF_INFERENCES, window: str = WINDOW) -> str:
    return f"rate({metric}{{{matchers}}}[{window}])"


def _growth(metric: str, matchers: str = OF_INFERENCES, window: str = WINDOW) -> str:
    """The same with what a series begins with, which a rate leaves out: Envoy shows a class of answers once there is one.

    Not those of a gateway that ran before the window and was not seen then, such as after a time without Prometheus: what they
    begin with is of all that time.
    """
    series = f"{metric}{{{matchers}}}"
    unseen = f"(envoy_server_uptime > {_SECONDS[window]} unless envoy_server_uptime offset {window})"
    began = (
        f"min_over_time({series}[{window}]) / {_SECONDS[window]}"
        f" unless {series} offset {window} unless on (instance, pod) {unseen}"
    )
    grown = f"rate({series}[{window}])"
    return f"({grown} + ({began}) or {grown} or ({began}))"


def _counted_as(what: str, expression: str) -> str:
    """Keeps apart what is summed up afterwards: series with the same labels would take each other's place."""
    return f'label_replace({expression}, "counted", "{what}", "", "")'


def _by_inference(expression: str, also: str = "") -> str:
    named = f'label_replace(label_replace({expression}, "namespace", "$1$3", "{_CLUSTER}", "{_WHOSE}"), "inference", "$2$4", "{_CLUSTER}", "{_WHOSE}")'
    return f"sum by ({_BY_INFERENCE}{also}) ({named})"


def offered(window: str = WINDOW) -> str:
    """Requests per second that clients send, by namespace and inference: each try but retries, and what was refused for overload."""
    attempts = [_counted_as(name, _rate(f"envoy_cluster_{name}", window=window)) for name in ATTEMPTS]
    retries = _counted_as(RETRIES, f"-{_rate(f'envoy_cluster_{RETRIES}', window=window)}")
    shed = _rate("envoy_tidegate_refused", f'{OF_INFERENCES}, why="{refused.OVERLOAD}"', window)
    return f"clamp_min({_by_inference(' or '.join((*attempts, retries, _counted_as('shed', shed))))}, 0)"


def served(window: str = WINDOW) -> str:
    """Requests per second that a model answered, by namespace and inference."""
    return _answers(_rate, window)


def answered_well(window: str) -> str:
    """The same, also of what just began, and those that were no fault of the model's: it refused them because it was asked wrongly."""
    matchers = f'{OF_INFERENCES}, envoy_response_code=~"4..", envoy_response_code!~"{_NOT_THE_CALLERS}"'
    refusals = _counted_as("refusals", _growth("envoy_cluster_upstream_rq", matchers, window))
    invalid = _counted_as("invalid", _growth(_INVALID_ARGUMENT, window=window))
    return _answers(_growth, window, refusals, invalid)


def _answers(rate: _Rate, window: str, *more: str) -> str:
    matchers = f'{OF_INFERENCES}, envoy_response_code_class=~"2|3"'
    answered = rate("envoy_cluster_upstream_rq_xx", matchers, window)
    failed = _counted_as("failed", f"-{rate('envoy_cluster_grpc_failure', window=window)}")
    return f"clamp_min({_by_inference(' or '.join((answered, failed, *more)))}, 0)"


def latency_buckets(window: str = WINDOW) -> str:
    """Answers per second in the cumulative buckets of milliseconds `le`, by namespace and inference."""
    return _by_inference(_rate(_TIMES, window=window), ", le")


def answered_within(window: str) -> str:
    """The same, also of what just began."""
    return _by_inference(_growth(_TIMES, window=window), ", le")


OFFERED: Final = offered()
SERVED: Final = served()

LATENCY_P99: Final = f"histogram_quantile(0.99, {latency_buckets()}) / 1000"
"""Seconds within which 99 of 100 were answered, by namespace and inference."""

_UNSERVED: Final = f'route=~"{OWN_ROUTES}", why="{refused.NO_POD}"'
UNSERVED: Final = f"sum by (route) ({_rate('envoy_tidegate_refused', _UNSERVED)})"
"""Requests per second for which no target had a pod, by route and protocol."""


def _of_triton(counter: str) -> str:
    """How fast a counter of the models' Tritons grows."""
    return f"rate({of_own_models(f'nv_inference_{counter}')}[{WINDOW}])"


_REQUESTS: Final = f"sum by (namespace, pod) ({_of_triton('request_success')})"

QUEUE: Final = f"sum by (namespace, pod) ({_of_triton('queue_duration_us')}) / 1e6 / ({_REQUESTS} > 0) or 0 * {_REQUESTS}"
"""Seconds that a request waits in Triton's queue, by namespace and pod; 0 in one that had none."""

_EXECUTIONS: Final = _of_triton("exec_count")

# By version: one that is kept and idle divides 0 by 0, and a sum with NaN is NaN.
BUSY: Final = (
    f"clamp_max(sum by (namespace, pod) ({_of_triton('compute_infer_duration_us')} / 1e6"
    f" / ({_of_triton('request_success')} > 0) * {_EXECUTIONS} or 0 * {_EXECUTIONS}), 1)"
)
"""Share of the time in which a pod computes, 0 for an idle one: Triton counts an execution's time once for each request in it."""

SEEN_AGO: Final = "time() - max by (instance, pod) (timestamp(envoy_server_uptime))"
"""Seconds since each gateway was scraped, by the clock of Prometheus."""

RUNNING_FOR: Final = "min by (instance, pod) (envoy_server_uptime)"
"""Seconds for which each gateway ran when it was scraped last."""
