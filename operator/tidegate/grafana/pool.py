"""The dashboard of pools: their slices, the load of their nodes, and GPU sharing under MPS."""

from __future__ import annotations

from typing import Final

from tidegate.grafana.panels import Dashboard, Panel, PanelKind, PanelQuery, PanelRow, PanelUnit, stat_panel
from tidegate.grafana.promql import (
    INFERENCE,
    NAMESPACE,
    POOL,
    RATE,
    counter_rate,
    histogram_quantile,
    object_gauge,
    or_zero,
    pod_busy_share,
    pod_series,
    pool_series,
    replica_count,
    spare_series,
)

_READY: Final = object_gauge("tidegate_object_ready", 'kind="ComputePool"', name_pattern="$pool").replace(
    'namespace=~"$namespace"', 'namespace=~".*"'
)

_CONTAINERS: Final = 'container!=""'
"""Excludes the series of the whole pod, which would count its containers twice."""

_FAULTY: Final = pool_series("tidegate_pool_faulty_nodes", 'state!="Recovered"')


def _slices_by_pool(state: str) -> str:
    slices = pool_series("tidegate_pool_slices", f'state="{state}"')
    return f"max by (pool) ({slices})"


def _total_slices(state: str) -> str:
    return f"sum({_slices_by_pool(state)})"


def _increase_by(metric: str, by: str) -> str:
    return or_zero(f"sum by (pool, {by}) (increase({pool_series(metric)}[{RATE}]))")


POOL_AND_MPS: Final = Dashboard(
    uid="tidegate-pool",
    title="Tidegate / Pool and MPS",
    description="The assignment of a pool's slices, their load, and the health of GPU sharing.",
    variables=(POOL, NAMESPACE, INFERENCE),
    rows=(
        PanelRow(
            "Pools",
            (
                stat_panel("Slices", "Of the selected pools.", _total_slices("total")),
                stat_panel("Healthy", "On nodes that accept pods.", _total_slices("healthy")),
                stat_panel("Free", "Slices without a pod.", _total_slices("free")),
                stat_panel(
                    "In use",
                    "Share of the healthy slices that pods use.",
                    f"1 - {_total_slices('free')} / ({_total_slices('healthy')} > 0)",
                    PanelUnit.SHARE,
                ),
                stat_panel(
                    "Overrides",
                    "Active ComputeOverrides of the selected pools or their Inferences.",
                    f"sum(max by (pool) ({pool_series('tidegate_allocator_overrides')}))",
                ),
                stat_panel(
                    "Faulty nodes",
                    "Nodes with a current fault in GPU sharing.",
                    or_zero(f"sum({_FAULTY})"),
                    warn_from=1,
                ),
                Panel(
                    title="Slices by tier",
                    description="Assigned slices. As load rises, tier realtime takes slices from nearline and offline, and returns them later.",
                    queries=(
                        PanelQuery(
                            f"sum by (pool, tier) (max by (pool, tier) ({pool_series('tidegate_pool_tier_slices')}))",
                            "{{pool}} {{tier}}",
                        ),
                        PanelQuery(_slices_by_pool("free"), "{{pool}} free"),
                    ),
                    stacked=True,
                    width=12,
                ),
                Panel(
                    title="Imbalance between nodes",
                    description="Utilisation of the fullest healthy node divided by that of all healthy nodes: 1 if all are equally full. The loss of a much fuller node loses more replicas.",
                    queries=(
                        PanelQuery(
                            f"max by (pool) ({pool_series('tidegate_pool_imbalance_ratio')})", "{{pool}}"
                        ),
                    ),
                    width=12,
                ),
                Panel(
                    title="Spares that Inferences share",
                    description="Their slices, which count in tier realtime; those with all of their models loaded; and Inferences with nodeLoss Shared that none of them serves for, with the reason in tidegate status.",
                    queries=(
                        PanelQuery(
                            f"max by (pool) ({pool_series('tidegate_pool_shared_spare_slices')})",
                            "{{pool}} slices",
                        ),
                        PanelQuery(
                            f"max by (pool, state) ({pool_series('tidegate_pool_shared_spares')})",
                            "{{pool}} {{state}}",
                        ),
                        PanelQuery(
                            f"max by (pool) ({pool_series('tidegate_pool_uncovered_inferences')})",
                            "{{pool}} uncovered Inferences",
                        ),
                    ),
                    width=12,
                ),
                Panel(
                    title="Requests that shared spares answer",
                    description="Per second and model, counted by Triton: more than none while replicas of the model do not answer, or have no capacity left.",
                    queries=(
                        PanelQuery(
                            f"sum by (namespace, model) ({counter_rate(spare_series('nv_inference_request_success'))})",
                            "{{namespace}} {{model}}",
                        ),
                    ),
                    unit=PanelUnit.REQUESTS_PER_SECOND,
                    width=12,
                ),
                Panel(
                    title="Status of all pools",
                    description="The reason of the condition Ready.",
                    queries=(PanelQuery(f"max by (name, reason) ({_READY})"),),
                    kind=PanelKind.TABLE,
                    width=12,
                ),
                Panel(
                    title="Replicas by Inference",
                    description="Existing pods of each Inference, which use the slices.",
                    queries=(
                        PanelQuery(
                            replica_count("existing"),
                            "{{namespace}}/{{name}}",
                        ),
                    ),
                    stacked=True,
                    width=12,
                ),
            ),
        ),
        PanelRow(
            "Load",
            (
                Panel(
                    title="CPU of a pod",
                    description="Cores that the containers of a serving pod use, measured by cAdvisor.",
                    queries=(
                        PanelQuery(
                            f"sum by (namespace, pod) ({counter_rate(pod_series('container_cpu_usage_seconds_total', _CONTAINERS))})",
                            "{{pod}}",
                        ),
                    ),
                ),
                Panel(
                    title="Memory of a pod",
                    description="Working set, measured by cAdvisor; at the limit the container is killed.",
                    queries=(
                        PanelQuery(
                            f"sum by (namespace, pod) ({pod_series('container_memory_working_set_bytes', _CONTAINERS)})",
                            "{{pod}}",
                        ),
                    ),
                    unit=PanelUnit.BYTES,
                ),
                Panel(
                    title="Busy time by pod",
                    description="Share of the time in which the model of a pod computes.",
                    queries=(
                        PanelQuery(
                            pod_busy_share(),
                            "{{pod}}",
                        ),
                    ),
                    unit=PanelUnit.SHARE,
                    maximum=1,
                ),
                Panel(
                    title="GPU utilisation",
                    description="Of the whole GPU, as Triton measures it; pods on the same GPU report the same value.",
                    queries=(
                        PanelQuery(
                            'max by (gpu_uuid) (nv_gpu_utilization{namespace=~"$namespace"})',
                            "{{gpu_uuid}}",
                        ),
                    ),
                    unit=PanelUnit.SHARE,
                    maximum=1,
                    width=12,
                ),
                Panel(
                    title="GPU memory in use",
                    description="Of the whole GPU, as Triton measures it.",
                    queries=(
                        PanelQuery(
                            'max by (gpu_uuid) (nv_gpu_memory_used_bytes{namespace=~"$namespace"})',
                            "{{gpu_uuid}}",
                        ),
                    ),
                    unit=PanelUnit.BYTES,
                    width=12,
                ),
            ),
        ),
        PanelRow(
            "Sharing under MPS",
            (
                stat_panel(
                    "Daemons responding",
                    "MPS control daemons of nodes with a node agent.",
                    "sum(tidegate_node_mps_daemon_answers)",
                ),
                stat_panel(
                    "Daemons not responding",
                    "MPS control daemons of nodes with a node agent. The controllers restart such a daemon up to three times.",
                    "sum(1 - tidegate_node_mps_daemon_answers)",
                    warn_from=1,
                ),
                stat_panel("Clients", "Processes connected to MPS.", "sum(tidegate_node_mps_clients)"),
                stat_panel(
                    "Faults in 24 h",
                    "Faults in the GPU sharing of nodes.",
                    or_zero(f"sum(increase({pool_series('tidegate_pool_node_faults_total')}[24h]))"),
                ),
                stat_panel(
                    "Quarantined in 24 h",
                    "Nodes that were quarantined because a fault lasted.",
                    or_zero(f"sum(increase({pool_series('tidegate_pool_nodes_quarantined_total')}[24h]))"),
                    warn_from=1,
                ),
                stat_panel(
                    "Failed actions in 24 h",
                    "Changes of a node's taint and restarts of an MPS daemon that the API server did not accept.",
                    or_zero(
                        f"sum(increase({pool_series('tidegate_pool_sharing_actions_failed_total')}[24h]))"
                    ),
                ),
                Panel(
                    title="MPS servers by state",
                    description="The state that the servers report. FAULT ends when every client of the GPU has ended.",
                    queries=(PanelQuery("sum by (status) (tidegate_node_mps_servers)", "{{status}}"),),
                    stacked=True,
                ),
                Panel(
                    title="Faults by kind",
                    description="docs/explanation/mps-health.md explains each kind.",
                    queries=(
                        PanelQuery(
                            _increase_by("tidegate_pool_node_faults_total", "kind"), "{{pool}} {{kind}}"
                        ),
                    ),
                ),
                Panel(
                    title="Time to recover, p90",
                    description="From the detection of a fault until it was gone.",
                    queries=(
                        PanelQuery(
                            or_zero(
                                histogram_quantile(
                                    0.9,
                                    "tidegate_pool_node_recovery_seconds",
                                    by="pool, kind",
                                    matchers='pool=~"$pool"',
                                )
                            ),
                            "{{pool}} {{kind}}",
                        ),
                    ),
                    unit=PanelUnit.SECONDS,
                ),
            ),
        ),
    ),
)
