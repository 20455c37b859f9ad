"""Alerting rules for Prometheus: missed objectives, unhealthy objects, and a control plane that does not work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidegate.telemetry.alert import ALERT_PREFIX, LEADER_CHANGE, Alert, Severity
from tidegate.telemetry.process_alerts import CONTROLLERS, GATEWAYS
from tidegate.telemetry.recording_rules import BAD_REQUESTS, INTERVAL_S, burn_rate_series
from tidegate.telemetry.scope import OWN_ROUTES, object_series, own_model_series

_BY: Final = "namespace, inference"
# Agents do not know the owner of their pod; the names of pods begin with the name of their Deployment or Job.
_WORKLOAD: Final = 'label_replace({}, "workload", "$1", "pod", "(.+)-[^-]+-[^-]+")'
_FEATURES: Final = 'label_replace({}, "features", "$1", "pod", "fc-(.+)-[^-]+-[^-]+")'
_BY_FEATURES: Final = "by (namespace, features)"
_BY_SOURCE: Final = "by (namespace, features, source)"


def _burn_rate_alert(long: str, short: str, factor: str, hold: str, severity: Severity) -> Alert:
    """Return an alert on a burn rate that exceeds `factor` in both windows, with at least ten bad requests.

    The long window shows that it matters, the short one that it still happens.
    """
    return Alert(
        f"{ALERT_PREFIX}InferenceBudgetBurn",
        f"{own_model_series(burn_rate_series(long))} > {factor} and on ({_BY}) {own_model_series(burn_rate_series(short))} > {factor}"
        f" and on ({_BY}) sum_over_time({own_model_series(BAD_REQUESTS)}[{long}]) * {INTERVAL_S} >= 10",
        hold,
        severity,
        "Inference {{ $labels.namespace }}/{{ $labels.inference }} misses its objective",
        f"In the last {long} and the last {short}, requests that failed or took longer than spec.slo.latencyP99 consumed the "
        'error budget {{ $value | printf "%.1f" }} times as fast as the objective allows; the alert fires above '
        + factor
        + ".",
        window=long,
    )


_MIN_BY_OBJECT: Final = "min by (kind, namespace, name) "
_READY_INFERENCE: Final = object_series("tidegate_object_ready", 'kind="Inference"')
_COMPILE_FAILED: Final = object_series("tidegate_object_compiled", 'kind="Inference",reason="CompileFailed"')
_READY_OTHER: Final = object_series("tidegate_object_ready", 'kind!="Inference"')
_TARGET: Final = object_series("tidegate_inference_version", 'state="target"')
_SERVING: Final = object_series("tidegate_inference_version", 'state="serving"')
_CREATED: Final = object_series("tidegate_override_created_timestamp_seconds")
_GREEDY: Final = 'tidegate_allocator_solves_total{solver="Greedy"}'
_BACKLOG: Final = _WORKLOAD.format(own_model_series("tidegate_agent_nearline_backlog"))
_PROCESSED: Final = _WORKLOAD.format(
    f"rate({own_model_series('tidegate_agent_nearline_results_total')}[10m])"
)
_DEAD_LETTERS: Final = _WORKLOAD.format(
    f"increase({own_model_series('tidegate_agent_nearline_dead_letters_total')}[15m])"
)
_EVENTS_LAG: Final = _FEATURES.format(
    # A pod that reads its streams after a start gets no requests yet.
    f"({own_model_series('tidegate_agent_events_lag_seconds')}"
    f" and on (namespace, pod) {own_model_series('tidegate_agent_serving_version')} > 0)"
)
_EVENTS_STORED: Final = _FEATURES.format(
    f"increase({own_model_series('tidegate_agent_events_stored_total')}[10m])"
)
_EVENTS_REFUSED: Final = _FEATURES.format(
    f"increase({own_model_series('tidegate_agent_events_refused_total')}[10m])"
)
_LETTERS_FAILED: Final = _FEATURES.format(
    f"increase({own_model_series('tidegate_agent_events_dead_letters_failed_total')}[10m])"
)
_STORE_KEYS: Final = _FEATURES.format(
    f"increase({own_model_series('tidegate_feature_store_keys_total')}[5m])"
)
_MISSED_KEYS: Final = own_model_series("tidegate_feature_store_keys_total", 'origin=~"last-known|default"')
_STORE_MISSED: Final = _FEATURES.format(f"increase({_MISSED_KEYS}[5m])")
# Not the counter of refusals: tables are checked every ten seconds or once a week, so no window fits its increase.
_TABLE_REFUSED: Final = _FEATURES.format(own_model_series("tidegate_agent_table_refused"))

OBJECTIVES: Final = (
    _burn_rate_alert("1h", "5m", "14.4", "2m", Severity.PAGE),
    _burn_rate_alert("6h", "30m", "6", "15m", Severity.PAGE),
    _burn_rate_alert("1d", "2h", "3", "1h", Severity.TICKET),
    _burn_rate_alert("3d", "6h", "1", "3h", Severity.TICKET),
    Alert(
        f"{ALERT_PREFIX}RouteUnserved",
        f"""sum by (route) (tidegate:route_unserved:rate1m{{route=~"{OWN_ROUTES}"}}) > 0""",
        "5m",
        Severity.PAGE,
        "Route {{ $labels.route }} has no endpoints",
        '{{ $value | printf "%.2f" }} requests per second fail with 503 (gRPC: UNAVAILABLE) because no target has a ready pod.',
    ),
)
"""What clients notice."""

OBJECTS: Final = (
    Alert(
        f"{ALERT_PREFIX}InferenceNotReady",
        f"{_MIN_BY_OBJECT}({_READY_INFERENCE}) == 0",
        "15m",
        Severity.TICKET,
        "Inference {{ $labels.namespace }}/{{ $labels.name }} is not Ready",
        "Not Ready for 15 minutes. Pods that served before keep serving.",
        keep_firing_for=LEADER_CHANGE,
    ),
    Alert(
        f"{ALERT_PREFIX}ObjectNotReady",
        f"{_MIN_BY_OBJECT}({_READY_OTHER}) == 0",
        "15m",
        Severity.TICKET,
        "{{ $labels.kind }} {{ $labels.namespace }}/{{ $labels.name }} is not Ready",
        "Not Ready for 15 minutes.",
        keep_firing_for=LEADER_CHANGE,
    ),
    Alert(
        f"{ALERT_PREFIX}ObjectStalled",
        f"max by (kind, namespace, name) ({object_series('tidegate_object_stalled')}) == 1",
        "1h",
        Severity.TICKET,
        "{{ $labels.kind }} {{ $labels.namespace }}/{{ $labels.name }} is stalled",
        "Stalled for one hour. It recovers only when its spec or a referenced object changes.",
        keep_firing_for=LEADER_CHANGE,
    ),
    Alert(
        f"{ALERT_PREFIX}ModelVersionBehind",
        f"max by ({_BY}) ({_TARGET}) != on ({_BY}) max by ({_BY}) ({_SERVING})",
        "30m",
        Severity.TICKET,
        "Inference {{ $labels.namespace }}/{{ $labels.inference }} does not serve its target version",
        "Version {{ $value }} has been the target for 30 minutes, but the pods serve another version or none.",
        keep_firing_for=LEADER_CHANGE,
    ),
    Alert(
        f"{ALERT_PREFIX}NearlineLag",
        f"max by (namespace, workload) ({_BACKLOG}) / sum by (namespace, workload) ({_PROCESSED}) > 900",
        "15m",
        Severity.TICKET,
        "Stream of {{ $labels.namespace }}/{{ $labels.workload }} lags behind",
        'At the rate of the last ten minutes, its backlog takes {{ $value | printf "%.0f" }} s to process.',
    ),
    Alert(
        f"{ALERT_PREFIX}NearlineDeadLetters",
        f"sum by (namespace, workload) ({_DEAD_LETTERS}) > 0",
        "0s",
        Severity.TICKET,
        "{{ $labels.namespace }}/{{ $labels.workload }} writes dead letters",
        '{{ $value | printf "%.0f" }} messages became dead letters in the last 15 minutes.',
    ),
    Alert(
        f"{ALERT_PREFIX}EventsBehind",
        f"max {_BY_SOURCE} ({_EVENTS_LAG}) > 300",
        "5m",
        Severity.TICKET,
        "Events of FeatureCompute {{ $labels.namespace }}/{{ $labels.features }} are behind",
        "A pod that serves lacks the events of source {{ $labels.source }} of the last {{ $value | humanizeDuration }}.",
    ),
    Alert(
        f"{ALERT_PREFIX}EventsRefused",
        f"sum {_BY_SOURCE} ({_EVENTS_REFUSED})"
        f" / (sum {_BY_SOURCE} ({_EVENTS_REFUSED}) + sum {_BY_SOURCE} ({_EVENTS_STORED})) > 0.01"
        f" and sum {_BY_SOURCE} ({_EVENTS_REFUSED}) > 10",
        "10m",
        Severity.TICKET,
        "FeatureCompute {{ $labels.namespace }}/{{ $labels.features }} refuses events",
        "{{ $value | humanizePercentage }} of the events of source {{ $labels.source }} in the last ten minutes were refused.",
    ),
    Alert(
        f"{ALERT_PREFIX}DeadLettersFailing",
        f"sum {_BY_SOURCE} ({_LETTERS_FAILED}) > 0",
        "5m",
        Severity.TICKET,
        "FeatureCompute {{ $labels.namespace }}/{{ $labels.features }} cannot write dead letters",
        '{{ $value | printf "%.0f" }} refused events of source {{ $labels.source }} in the last ten minutes were not written to its '
        "dead letters.",
    ),
    Alert(
        f"{ALERT_PREFIX}FeatureStoreFailing",
        f"sum {_BY_FEATURES} ({_STORE_MISSED}) / sum {_BY_FEATURES} ({_STORE_KEYS}) > 0.01"
        f" and sum {_BY_FEATURES} ({_STORE_MISSED}) > 10",
        "10m",
        Severity.TICKET,
        "FeatureCompute {{ $labels.namespace }}/{{ $labels.features }} cannot read its Redis in time",
        "For {{ $value | humanizePercentage }} of the keys in the last five minutes, requests were answered from the last known "
        "events or from none.",
    ),
    Alert(
        f"{ALERT_PREFIX}TableRefused",
        f"max {_BY_SOURCE} ({_TABLE_REFUSED}) == 1",
        "30m",
        Severity.TICKET,
        "FeatureCompute {{ $labels.namespace }}/{{ $labels.features }} does not load a new table",
        "For 30 minutes, a pod has refused the changed table of source {{ $labels.source }}, or cannot reach it. "
        "It answers from the table that it loaded before.",
    ),
)
"""Unhealthy objects."""

ALLOCATION: Final = (
    Alert(
        f"{ALERT_PREFIX}DecisionsStale",
        # A process that has not decided yet exports since when a decision has been due.
        "time() - max by (pool)"
        " (tidegate_allocator_decided_timestamp_seconds or tidegate_allocator_due_timestamp_seconds)"
        " > 5 * max by (pool) (tidegate_allocator_interval_seconds) + 60",
        "2m",
        Severity.TICKET,
        "The allocator makes no decisions for ComputePool {{ $labels.pool }}",
        "The last decision was {{ $value | humanizeDuration }} ago, more than five intervals.",
        keep_firing_for=LEADER_CHANGE,
    ),
    Alert(
        f"{ALERT_PREFIX}CompileFailed",
        f"min by (namespace, name) ({_COMPILE_FAILED}) == 0",
        "15m",
        Severity.TICKET,
        "The graph of Inference {{ $labels.namespace }}/{{ $labels.name }} cannot be compiled",
        "Its version serves as published, without the speed-up.",
        keep_firing_for=LEADER_CHANGE,
    ),
    Alert(
        f"{ALERT_PREFIX}SignalsStale",
        'max by (name) (tidegate_object_signals_fresh{kind="ComputePool"}) == 0',
        "10m",
        Severity.TICKET,
        "The allocator has no fresh demand for ComputePool {{ $labels.name }}",
        "It uses the last known demand and scales no Inference down.",
        keep_firing_for=LEADER_CHANGE,
    ),
    Alert(
        f"{ALERT_PREFIX}SolverFallsBack",
        f"sum by (pool) (rate({_GREEDY}[15m])) / sum by (pool) (rate(tidegate_allocator_solves_total[15m])) > 0.5",
        "15m",
        Severity.TICKET,
        "The solver finds no solution for ComputePool {{ $labels.pool }}",
        "{{ $value | humanizePercentage }} of its decisions use the greedy fallback, which is feasible but has less utility.",
    ),
    Alert(
        f"{ALERT_PREFIX}ReclaimSlow",
        "histogram_quantile(0.9, sum by (tier, le) (rate(tidegate_allocator_reclaim_seconds_bucket[30m]))) > 120",
        "10m",
        Severity.TICKET,
        "Tier {{ $labels.tier }} frees slices slowly",
        'Reclaiming slices takes {{ $value | printf "%.0f" }} s (p90).',
    ),
    Alert(
        f"{ALERT_PREFIX}OverrideForgotten",
        f"time() - max by (override, kind, namespace, name) ({_CREATED}) > 2 * 86400"
        " and on (override) max by (override) (tidegate_override_expires_timestamp_seconds) > time()",
        "5m",
        Severity.TICKET,
        "ComputeOverride {{ $labels.override }} may be forgotten",
        "It has overridden the allocator for {{ $labels.kind }} {{ $labels.namespace }}/{{ $labels.name }} for "
        "{{ $value | humanizeDuration }}.",
        keep_firing_for=LEADER_CHANGE,
    ),
    Alert(
        f"{ALERT_PREFIX}NodesQuarantined",
        'max by (pool) (tidegate_pool_faulty_nodes{state="Quarantined"}) > 0',
        "5m",
        Severity.TICKET,
        "Nodes of ComputePool {{ $labels.pool }} are quarantined",
        "{{ $value }} nodes have a lasting fault in GPU sharing. They get no new pods until it is repaired.",
        keep_firing_for=LEADER_CHANGE,
    ),
    Alert(
        f"{ALERT_PREFIX}MpsDaemonSilent",
        "min by (namespace, pod, instance) (tidegate_node_mps_daemon_answers) == 0",
        "10m",
        Severity.TICKET,
        "MPS does not respond on the node of {{ $labels.pod }}",
        "Processes that start on this node get no GPU.",
    ),
)
"""The allocation of compute, and whether the compute is usable."""

GROUPS: Final[Mapping[str, tuple[Alert, ...]]] = {
    "tidegate-alerts-objectives": OBJECTIVES,
    "tidegate-alerts-objects": OBJECTS,
    "tidegate-alerts-operator": CONTROLLERS,
    "tidegate-alerts-gateways": GATEWAYS,
    "tidegate-alerts-allocation": ALLOCATION,
}
ALERTS: Final[tuple[Alert, ...]] = tuple(alert for group in GROUPS.values() for alert in group)


def render_alert_rules() -> dict[str, object]:
    """Return the content of a Prometheus rules file, which is also the spec of a PrometheusRule."""
    return {
        "groups": [
            {"name": name, "rules": [alert.to_rule() for alert in alerts]} for name, alerts in GROUPS.items()
        ]
    }
