"""The dashboard of the control plane: processes, reconciles, queues and xDS."""

from __future__ import annotations

from typing import Final

from tidegate.grafana.panels import Dashboard, Panel, PanelQuery, PanelRow, PanelUnit, stat_panel
from tidegate.grafana.promql import (
    RATE,
    histogram_quantile,
    or_zero,
)


def _rate_by(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}[{RATE}]))"


def _count_blocked(bound: str) -> str:
    return f'sum by (instance) (increase(tidegate_event_loop_held_seconds_bucket{{le="{bound}"}}[{RATE}]))'


def _label_process(series: str) -> str:
    """Return the series of our own processes with a label `process`; other processes export process_… as well."""
    return f"{series} * on (instance) group_left (process) tidegate_build_info"


_LEADERS: Final = 'sum by (namespace, release) (label_replace(tidegate_leader, "release", "$1", "pod", "(.+)-controllers-.+"))'
"""The names of pods begin with the name of their release."""

CONTROL_PLANE: Final = Dashboard(
    uid="tidegate-control-plane",
    title="Tidegate / Control plane",
    description="Whether the controllers keep up, and whether the gateways accept what the xDS servers send. Requests are served without either.",
    variables=(),
    rows=(
        PanelRow(
            "Now",
            (
                stat_panel("Keys waiting", "In all queues.", "sum(tidegate_queue_depth)"),
                stat_panel(
                    "Oldest key",
                    "The longest time that a key has waited.",
                    "max(tidegate_queue_oldest_seconds)",
                    PanelUnit.SECONDS,
                ),
                stat_panel(
                    "Gateways connected",
                    "Connections to all xDS servers.",
                    "sum(tidegate_xds_connected_proxies)",
                ),
                stat_panel(
                    "gRPC clients connected",
                    "Clients that call models without a gateway.",
                    "sum(tidegate_xds_connected_grpc_clients)",
                ),
                stat_panel(
                    "Rejected (NACK) in 1 h",
                    "Configurations that gateways rejected: a bug in Tidegate.",
                    or_zero("sum(increase(tidegate_xds_nacks_total[1h]))"),
                    warn_from=1,
                ),
                stat_panel(
                    "Issuers without keys",
                    "Addresses whose last fetch of keys failed.",
                    "max(tidegate_xds_issuer_addresses_failing)",
                    warn_from=1,
                ),
            ),
        ),
        PanelRow(
            "Processes",
            (
                stat_panel(
                    "Leaders",
                    "Controllers processes that may write: one per release.",
                    _LEADERS,
                    warn_from=2,
                ),
                stat_panel(
                    "Certificate expires in",
                    "The xDS servers' certificate; it is replaced without a restart.",
                    "min(tidegate_xds_server_certificate_expires_timestamp_seconds > 0) - time()",
                    PanelUnit.SECONDS,
                    warn_below=604800,
                ),
                Panel(
                    title="CPU",
                    description="Cores by process.",
                    queries=(
                        PanelQuery(
                            _label_process(f"rate(process_cpu_seconds_total[{RATE}])"),
                            "{{process}} {{instance}}",
                        ),
                    ),
                ),
                Panel(
                    title="Memory",
                    description="Resident memory by process. The caches contain every object of our kinds and their children.",
                    queries=(
                        PanelQuery(
                            _label_process("process_resident_memory_bytes"), "{{process}} {{instance}}"
                        ),
                    ),
                    unit=PanelUnit.BYTES,
                ),
                Panel(
                    title="Event loop blocked for more than 250 ms",
                    description="How often a process could not answer probes or read watches for that long, without the time that it "
                    "waited for a CPU. Each one is a bug.",
                    queries=(
                        PanelQuery(
                            _count_blocked("+Inf") + " - " + _count_blocked("0.25"),
                            "{{instance}}",
                        ),
                    ),
                ),
                Panel(
                    title="Writes to the API server",
                    description="Writes by result. Without changes there are almost none; conflicts are retried.",
                    queries=(
                        PanelQuery(
                            _rate_by("tidegate_api_writes_total", "resource, result"),
                            "{{resource}} {{result}}",
                        ),
                    ),
                    unit=PanelUnit.PER_SECOND,
                ),
                Panel(
                    title="Write latency, p99",
                    description="Writes to the API server, by verb.",
                    queries=(
                        PanelQuery(
                            histogram_quantile(0.99, "tidegate_api_write_seconds", by="verb"), "{{verb}}"
                        ),
                    ),
                    unit=PanelUnit.SECONDS,
                ),
                Panel(
                    title="Requests to the dashboard",
                    description="By the status of the response.",
                    queries=(PanelQuery(_rate_by("tidegate_web_requests_total", "status"), "{{status}}"),),
                    unit=PanelUnit.REQUESTS_PER_SECOND,
                ),
            ),
        ),
        PanelRow(
            "Reconciles",
            (
                Panel(
                    title="Reconciles by result",
                    description="Objects that do not change cause none. retried: the API server or an agent did not respond; crashed: a bug in Tidegate.",
                    queries=(
                        PanelQuery(
                            _rate_by("tidegate_reconciles_total", "queue, result"), "{{queue}} {{result}}"
                        ),
                    ),
                    unit=PanelUnit.PER_SECOND,
                ),
                Panel(
                    title="Time of a reconcile, p99",
                    description="By queue.",
                    queries=(
                        PanelQuery(
                            histogram_quantile(0.99, "tidegate_reconcile_seconds", by="queue"), "{{queue}}"
                        ),
                    ),
                    unit=PanelUnit.SECONDS,
                ),
                Panel(
                    title="Time in the queue, p99",
                    description="From a change until a worker starts the reconcile.",
                    queries=(
                        PanelQuery(
                            histogram_quantile(0.99, "tidegate_queue_wait_seconds", by="queue"), "{{queue}}"
                        ),
                    ),
                    unit=PanelUnit.SECONDS,
                ),
                Panel(
                    title="Keys waiting, by queue",
                    description="If it keeps growing, the workers of the queue are stuck.",
                    queries=(PanelQuery("sum by (queue) (tidegate_queue_depth)", "{{queue}}"),),
                ),
                Panel(
                    title="Busy workers",
                    description="By queue.",
                    queries=(PanelQuery("sum by (queue) (tidegate_reconciles_in_progress)", "{{queue}}"),),
                ),
                Panel(
                    title="Retries",
                    description="Keys requeued after a failure, with backoff.",
                    queries=(PanelQuery(_rate_by("tidegate_queue_retries_total", "queue"), "{{queue}}"),),
                    unit=PanelUnit.PER_SECOND,
                ),
            ),
        ),
        PanelRow(
            "xDS",
            (
                Panel(
                    title="Responses sent, accepted and rejected",
                    description="Responses to gateways. Accepted ones follow those sent; rejected ones (NACKs) stay at 0.",
                    queries=(
                        PanelQuery(_rate_by("tidegate_xds_pushes_total", "type"), "{{type}} sent"),
                        PanelQuery(_rate_by("tidegate_xds_acks_total", "type"), "{{type}} accepted"),
                        PanelQuery(
                            or_zero(_rate_by("tidegate_xds_nacks_total", "type")), "{{type}} rejected"
                        ),
                    ),
                    unit=PanelUnit.PER_SECOND,
                    width=12,
                ),
                Panel(
                    title="Time to programme a gateway, p99",
                    description="From a new snapshot until one gateway has accepted all of it.",
                    queries=(PanelQuery(histogram_quantile(0.99, "tidegate_xds_push_seconds"), "push"),),
                    unit=PanelUnit.SECONDS,
                    width=6,
                ),
                Panel(
                    title="Time to build a snapshot, p99",
                    description="Planning and rendering the resources of all gateways.",
                    queries=(
                        PanelQuery(histogram_quantile(0.99, "tidegate_xds_snapshot_build_seconds"), "build"),
                    ),
                    unit=PanelUnit.SECONDS,
                    width=6,
                ),
                Panel(
                    title="Age of the newest snapshot",
                    description="A snapshot is built only after a change; an old one means that nothing has changed.",
                    queries=(
                        PanelQuery("time() - max(tidegate_xds_snapshot_timestamp_seconds > 0)", "snapshot"),
                    ),
                    unit=PanelUnit.SECONDS,
                    width=6,
                ),
                Panel(
                    title="Late clusters and refused streams",
                    description="Routes sent although their Envoy clusters were not accepted in time, and streams whose certificate does not match their node ID.",
                    width=6,
                    queries=(
                        PanelQuery(
                            f"sum(rate(tidegate_xds_gate_deadline_misses_total[{RATE}]))", "late clusters"
                        ),
                        PanelQuery(
                            f"sum(rate(tidegate_xds_refused_proxies_total[{RATE}]))", "refused streams"
                        ),
                    ),
                    unit=PanelUnit.PER_SECOND,
                ),
                Panel(
                    title="Fetches of issuers' keys",
                    description="Requests to the addresses in spec.auth.jwt.jwksUri, by result.",
                    queries=(
                        PanelQuery(
                            or_zero(_rate_by("tidegate_xds_issuer_fetches_total", "result")), "{{result}}"
                        ),
                    ),
                    unit=PanelUnit.PER_SECOND,
                ),
                Panel(
                    title="Gateway certificates expire in",
                    description="Certificates of the TLS port; empty if it has no Secret.",
                    queries=(
                        PanelQuery(
                            or_zero(
                                "min by (secret, role) (tidegate_xds_gateway_secret_expires_timestamp_seconds) - time()"
                            ),
                            "{{secret}} {{role}}",
                        ),
                    ),
                    unit=PanelUnit.SECONDS,
                ),
            ),
        ),
    ),
)
