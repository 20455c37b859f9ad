"""Recording rules of the chart, for dashboards and alerts: signals, and burn rates of error budgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.telemetry import expressions
from tidegate.telemetry.expressions import WINDOW
from tidegate.telemetry.objectives import BOUNDS_MS
from tidegate.telemetry.scope import object_series, own_model_series


@dataclass(frozen=True, slots=True)
class RecordingRule:
    """One recording rule; `text` describes its series."""

    name: str
    expression: str
    labels: tuple[str, ...]
    description: str


@dataclass(frozen=True, slots=True)
class RecordingGroup:
    """Rules that Prometheus evaluates one after another, every `interval`."""

    name: str
    interval: str
    rules: tuple[RecordingRule, ...]


SIGNAL_OFFERED: Final = f"tidegate:inference_offered:rate{WINDOW}"
SIGNAL_DEMAND: Final = f"tidegate:inference_demand:rate{WINDOW}"
_SIGNAL_ROUTED: Final = f"tidegate:inference_routed:rate{WINDOW}"
_INFERENCE: Final = ("namespace", "inference")
_BY: Final = "namespace, inference"
_POD: Final = ("namespace", "pod")

SIGNALS: Final = RecordingGroup(
    "tidegate-signals",
    "15s",
    (
        RecordingRule(
            _SIGNAL_ROUTED,
            expressions.ROUTED,
            _INFERENCE,
            "the part of the next one that gateways sent to the Inference, or refused by one of its limits",
        ),
        RecordingRule(
            SIGNAL_OFFERED,
            expressions.offered_rate(routed=own_model_series(_SIGNAL_ROUTED)),
            _INFERENCE,
            "requests per second that clients send, answered or not, with those beyond the admitted share of their route, and "
            "without requests over a rate limit, retries and shadow copies",
        ),
        RecordingRule(
            SIGNAL_DEMAND,
            expressions.demand_rate(offered=own_model_series(SIGNAL_OFFERED)),
            _INFERENCE,
            "the same, with requests that a fallback answered because the Inference had no capacity for them",
        ),
        RecordingRule(
            f"tidegate:inference_served:rate{WINDOW}",
            expressions.SERVED,
            _INFERENCE,
            "requests per second that were answered 2xx or 3xx; gRPC errors count as failures only on released routes",
        ),
        RecordingRule(
            f"tidegate:inference_latency_seconds:p99_{WINDOW}",
            expressions.LATENCY_P99,
            _INFERENCE,
            "seconds in which 99 of 100 requests were answered",
        ),
        RecordingRule(
            f"tidegate:route_unserved:rate{WINDOW}",
            expressions.UNSERVED,
            ("route",),
            "requests per second for which no target had a pod",
        ),
        RecordingRule(
            f"tidegate:pod_queue_seconds:mean{WINDOW}",
            expressions.QUEUE_SECONDS,
            _POD,
            "mean seconds that a request waits in Triton's queue, 0 without requests",
        ),
        RecordingRule(
            f"tidegate:pod_busy:ratio{WINDOW}",
            expressions.BUSY_SHARE,
            _POD,
            "share of the time in which the pod computes, 0 to 1",
        ),
    ),
)


_SHORTEST_WINDOW: Final = "5m"
"""Longer windows use means of these rates, so that Prometheus keeps one series instead of many buckets."""

INTERVAL_S: Final = 60
"""The interval at which the rates for objectives are recorded."""
OFFERED: Final = f"tidegate:inference_offered:rate{_SHORTEST_WINDOW}"
PROMISED: Final = f"tidegate:inference_promised:rate{_SHORTEST_WINDOW}"
ANSWERED_WELL: Final = f"tidegate:inference_answered:rate{_SHORTEST_WINDOW}"
BAD_REQUESTS: Final = f"tidegate:inference_bad:rate{_SHORTEST_WINDOW}"
_OBJECTIVE: Final = "tidegate:inference_objective:ratio"
_ANSWERED: Final = f"tidegate:inference_answered_bucket:rate{_SHORTEST_WINDOW}"
_LEADER_CHANGE: Final = "10m"
"""How long objectives stay in effect that no controllers process exports."""


def _normalise_bounds(buckets: str) -> str:
    """Return buckets whose label `le` is as Envoy writes it: Prometheus 3 turns 25 and 1800000 into 25.0 and 1.8e+06."""
    normalised = f'label_replace({buckets}, "le", "$1", "le", "(.+)[.]0")'
    for bound in BOUNDS_MS:
        if "e" in (written := f"{bound:g}"):
            pattern = written.replace(".", "[.]").replace("+", "[+]")
            normalised = f'label_replace({normalised}, "le", "{bound:.32g}", "le", "{pattern}")'
    return normalised


# During a change of leader, two controllers processes may export the same series.
_SHARES: Final = f"max by ({_BY}, le) ({object_series('tidegate_inference_slo_bucket_share')})"
_WITHIN: Final = f"sum by ({_BY}) ({own_model_series(_ANSWERED)} * on ({_BY}, le) group_left () {_SHARES})"
_NONE: Final = f"0 * {own_model_series(PROMISED)}"
_WELL: Final = f"({own_model_series(ANSWERED_WELL)} or {_NONE})"
_ANY: Final = own_model_series(_ANSWERED, 'le="+Inf"')
_ALL: Final = f"sum by ({_BY}) ({_ANY})"
_LATE: Final = f"({_ALL} - {_WITHIN} or {_NONE})"
# No counter tells which failures were also late: assume as many as possible, so that no request counts twice.
_FAILED: Final = f"(clamp_min({_ALL} - {_WELL}, 0) or {_NONE})"


def burn_rate_series(window: str) -> str:
    """Return the name of the series with the burn rate of the error budget over a window."""
    return f"tidegate:inference_budget_burn:rate{window}"


def _burn_rate_rule(window: str) -> RecordingRule:
    promised, bad = (
        f"sum_over_time({own_model_series(series)}[{window}])" for series in (PROMISED, BAD_REQUESTS)
    )
    objective = f"last_over_time({own_model_series(_OBJECTIVE)}[{_LEADER_CHANGE}])"
    return RecordingRule(
        burn_rate_series(window),
        f"{bad} / ({promised} > 0) / on ({_BY}) (1 - {objective})",
        _INFERENCE,
        f"burn rate of the error budget of spec.slo over the last {window}: at 1 the budget lasts exactly for its period",
    )


OBJECTIVES: Final = RecordingGroup(
    "tidegate-objectives",
    f"{INTERVAL_S}s",
    (
        RecordingRule(
            OFFERED,
            expressions.offered_rate(_SHORTEST_WINDOW),
            _INFERENCE,
            f"the same as `{SIGNAL_OFFERED}`, over five minutes",
        ),
        RecordingRule(
            _ANSWERED,
            _normalise_bounds(expressions.answer_time_buckets(_SHORTEST_WINDOW)),
            (*_INFERENCE, "le"),
            "answers per second within `le` milliseconds",
        ),
        RecordingRule(
            _OBJECTIVE,
            f"max by ({_BY}) ({object_series('tidegate_inference_slo_objective_ratio')})",
            _INFERENCE,
            "share of requests that must be answered within `spec.slo.latencyP99`",
        ),
        RecordingRule(
            PROMISED,
            f"{own_model_series(OFFERED)} and on ({_BY}) {own_model_series(_OBJECTIVE)}",
            _INFERENCE,
            "requests per second that clients send to an Inference with an objective",
        ),
        RecordingRule(
            ANSWERED_WELL,
            expressions.well_answered_rate(_SHORTEST_WINDOW),
            _INFERENCE,
            f"the same as `tidegate:inference_served:rate{WINDOW}`, plus requests that models reject as invalid",
        ),
        RecordingRule(
            BAD_REQUESTS,
            f"clamp_min({own_model_series(PROMISED)} - {_WELL}, 0) + clamp_min({_LATE} - {_FAILED}, 0)",
            _INFERENCE,
            "requests per second, of those with an objective, that failed or took longer than `spec.slo.latencyP99`",
        ),
        *(_burn_rate_rule(window) for window in ("5m", "30m", "1h", "2h", "6h")),
    ),
)
LONG_OBJECTIVES: Final = RecordingGroup(
    # Prometheus looks back five minutes for a sample: with a longer interval, alerts would have gaps and never fire.
    "tidegate-objectives-long",
    "2m",
    tuple(_burn_rate_rule(window) for window in ("1d", "3d")),
)

GROUPS: Final = (SIGNALS, OBJECTIVES, LONG_OBJECTIVES)


def render_recording_rules() -> dict[str, object]:
    """Return the content of a Prometheus rules file, which is also the spec of a PrometheusRule."""
    return {
        "groups": [
            {
                "name": group.name,
                "interval": group.interval,
                "rules": [{"record": rule.name, "expr": rule.expression} for rule in group.rules],
            }
            for group in GROUPS
        ]
    }
