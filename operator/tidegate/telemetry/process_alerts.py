"""Alerting rules about our own processes and the gateways."""

from __future__ import annotations

from typing import Final

from tidegate.telemetry.alert import ALERT_PREFIX, Alert, Severity
from tidegate.telemetry.scope import own_pod_series

_LEADS: Final = f"{own_pod_series('tidegate_leader')} == 1"
_RECONCILES: Final = own_pod_series("tidegate_reconciles_total")
_FAILED: Final = own_pod_series("tidegate_reconciles_total", 'result=~"retried|crashed"')
_CRASHED: Final = own_pod_series("tidegate_reconciles_total", 'result="crashed"')
_WRITES: Final = own_pod_series("tidegate_api_writes_total")
_REFUSED: Final = own_pod_series("tidegate_api_writes_total", 'result=~"refused|unavailable"')
_LEFT_OUT: Final = own_pod_series("tidegate_cache_objects_left_out")
_NOT_ROUTED: Final = own_pod_series("tidegate_xds_objects_failed")
_PAGES: Final = own_pod_series("tidegate_web_requests_total")
_BROKEN_PAGES: Final = own_pod_series("tidegate_web_requests_total", 'status=~"5.."')
_PUSHES: Final = own_pod_series("tidegate_xds_push_seconds_bucket")
_SECRET_EXPIRES: Final = own_pod_series("tidegate_xds_gateway_secret_expires_timestamp_seconds")
_SERVER_EXPIRES: Final = own_pod_series("tidegate_xds_server_certificate_expires_timestamp_seconds")


def _absence_of(process: str) -> str:
    """Return an expression that is true when a process ran within the last day and does not now.

    So the alert never fires where the process is not installed.
    """
    series = own_pod_series("tidegate_build_info", f'process="{process}"')
    return f"group(present_over_time({series}[1d])) unless group({series})"


CONTROLLERS: Final = (
    Alert(
        f"{ALERT_PREFIX}NoLeader",
        f"absent({_LEADS})",
        "2m",
        Severity.PAGE,
        "No controllers process is leader",
        "No object is reconciled and no slices move. Requests are still served.",
    ),
    Alert(
        f"{ALERT_PREFIX}QueueStuck",
        f"max by (queue) ({own_pod_series('tidegate_queue_oldest_seconds')} and on (instance) {_LEADS}) > 300",
        "5m",
        Severity.PAGE,
        "Queue {{ $labels.queue }} is stuck",
        'Its oldest key has waited {{ $value | printf "%.0f" }} s for a worker.',
    ),
    Alert(
        f"{ALERT_PREFIX}ReconcilesCrash",
        f"sum by (queue) (increase({_CRASHED}[15m])) > 0",
        "0s",
        Severity.TICKET,
        "Reconciles of queue {{ $labels.queue }} crash",
        "Unexpected exceptions, which are bugs in Tidegate. The object is retried; the log has the traceback.",
    ),
    Alert(
        f"{ALERT_PREFIX}ReconcilesFail",
        f"sum by (queue) (rate({_FAILED}[15m])) / sum by (queue) (rate({_RECONCILES}[15m])) > 0.5"
        f" and sum by (queue) (increase({_FAILED}[15m])) > 10",
        "15m",
        Severity.TICKET,
        "Most reconciles of queue {{ $labels.queue }} fail",
        "{{ $value | humanizePercentage }} of the reconciles in the last 15 minutes failed and were retried.",
    ),
    Alert(
        f"{ALERT_PREFIX}ObjectsLeftOut",
        f"max by (kind) ({_LEFT_OUT}) > 0 or max({_NOT_ROUTED}) > 0",
        "5m",
        Severity.TICKET,
        "{{ or $labels.kind `Routed` }} objects are left out",
        "{{ $value }} objects raise an unexpected exception: usually a bug in Tidegate, or an unfinished upgrade. "
        "Each stays as it was before, or is ignored; others are not affected.",
    ),
    Alert(
        f"{ALERT_PREFIX}ApiWritesFail",
        f"sum by (resource) (rate({_REFUSED}[10m])) / sum by (resource) (rate({_WRITES}[10m])) > 0.1"
        f" and sum by (resource) (increase({_REFUSED}[10m])) > 5",
        "10m",
        Severity.TICKET,
        "The API server rejects writes of {{ $labels.resource }}",
        "{{ $value | humanizePercentage }} of the controllers' writes were refused or got no response.",
    ),
    Alert(
        f"{ALERT_PREFIX}WebDown",
        _absence_of("web"),
        "10m",
        Severity.TICKET,
        "The dashboard is down",
        "No web process has exported metrics for ten minutes. Only the dashboard and the REST API need one.",
    ),
    Alert(
        f"{ALERT_PREFIX}WebErrors",
        f"sum(rate({_BROKEN_PAGES}[10m])) / sum(rate({_PAGES}[10m])) > 0.05"
        f" and sum(increase({_BROKEN_PAGES}[10m])) > 5",
        "10m",
        Severity.TICKET,
        "The dashboard returns errors",
        "{{ $value | humanizePercentage }} of its responses are 5xx.",
    ),
)
"""The operator's own processes."""

GATEWAYS: Final = (
    Alert(
        f"{ALERT_PREFIX}XdsDown",
        f"absent(group({own_pod_series('tidegate_xds_connected_proxies')}))",
        "5m",
        Severity.PAGE,
        "No xDS server is running",
        "Running gateways keep their configuration; a gateway that starts now gets none.",
    ),
    Alert(
        f"{ALERT_PREFIX}GatewayWithoutXds",
        f"min by (namespace, pod, instance) ({own_pod_series('envoy_control_plane_connected_state')}) == 0",
        "10m",
        Severity.TICKET,
        "Gateway {{ $labels.pod }} is not connected to an xDS server",
        "It keeps its configuration but gets no changes: no new routes, and no new pods.",
    ),
    Alert(
        f"{ALERT_PREFIX}ConfigurationRejected",
        f"sum by (type) (increase({own_pod_series('tidegate_xds_nacks_total')}[10m])) > 0",
        "0s",
        Severity.PAGE,
        "Gateways reject a configuration",
        "Envoy rejected (NACK) a resource of type {{ $labels.type }}. The last accepted one stays in effect; changes to it have none.",
    ),
    Alert(
        f"{ALERT_PREFIX}ConfigurationSlow",
        f"histogram_quantile(0.99, sum by (le) (rate({_PUSHES}[10m]))) > 5",
        "10m",
        Severity.TICKET,
        "Changes reach the gateways slowly",
        'It takes {{ $value | printf "%.1f" }} s (p99) until a gateway has accepted a change.',
    ),
    Alert(
        f"{ALERT_PREFIX}ProxyRefused",
        f"sum(increase({own_pod_series('tidegate_xds_refused_proxies_total')}[10m])) > 0",
        "0s",
        Severity.TICKET,
        "A client asks for the configuration of another gateway",
        "Its certificate does not match its node ID: the certificates are wrong, or the client is not a gateway.",
    ),
    Alert(
        f"{ALERT_PREFIX}GatewaySecretUnusable",
        f"min by (secret, role) ({own_pod_series('tidegate_xds_gateway_secret_usable')}) == 0",
        "10m",
        Severity.PAGE,
        "Secret {{ $labels.secret }} of the gateways is unusable",
        "The TLS port uses the last valid content ({{ $labels.role }}), or stays closed if there was none.",
    ),
    Alert(
        f"{ALERT_PREFIX}CertificateExpires",
        f"min by (secret, role) ({_SECRET_EXPIRES} > 0) - time() < 7 * 86400"
        f" or min({_SERVER_EXPIRES} > 0) - time() < 7 * 86400",
        "1h",
        Severity.TICKET,
        "The certificate {{ or $labels.secret `of the xDS servers` }} expires soon",
        "It expires in {{ $value | humanizeDuration }}.",
    ),
    Alert(
        f"{ALERT_PREFIX}IssuerKeysFailing",
        f"max({own_pod_series('tidegate_xds_issuer_addresses_failing')}) > 0",
        "15m",
        Severity.TICKET,
        "The keys of a token issuer cannot be fetched",
        "{{ $value }} addresses (spec.auth.jwt.jwksUri) return no keys. Keys fetched earlier stay valid until all xDS servers restart.",
    ),
)
"""Gateways and xDS servers."""
