"""Series that the chart has Prometheus record, for dashboards and alerts: signals, and how fast error budgets burn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.telemetry import expressions
from tidegate.telemetry.expressions import WINDOW
from tidegate.telemetry.objectives import BOUNDS_MS
from tidegate.telemetry.scope import of_object, of_own_models


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recording rule, and what its series say."""

    name: str
    expression: str
    labels: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """Rules that are evaluated one after the other, every `interval`."""

    name: str
    interval: str
    rules: tuple[Recorded, ...]


_INFERENCE: Final = ("namespace", "inference")
_BY: Final = "namespace, inference"
_POD: Final = ("namespace", "pod")

SIGNALS: Final = RecordedGroup(
    "tidegate-signals",
    "15s",
    (
        Recorded(
            f"tidegate:inference_offered:rate{WINDOW}",
            expressions.OFFERED,
            _INFERENCE,
            "requests per second that clients send, answered or not; what a rate limit refuses, retries of the gateway and "
            "copies are not in it",
        ),
        Recorded(
            f"tidegate:inference_served:rate{WINDOW}",
            expressions.SERVED,
            _INFERENCE,
            "requests per second that were answered 2xx or 3xx; a gRPC status behind the body is looked at for released "
            "routes alone",
        ),
        Recorded(
            f"tidegate:inference_latency_seconds:p99_{WINDOW}",
            expressions.LATENCY_P99,
            _INFERENCE,
            "seconds within which 99 of 100 requests were answered",
        ),
        Recorded(
            f"tidegate:route_unserved:rate{WINDOW}",
            expressions.UNSERVED,
            ("route",),
            "requests per second for which no target had a pod",
        ),
        Recorded(
            f"tidegate:pod_queue_seconds:mean{WINDOW}",
            expressions.QUEUE,
            _POD,
            "seconds that a request waits in Triton's queue, 0 where there was none",
        ),
        Recorded(
            f"tidegate:pod_busy:ratio{WINDOW}",
            expressions.BUSY,
            _POD,
            "share of the time in which the pod computes, 0 to 1",
        ),
    ),
)


_LOOK: Final = "5m"
"""Rates of the shortest window; longer ones are means of these, so that Prometheus keeps one series and not many buckets."""

EVERY_S: Final = 60
"""How often the rates for objectives are recorded."""
OFFERED: Final = f"tidegate:inference_offered:rate{_LOOK}"
PROMISED: Final = f"tidegate:inference_promised:rate{_LOOK}"
WELL: Final = f"tidegate:inference_answered:rate{_LOOK}"
BAD: Final = f"tidegate:inference_bad:rate{_LOOK}"
_OBJECTIVE: Final = "tidegate:inference_objective:ratio"
_ANSWERED: Final = f"tidegate:inference_answered_bucket:rate{_LOOK}"
_A_CHANGE_OF_LEADER: Final = "10m"
"""For so long objectives are remembered that no controller tells of."""


def _as_envoy_writes_bounds(buckets: str) -> str:
    """Prometheus 3 writes 25.0 and 1.8e+06 where 2 keeps Envoy's 25 and 1800000."""
    plain = f'label_replace({buckets}, "le", "$1", "le", "(.+)[.]0")'
    for bound in BOUNDS_MS:
        if "e" in (written := f"{bound:g}"):
            pattern = written.replace(".", "[.]").replace("+", "[+]")
            plain = f'label_replace({plain}, "le", "{bound:.32g}", "le", "{pattern}")'
    return plain


# During a change of leader two controllers may say the same.
_SHARES: Final = f"max by ({_BY}, le) ({of_object('tidegate_inference_slo_bucket_share')})"
_WITHIN: Final = f"sum by ({_BY}) ({of_own_models(_ANSWERED)} * on ({_BY}, le) group_left () {_SHARES})"
_NONE: Final = f"0 * {of_own_models(PROMISED)}"
_WELL: Final = f"({of_own_models(WELL)} or {_NONE})"
_ANY: Final = of_own_models(_ANSWERED, 'le="+Inf"')
_ALL: Final = f"sum by ({_BY}) ({_ANY})"
_LATE: Final = f"({_ALL} - {_WITHIN} or {_NONE})"
# Nobody counts which failures were late as well: as many as can be, so that none counts twice.
_FAILED: Final = f"(clamp_min({_ALL} - {_WELL}, 0) or {_NONE})"


def burn(window: str) -> str:
    """The series of how fast the error budget burned over a window."""
    return f"tidegate:inference_budget_burn:rate{window}"


def _burn(window: str) -> Recorded:
    promised, bad = (f"sum_over_time({of_own_models(each)}[{window}])" for each in (PROMISED, BAD))
    objective = f"last_over_time({of_own_models(_OBJECTIVE)}[{_A_CHANGE_OF_LEADER}])"
    return Recorded(
        burn(window),
        f"{bad} / ({promised} > 0) / on ({_BY}) (1 - {objective})",
        _INFERENCE,
        f"how fast the error budget of spec.slo burned over the last {window}: at 1 it lasts exactly as long as its period",
    )


OBJECTIVES: Final = RecordedGroup(
    "tidegate-objectives",
    f"{EVERY_S}s",
    (
        Recorded(
            OFFERED,
            expressions.offered(_LOOK),
            _INFERENCE,
            f"as `tidegate:inference_offered:rate{WINDOW}`, over five minutes",
        ),
        Recorded(
            _ANSWERED,
            _as_envoy_writes_bounds(expressions.answered_within(_LOOK)),
            (*_INFERENCE, "le"),
            "answers per second within `le` milliseconds",
        ),
        Recorded(
            _OBJECTIVE,
            f"max by ({_BY}) ({of_object('tidegate_inference_slo_objective_ratio')})",
            _INFERENCE,
            "share of requests that are to be answered within `spec.slo.latencyP99`",
        ),
        Recorded(
            PROMISED,
            f"{of_own_models(OFFERED)} and on ({_BY}) {of_own_models(_OBJECTIVE)}",
            _INFERENCE,
            "requests per second that clients send to an Inference with an objective",
        ),
        Recorded(
            WELL,
            expressions.answered_well(_LOOK),
            _INFERENCE,
            f"as `tidegate:inference_served:rate{WINDOW}`, with what models refuse because they were asked wrongly",
        ),
        Recorded(
            BAD,
            f"clamp_min({of_own_models(PROMISED)} - {_WELL}, 0) + clamp_min({_LATE} - {_FAILED}, 0)",
            _INFERENCE,
            "those of them that were not answered, or not within `spec.slo.latencyP99`",
        ),
        *(_burn(window) for window in ("5m", "30m", "1h", "2h", "6h")),
    ),
)
LONG_OBJECTIVES: Final = RecordedGroup(
    # Prometheus looks back five minutes for a sample: alerts on what is written less often would have gaps, and never last.
    "tidegate-objectives-long",
    "2m",
    tuple(_burn(window) for window in ("1d", "3d")),
)

GROUPS: Final = (SIGNALS, OBJECTIVES, LONG_OBJECTIVES)


def rule_file() -> dict[str, object]:
    """The content of a rules file of Prometheus, and of a PrometheusRule's spec."""
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
