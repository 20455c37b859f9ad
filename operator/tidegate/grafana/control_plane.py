"""The control plane: reconciles, queues, and what the gateways accept."""

from __future__ import annotations

from typing import Final

from tidegate.grafana.panels import Dashboard, Panel, Query, Row, Unit, figure
from tidegate.grafana.selecting import (
    RATE,
    or_none,
    quantile,
)


def _per_second(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}[{RATE}]))"


def _held(bound: str) -> str:
    return f'sum by (instance) (increase(tidegate_event_loop_held_seconds_bucket{{le="{bound}"}}[{RATE}]))'


def _of_process(series: str) -> str:
    """By which of our processes it is: others say process_… of themselves, too."""
    return f"{series} * on (instance) group_left (process) tidegate_build_info"


_LEADERS: Final = 'sum by (namespace, release) (label_replace(tidegate_leader, "release", "$1", "pod", "(.+)-controllers-.+"))'
"""Pods are called after their release."""

CONTROL_PLANE: Final = Dashboard(
    uid="tidegate-control-plane",
    title="Tidegate / Control plane",
    description="Whether the controllers keep up, and whether the gateways take what the xDS servers send. Traffic goes on without either.",
    variables=(),
    rows=(
        Row(
            "Now",
            (
                figure("Keys that wait", "In all queues.", "sum(tidegate_queue_depth)"),
                figure(
                    "Oldest key",
                    "Since when somebody's change waits.",
                    "max(tidegate_queue_oldest_seconds)",
                    Unit.SECONDS,
                ),
                figure(
                    "Gateways connected",
                    "To each xDS server, added up.",
                    "sum(tidegate_xds_connected_proxies)",
                ),
                figure(
                    "gRPC clients connected",
                    "That call models without a gateway.",
                    "sum(tidegate_xds_connected_grpc_clients)",
                ),
                figure(
                    "Refused by gateways in 1 h",
                    "Our configuration was wrong: an alarm.",
                    or_none("sum(increase(tidegate_xds_nacks_total[1h]))"),
                    warn_above=1,
                ),
                figure(
                    "Issuers without keys",
                    "Addresses that gave none when last asked.",
                    "max(tidegate_xds_issuer_addresses_failing)",
                    warn_above=1,
                ),
            ),
        ),
        Row(
            "Processes",
            (
                figure("Leaders", "Controllers that may write: one of each release.", _LEADERS, warn_above=2),
                figure(
                    "Certificate left",
                    "Of the xDS servers; it is replaced without a restart.",
                    "min(tidegate_xds_server_certificate_expires_timestamp_seconds > 0) - time()",
                    Unit.SECONDS,
                    warn_below=604800,
                ),
                Panel(
                    title="CPU",
                    description="Cores by process.",
                    queries=(
                        Query(
                            _of_process(f"rate(process_cpu_seconds_total[{RATE}])"),
                            "{{process}} {{instance}}",
                        ),
                    ),
                ),
                Panel(
                    title="Memory",
                    description="Resident, by process. The caches hold every object of our kinds and their children.",
                    queries=(
                        Query(_of_process("process_resident_memory_bytes"), "{{process}} {{instance}}"),
                    ),
                    unit=Unit.BYTES,
                ),
                Panel(
                    title="Event loop held for more than 250 ms",
                    description="How often a process answered no probe and read no watch for so long, without the time that it waited "
                    "for a core. Each is a defect.",
                    queries=(
                        Query(
                            _held("+Inf") + " - " + _held("0.25"),
                            "{{instance}}",
                        ),
                    ),
                ),
                Panel(
                    title="Writes to the API server",
                    description="By what came of them. A settled fleet writes next to nothing; conflicts are tried again.",
                    queries=(
                        Query(
                            _per_second("tidegate_api_writes_total", "resource, result"),
                            "{{resource}} {{result}}",
                        ),
                    ),
                    unit=Unit.PER_SECOND,
                ),
                Panel(
                    title="Time of a write, p99",
                    description="Of the API server, by verb.",
                    queries=(Query(quantile(0.99, "tidegate_api_write_seconds", by="verb"), "{{verb}}"),),
                    unit=Unit.SECONDS,
                ),
                Panel(
                    title="Requests to the dashboard",
                    description="By the status of the answer.",
                    queries=(Query(_per_second("tidegate_web_requests_total", "status"), "{{status}}"),),
                    unit=Unit.REQUESTS_PER_SECOND,
                ),
            ),
        ),
        Row(
            "Reconciles",
            (
                Panel(
                    title="Reconciles by result",
                    description="A settled object costs none. retried: the API server or an agent did not answer; crashed: a defect of ours.",
                    queries=(
                        Query(
                            _per_second("tidegate_reconciles_total", "queue, result"), "{{queue}} {{result}}"
                        ),
                    ),
                    unit=Unit.PER_SECOND,
                ),
                Panel(
                    title="Time of a reconcile, p99",
                    description="By queue.",
                    queries=(Query(quantile(0.99, "tidegate_reconcile_seconds", by="queue"), "{{queue}}"),),
                    unit=Unit.SECONDS,
                ),
                Panel(
                    title="Time in the queue, p99",
                    description="From a change until a worker looks at it.",
                    queries=(Query(quantile(0.99, "tidegate_queue_wait_seconds", by="queue"), "{{queue}}"),),
                    unit=Unit.SECONDS,
                ),
                Panel(
                    title="Keys that wait, by queue",
                    description="One that grows is a queue whose workers are stuck.",
                    queries=(Query("sum by (queue) (tidegate_queue_depth)", "{{queue}}"),),
                ),
                Panel(
                    title="Workers at work",
                    description="By queue.",
                    queries=(Query("sum by (queue) (tidegate_reconciles_in_progress)", "{{queue}}"),),
                ),
                Panel(
                    title="Retries",
                    description="Keys put back after a failure, with a growing wait.",
                    queries=(Query(_per_second("tidegate_queue_retries_total", "queue"), "{{queue}}"),),
                    unit=Unit.PER_SECOND,
                ),
            ),
        ),
        Row(
            "xDS",
            (
                Panel(
                    title="Sent, accepted, refused",
                    description="Responses to gateways. Accepted follows sent; refused stays at 0.",
                    queries=(
                        Query(_per_second("tidegate_xds_pushes_total", "type"), "{{type}} sent"),
                        Query(_per_second("tidegate_xds_acks_total", "type"), "{{type}} accepted"),
                        Query(or_none(_per_second("tidegate_xds_nacks_total", "type")), "{{type}} refused"),
                    ),
                    unit=Unit.PER_SECOND,
                    width=12,
                ),
                Panel(
                    title="Time until a gateway runs it, p99",
                    description="From a new snapshot to its full acceptance by one gateway.",
                    queries=(Query(quantile(0.99, "tidegate_xds_push_seconds"), "push"),),
                    unit=Unit.SECONDS,
                    width=6,
                ),
                Panel(
                    title="Time to make a snapshot, p99",
                    description="Planning and rendering what all gateways get.",
                    queries=(Query(quantile(0.99, "tidegate_xds_snapshot_build_seconds"), "build"),),
                    unit=Unit.SECONDS,
                    width=6,
                ),
                Panel(
                    title="Age of the newest snapshot",
                    description="One is made when something has changed: an old one is a quiet fleet.",
                    queries=(Query("time() - max(tidegate_xds_snapshot_timestamp_seconds > 0)", "snapshot"),),
                    unit=Unit.SECONDS,
                    width=6,
                ),
                Panel(
                    title="Out of order",
                    description="Routes sent although their clusters were not accepted in time, and streams whose certificate is not for their node id.",
                    width=6,
                    queries=(
                        Query(f"sum(rate(tidegate_xds_gate_deadline_misses_total[{RATE}]))", "late clusters"),
                        Query(f"sum(rate(tidegate_xds_refused_proxies_total[{RATE}]))", "refused streams"),
                    ),
                    unit=Unit.PER_SECOND,
                ),
                Panel(
                    title="Keys of issuers",
                    description="Questions to the addresses in spec.auth.jwt.jwksUri, by what came of them.",
                    queries=(
                        Query(
                            or_none(_per_second("tidegate_xds_issuer_fetches_total", "result")), "{{result}}"
                        ),
                    ),
                    unit=Unit.PER_SECOND,
                ),
                Panel(
                    title="Time left of the gateways' certificates",
                    description="Of the TLS port; none where it has no Secret.",
                    queries=(
                        Query(
                            or_none(
                                "min by (secret, role) (tidegate_xds_gateway_secret_expires_timestamp_seconds) - time()"
                            ),
                            "{{secret}} {{role}}",
                        ),
                    ),
                    unit=Unit.SECONDS,
                ),
            ),
        ),
    ),
)
