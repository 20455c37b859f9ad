"""What somebody is told about, by Prometheus: objectives that are missed, and a control plane that does not work as it should."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidegate.telemetry.recorded import BAD, EVERY_S, burn
from tidegate.telemetry.scope import OWN_ROUTES, of_object, of_own_models, of_own_pods

RUNBOOKS: Final = "https://runbooks.invalid"
"""Stands for where the runbooks are; the chart puts metrics.rules.runbookBase in its place."""
PREFIX: Final = "Tidegate"
_BY: Final = "namespace, inference"
# Agents do not know whose pods they are in; Deployments and Jobs name theirs after themselves.
_WORKLOAD: Final = 'label_replace({}, "workload", "$1", "pod", "(.+)-[^-]+-[^-]+")'


_A_CHANGE_OF_LEADER: Final = "5m"
"""What only a leader says is not there between two of them: nothing is well for that, and then bad again."""


class Severity(StrEnum):
    """Whom it is for."""

    PAGE = "page"
    """Users feel it, or will soon: somebody is to look now."""
    TICKET = "ticket"
    """Somebody is to look in the next working days."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule. `hold`: for how long the expression has to be true; `window` tells rules of one name apart.

    `keep`: for how long it goes on being told when the expression is not true any more.
    """

    name: str
    expression: str
    hold: str
    severity: Severity
    summary: str
    description: str
    window: str = ""
    keep: str = ""

    @property
    def slug(self) -> str:
        """What its runbook is called: TidegateNoLeader is no-leader."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", self.name.removeprefix(PREFIX)).lower()

    def rule(self) -> dict[str, object]:
        """As in a rules file of Prometheus."""
        labels = {"severity": self.severity.value, **({"window": self.window} if self.window else {})}
        return {
            "alert": self.name,
            "expr": self.expression,
            "for": self.hold,
            **({"keep_firing_for": self.keep} if self.keep else {}),
            "labels": labels,
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": f"{RUNBOOKS}/{self.slug}.md",
            },
        }


def _budget(long: str, short: str, factor: str, hold: str, severity: Severity) -> Alert:
    """Two windows: the long one says that it matters, the short one that it still goes on. Ten bad requests are the least."""
    return Alert(
        f"{PREFIX}InferenceBudgetBurn",
        f"{of_own_models(burn(long))} > {factor} and on ({_BY}) {of_own_models(burn(short))} > {factor}"
        f" and on ({_BY}) sum_over_time({of_own_models(BAD)}[{long}]) * {EVERY_S} >= 10",
        hold,
        severity,
        "Inference {{ $labels.namespace }}/{{ $labels.inference }} misses its objective",
        f"Over {long} and over {short}, requests that were not answered, or not within spec.slo.latencyP99, used up the error "
        'budget {{ $value | printf "%.1f" }} times as fast as it lasts; from ' + factor + " on this is told.",
        window=long,
    )


def _gone(process: str) -> str:
    """Was there within a day, and is not: who never installed it is not told."""
    shown = of_own_pods("tidegate_build_info", f'process="{process}"')
    return f"group(present_over_time({shown}[1d])) unless group({shown})"


_OBJECT: Final = "min by (kind, namespace, name) "
_READY_INFERENCE: Final = of_object("tidegate_object_ready", 'kind="Inference"')
_READY_OTHER: Final = of_object("tidegate_object_ready", 'kind!="Inference"')
_TARGET: Final = of_object("tidegate_inference_version", 'state="target"')
_SERVING: Final = of_object("tidegate_inference_version", 'state="serving"')
_CREATED: Final = of_object("tidegate_override_created_timestamp_seconds")
_LEADS: Final = f"{of_own_pods('tidegate_leader')} == 1"
_RECONCILES: Final = of_own_pods("tidegate_reconciles_total")
_FAILED: Final = of_own_pods("tidegate_reconciles_total", 'result=~"retried|crashed"')
_CRASHED: Final = of_own_pods("tidegate_reconciles_total", 'result="crashed"')
_WRITES: Final = of_own_pods("tidegate_api_writes_total")
_REFUSED: Final = of_own_pods("tidegate_api_writes_total", 'result=~"refused|unavailable"')
_PAGES: Final = of_own_pods("tidegate_web_requests_total")
_BROKEN_PAGES: Final = of_own_pods("tidegate_web_requests_total", 'status=~"5.."')
_PUSHES: Final = of_own_pods("tidegate_xds_push_seconds_bucket")
_SECRET_EXPIRES: Final = of_own_pods("tidegate_xds_gateway_secret_expires_timestamp_seconds")
_SERVER_EXPIRES: Final = of_own_pods("tidegate_xds_server_certificate_expires_timestamp_seconds")
_GREEDY: Final = 'tidegate_allocator_solves_total{solver="Greedy"}'
_BACKLOG: Final = _WORKLOAD.format(of_own_models("tidegate_agent_nearline_backlog"))
_WORKED_OFF: Final = _WORKLOAD.format(f"rate({of_own_models('tidegate_agent_nearline_results_total')}[10m])")
_DEAD: Final = _WORKLOAD.format(
    f"increase({of_own_models('tidegate_agent_nearline_dead_letters_total')}[15m])"
)

OBJECTIVES: Final = (
    _budget("1h", "5m", "14.4", "2m", Severity.PAGE),
    _budget("6h", "30m", "6", "15m", Severity.PAGE),
    _budget("1d", "2h", "3", "1h", Severity.TICKET),
    _budget("3d", "6h", "1", "3h", Severity.TICKET),
    Alert(
        f"{PREFIX}RouteUnserved",
        f"""sum by (route) (tidegate:route_unserved:rate1m{{route=~"{OWN_ROUTES}"}}) > 0""",
        "5m",
        Severity.PAGE,
        "Requests on {{ $labels.route }} find no pod",
        '{{ $value | printf "%.2f" }} requests per second are answered 503 (gRPC: UNAVAILABLE), since no target has a pod.',
    ),
)
"""What clients feel."""

OBJECTS: Final = (
    Alert(
        f"{PREFIX}InferenceNotReady",
        f"{_OBJECT}({_READY_INFERENCE}) == 0",
        "15m",
        Severity.TICKET,
        "Inference {{ $labels.namespace }}/{{ $labels.name }} is not Ready",
        "It has not been for 15 minutes. What it had in place before goes on serving, where there was something.",
        keep=_A_CHANGE_OF_LEADER,
    ),
    Alert(
        f"{PREFIX}ObjectNotReady",
        f"{_OBJECT}({_READY_OTHER}) == 0",
        "15m",
        Severity.TICKET,
        "{{ $labels.kind }} {{ $labels.namespace }}/{{ $labels.name }} is not Ready",
        "It has not been for 15 minutes.",
        keep=_A_CHANGE_OF_LEADER,
    ),
    Alert(
        f"{PREFIX}ObjectStalled",
        f"max by (kind, namespace, name) ({of_object('tidegate_object_stalled')}) == 1",
        "1h",
        Severity.TICKET,
        "{{ $labels.kind }} {{ $labels.namespace }}/{{ $labels.name }} waits for somebody",
        "Only a changed spec or another object can help, for an hour by now.",
        keep=_A_CHANGE_OF_LEADER,
    ),
    Alert(
        f"{PREFIX}ModelVersionBehind",
        f"max by ({_BY}) ({_TARGET}) != on ({_BY}) max by ({_BY}) ({_SERVING})",
        "30m",
        Severity.TICKET,
        "Inference {{ $labels.namespace }}/{{ $labels.inference }} does not serve the version that is asked for",
        "It has been asked for version {{ $value }} for 30 minutes, and its pods answer with another or with none.",
        keep=_A_CHANGE_OF_LEADER,
    ),
    Alert(
        f"{PREFIX}NearlineLag",
        f"max by (namespace, workload) ({_BACKLOG}) / sum by (namespace, workload) ({_WORKED_OFF}) > 900",
        "15m",
        Severity.TICKET,
        "The stream of {{ $labels.namespace }}/{{ $labels.workload }} is far behind",
        'At the pace of the last ten minutes its backlog takes {{ $value | printf "%.0f" }} s to work off.',
    ),
    Alert(
        f"{PREFIX}NearlineDeadLetters",
        f"sum by (namespace, workload) ({_DEAD}) > 0",
        "0s",
        Severity.TICKET,
        "{{ $labels.namespace }}/{{ $labels.workload }} gives messages up",
        '{{ $value | printf "%.0f" }} messages went to the dead letters in 15 minutes.',
    ),
)
"""Objects that are not as they should be."""

CONTROLLERS: Final = (
    Alert(
        f"{PREFIX}NoLeader",
        f"absent({_LEADS})",
        "2m",
        Severity.PAGE,
        "No controller leads",
        "Nothing is reconciled and no compute moves. Traffic goes on as it is.",
    ),
    Alert(
        f"{PREFIX}QueueStuck",
        f"max by (queue) ({of_own_pods('tidegate_queue_oldest_seconds')} and on (instance) {_LEADS}) > 300",
        "5m",
        Severity.PAGE,
        "The queue {{ $labels.queue }} does not move",
        'A key has waited for a worker for {{ $value | printf "%.0f" }} s.',
    ),
    Alert(
        f"{PREFIX}ReconcilesCrash",
        f"sum by (queue) (increase({_CRASHED}[15m])) > 0",
        "0s",
        Severity.TICKET,
        "Reconciles of the queue {{ $labels.queue }} end in errors that nobody foresaw",
        "This is a mistake of ours. The key is tried again, and the traceback is in the log.",
    ),
    Alert(
        f"{PREFIX}ReconcilesFail",
        f"sum by (queue) (rate({_FAILED}[15m])) / sum by (queue) (rate({_RECONCILES}[15m])) > 0.5"
        f" and sum by (queue) (increase({_FAILED}[15m])) > 10",
        "15m",
        Severity.TICKET,
        "More than half of the reconciles of the queue {{ $labels.queue }} fail",
        "{{ $value | humanizePercentage }} are put back, again and again.",
    ),
    Alert(
        f"{PREFIX}ApiWritesFail",
        f"sum by (resource) (rate({_REFUSED}[10m])) / sum by (resource) (rate({_WRITES}[10m])) > 0.1"
        f" and sum by (resource) (increase({_REFUSED}[10m])) > 5",
        "10m",
        Severity.TICKET,
        "The API server does not take our writes of {{ $labels.resource }}",
        "{{ $value | humanizePercentage }} of them were refused, or not answered.",
    ),
    Alert(
        f"{PREFIX}WebDown",
        _gone("web"),
        "10m",
        Severity.TICKET,
        "The dashboard is gone",
        "No web process has told of itself for ten minutes. Nothing but the dashboard and the REST API needs one.",
    ),
    Alert(
        f"{PREFIX}WebErrors",
        f"sum(rate({_BROKEN_PAGES}[10m])) / sum(rate({_PAGES}[10m])) > 0.05"
        f" and sum(increase({_BROKEN_PAGES}[10m])) > 5",
        "10m",
        Severity.TICKET,
        "The dashboard answers with errors",
        "{{ $value | humanizePercentage }} of its answers are 5xx.",
    ),
)
"""The operator's own processes."""

GATEWAYS: Final = (
    Alert(
        f"{PREFIX}XdsDown",
        f"absent(group({of_own_pods('tidegate_xds_connected_proxies')}))",
        "5m",
        Severity.PAGE,
        "There is no xDS server",
        "Gateways go on with what they have; none that starts now gets a configuration.",
    ),
    Alert(
        f"{PREFIX}GatewayWithoutXds",
        f"min by (namespace, pod, instance) ({of_own_pods('envoy_control_plane_connected_state')}) == 0",
        "10m",
        Severity.TICKET,
        "The gateway {{ $labels.pod }} has no xDS server",
        "It goes on with what it has, and learns of no change and of no new pod.",
    ),
    Alert(
        f"{PREFIX}ConfigurationRejected",
        f"sum by (type) (increase({of_own_pods('tidegate_xds_nacks_total')}[10m])) > 0",
        "0s",
        Severity.PAGE,
        "Gateways refuse a configuration",
        "A {{ $labels.type }} of ours is not what Envoy takes. The last good one goes on, and changes to it have no effect.",
    ),
    Alert(
        f"{PREFIX}ConfigurationSlow",
        f"histogram_quantile(0.99, sum by (le) (rate({_PUSHES}[10m]))) > 5",
        "10m",
        Severity.TICKET,
        "Changes take long to reach the gateways",
        'One change in a hundred takes {{ $value | printf "%.1f" }} s or more until a gateway has accepted it.',
    ),
    Alert(
        f"{PREFIX}ProxyRefused",
        f"sum(increase({of_own_pods('tidegate_xds_refused_proxies_total')}[10m])) > 0",
        "0s",
        Severity.TICKET,
        "Somebody asks for a gateway's configuration in another's name",
        "The certificate is not for the node id that was given: a mistake in the certificates, or somebody who is no gateway.",
    ),
    Alert(
        f"{PREFIX}GatewaySecretUnusable",
        f"min by (secret, role) ({of_own_pods('tidegate_xds_gateway_secret_usable')}) == 0",
        "10m",
        Severity.PAGE,
        "The Secret {{ $labels.secret }} cannot be used",
        "The gateways' TLS port goes on with the last good content ({{ $labels.role }}), or is closed where there was none.",
    ),
    Alert(
        f"{PREFIX}CertificateExpires",
        f"min by (secret, role) ({_SECRET_EXPIRES} > 0) - time() < 7 * 86400"
        f" or min({_SERVER_EXPIRES} > 0) - time() < 7 * 86400",
        "1h",
        Severity.TICKET,
        "The certificate {{ or $labels.secret `of the xDS servers` }} is about to expire",
        "{{ $value | humanizeDuration }} are left.",
    ),
    Alert(
        f"{PREFIX}IssuerKeysFailing",
        f"max({of_own_pods('tidegate_xds_issuer_addresses_failing')}) > 0",
        "15m",
        Severity.TICKET,
        "The keys of an issuer of tokens cannot be had",
        "{{ $value }} addresses (jwksUri) give none. Those seen before go on to count, until every xDS server has restarted.",
    ),
)
"""Gateways, and who configures them."""

ALLOCATION: Final = (
    Alert(
        f"{PREFIX}DecisionsStale",
        # A process that has not decided yet says since when it was to.
        "time() - max by (pool)"
        " (tidegate_allocator_decided_timestamp_seconds or tidegate_allocator_due_timestamp_seconds)"
        " > 5 * max by (pool) (tidegate_allocator_interval_seconds) + 60",
        "2m",
        Severity.TICKET,
        "Nothing is decided about the ComputePool {{ $labels.pool }}",
        "The last decision was {{ $value | humanizeDuration }} ago, more than five intervals.",
        keep=_A_CHANGE_OF_LEADER,
    ),
    Alert(
        f"{PREFIX}SignalsStale",
        'max by (name) (tidegate_object_signals_fresh{kind="ComputePool"}) == 0',
        "10m",
        Severity.TICKET,
        "The allocator does not know what is asked of the ComputePool {{ $labels.name }}",
        "It holds what it knew last, and lowers nobody.",
        keep=_A_CHANGE_OF_LEADER,
    ),
    Alert(
        f"{PREFIX}SolverFallsBack",
        f"sum by (pool) (rate({_GREEDY}[15m])) / sum by (pool) (rate(tidegate_allocator_solves_total[15m])) > 0.5",
        "15m",
        Severity.TICKET,
        "The solver gives no answer for the ComputePool {{ $labels.pool }}",
        "{{ $value | humanizePercentage }} of its decisions are the greedy ones, which can be carried out and are worth less.",
    ),
    Alert(
        f"{PREFIX}ReclaimSlow",
        "histogram_quantile(0.9, sum by (tier, le) (rate(tidegate_allocator_reclaim_seconds_bucket[30m]))) > 120",
        "10m",
        Severity.TICKET,
        "The tier {{ $labels.tier }} gives slices back slowly",
        'One reclaim in ten takes {{ $value | printf "%.0f" }} s or more.',
    ),
    Alert(
        f"{PREFIX}OverrideForgotten",
        f"time() - max by (override, kind, namespace, name) ({_CREATED}) > 2 * 86400"
        " and on (override) max by (override) (tidegate_override_expires_timestamp_seconds) > time()",
        "5m",
        Severity.TICKET,
        "The ComputeOverride {{ $labels.override }} may have been forgotten",
        "For {{ $value | humanizeDuration }} it has decided over the allocator about {{ $labels.kind }} "
        "{{ $labels.namespace }}/{{ $labels.name }}.",
        keep=_A_CHANGE_OF_LEADER,
    ),
    Alert(
        f"{PREFIX}NodesQuarantined",
        'max by (pool) (tidegate_pool_faulty_nodes{state="Quarantined"}) > 0',
        "5m",
        Severity.TICKET,
        "Nodes of the ComputePool {{ $labels.pool }} are quarantined",
        "The GPU sharing of {{ $value }} nodes has a fault that lasts. They get no new pods until it is repaired.",
        keep=_A_CHANGE_OF_LEADER,
    ),
    Alert(
        f"{PREFIX}MpsDaemonSilent",
        "min by (namespace, pod, instance) (tidegate_node_mps_daemon_answers) == 0",
        "10m",
        Severity.TICKET,
        "MPS does not answer on the node of {{ $labels.pod }}",
        "Processes that start there get no GPU.",
    ),
)
"""Who gets compute, and whether it can be used."""

GROUPS: Final = {
    "tidegate-alerts-objectives": OBJECTIVES,
    "tidegate-alerts-objects": OBJECTS,
    "tidegate-alerts-operator": CONTROLLERS,
    "tidegate-alerts-gateways": GATEWAYS,
    "tidegate-alerts-allocation": ALLOCATION,
}
ALERTS: Final = tuple(alert for group in GROUPS.values() for alert in group)


def alert_file() -> dict[str, object]:
    """The content of a rules file of Prometheus, and of a PrometheusRule's spec."""
    return {
        "groups": [
            {"name": name, "rules": [alert.rule() for alert in alerts]} for name, alerts in GROUPS.items()
        ]
    }
