"""A pool of slices, and the GPUs that it shares under MPS."""

from __future__ import annotations

from typing import Final

from tidegate.grafana.panels import Dashboard, Kind, Panel, Query, Row, Unit, figure
from tidegate.grafana.selecting import (
    INFERENCE,
    NAMESPACE,
    POOL,
    RATE,
    busy_pods,
    of_objects,
    of_pods,
    of_pools,
    or_none,
    quantile,
    rate,
    replicas,
)

_READY: Final = of_objects("tidegate_object_ready", 'kind="ComputePool"', named="$pool").replace(
    'namespace=~"$namespace"', 'namespace=~".*"'
)

_CONTAINERS: Final = 'container!=""'
"""Without it, the pod's own sum counts them twice."""

_FAULTY: Final = of_pools("tidegate_pool_faulty_nodes", 'state!="Recovered"')


def _in_state(state: str) -> str:
    slices = of_pools("tidegate_pool_slices", f'state="{state}"')
    return f"max by (pool) ({slices})"


def _slices(state: str) -> str:
    return f"sum({_in_state(state)})"


def _events(metric: str, by: str) -> str:
    return or_none(f"sum by (pool, {by}) (increase({of_pools(metric)}[{RATE}]))")


POOL_AND_MPS: Final = Dashboard(
    uid="tidegate-pool",
    title="Tidegate / Pool and MPS",
    description="Who has the slices of a pool, how busy they are, and how the sharing of its GPUs holds.",
    variables=(POOL, NAMESPACE, INFERENCE),
    rows=(
        Row(
            "Pools",
            (
                figure("Slices", "Of the pools chosen.", _slices("total")),
                figure("Healthy", "On nodes that take pods.", _slices("healthy")),
                figure("Free", "That no pod has.", _slices("free")),
                figure(
                    "In use",
                    "Share of the healthy ones that pods have.",
                    f"1 - {_slices('free')} / ({_slices('healthy')} > 0)",
                    Unit.SHARE,
                ),
                figure(
                    "Overrides",
                    "Of people, in force about the pools chosen or their Inferences.",
                    f"sum(max by (pool) ({of_pools('tidegate_allocator_overrides')}))",
                ),
                figure(
                    "Faulty nodes",
                    "Nodes whose GPU sharing has a fault now.",
                    or_none(f"sum({_FAULTY})"),
                    warn_above=1,
                ),
                Panel(
                    title="Slices by tier",
                    description="Who has them: real-time takes from near-line and offline as load rises, and gives back.",
                    queries=(
                        Query(
                            f"sum by (pool, tier) (max by (pool, tier) ({of_pools('tidegate_pool_tier_slices')}))",
                            "{{pool}} {{tier}}",
                        ),
                        Query(_in_state("free"), "{{pool}} free"),
                    ),
                    stacked=True,
                    width=24,
                ),
                Panel(
                    title="How every pool is",
                    description="The reason of its condition Ready.",
                    queries=(Query(f"max by (name, reason) ({_READY})"),),
                    kind=Kind.TABLE,
                    width=12,
                ),
                Panel(
                    title="Replicas of its Inferences",
                    description="Pods that are there, by Inference: who has the slices.",
                    queries=(
                        Query(
                            replicas("existing"),
                            "{{namespace}}/{{name}}",
                        ),
                    ),
                    stacked=True,
                    width=12,
                ),
            ),
        ),
        Row(
            "Use",
            (
                Panel(
                    title="CPU of a pod",
                    description="Cores that the containers of a model's pod use, by cAdvisor.",
                    queries=(
                        Query(
                            f"sum by (namespace, pod) ({rate(of_pods('container_cpu_usage_seconds_total', _CONTAINERS))})",
                            "{{pod}}",
                        ),
                    ),
                ),
                Panel(
                    title="Memory of a pod",
                    description="What the kernel could not take back, by cAdvisor; at the limit the pod is ended.",
                    queries=(
                        Query(
                            f"sum by (namespace, pod) ({of_pods('container_memory_working_set_bytes', _CONTAINERS)})",
                            "{{pod}}",
                        ),
                    ),
                    unit=Unit.BYTES,
                ),
                Panel(
                    title="Busy pods",
                    description="Share of the time in which the model of a pod computes.",
                    queries=(
                        Query(
                            busy_pods(),
                            "{{pod}}",
                        ),
                    ),
                    unit=Unit.SHARE,
                    maximum=1,
                ),
                Panel(
                    title="GPU use",
                    description="Of the whole GPU, as each Triton on it sees it: pods on one GPU say the same.",
                    queries=(
                        Query(
                            'max by (gpu_uuid) (nv_gpu_utilization{namespace=~"$namespace"})',
                            "{{gpu_uuid}}",
                        ),
                    ),
                    unit=Unit.SHARE,
                    maximum=1,
                    width=12,
                ),
                Panel(
                    title="GPU memory in use",
                    description="Of the whole GPU, as each Triton on it sees it.",
                    queries=(
                        Query(
                            'max by (gpu_uuid) (nv_gpu_memory_used_bytes{namespace=~"$namespace"})',
                            "{{gpu_uuid}}",
                        ),
                    ),
                    unit=Unit.BYTES,
                    width=12,
                ),
            ),
        ),
        Row(
            "Sharing under MPS",
            (
                figure(
                    "Daemons that answer",
                    "MPS control daemons, of the nodes that have a node agent.",
                    "sum(tidegate_node_mps_daemon_answers)",
                ),
                figure(
                    "Daemons that do not",
                    "Of nodes that have a node agent. The controllers restart such a daemon three times.",
                    "sum(1 - tidegate_node_mps_daemon_answers)",
                    warn_above=1,
                ),
                figure("Clients", "Processes connected to MPS.", "sum(tidegate_node_mps_clients)"),
                figure(
                    "Faults in 24 h",
                    "Faults of nodes' GPU sharing.",
                    or_none(f"sum(increase({of_pools('tidegate_pool_node_faults_total')}[24h]))"),
                ),
                figure(
                    "Quarantined in 24 h",
                    "Nodes that were quarantined because a fault lasted.",
                    or_none(f"sum(increase({of_pools('tidegate_pool_nodes_quarantined_total')}[24h]))"),
                    warn_above=1,
                ),
                figure(
                    "Failed actions in 24 h",
                    "Changes of a node's taint and restarts of an MPS daemon that the API server did not accept.",
                    or_none(f"sum(increase({of_pools('tidegate_pool_sharing_actions_failed_total')}[24h]))"),
                ),
                Panel(
                    title="MPS servers by state",
                    description="What they say of themselves. FAULT ends with every client of the GPU.",
                    queries=(Query("sum by (status) (tidegate_node_mps_servers)", "{{status}}"),),
                    stacked=True,
                ),
                Panel(
                    title="Faults by kind",
                    description="docs/explanation/mps-health.md explains each of them.",
                    queries=(Query(_events("tidegate_pool_node_faults_total", "kind"), "{{pool}} {{kind}}"),),
                ),
                Panel(
                    title="Time to recover, p90",
                    description="From the first sight of a fault until it had gone.",
                    queries=(
                        Query(
                            or_none(
                                quantile(
                                    0.9,
                                    "tidegate_pool_node_recovery_seconds",
                                    by="pool, kind",
                                    matchers='pool=~"$pool"',
                                )
                            ),
                            "{{pool}} {{kind}}",
                        ),
                    ),
                    unit=Unit.SECONDS,
                ),
            ),
        ),
    ),
)
