"""A ComputePool, and nodes and pods for it, as the API server would give them."""

from __future__ import annotations

from typing import Any

from builders.overlay import overlaid
from tidegate.api.compute_pool import ComputePool

POOL_LABELS = {"pool": "a"}


def compute_pool_body(
    name: str = "cpu-a", *, metadata: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    """A valid ComputePool with `spec` laid over it; None removes a field."""
    base = {"nodeSelector": POOL_LABELS, "slice": {"cpu": {"cpu": "1", "memory": "1Gi"}}}
    return {
        "apiVersion": "tidegate.io/v1alpha1",
        "kind": "ComputePool",
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **(metadata or {}),
        },
        "spec": overlaid(base, spec),
    }


def a_compute_pool(
    name: str = "cpu-a",
    *,
    metadata: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    **spec: Any,
) -> ComputePool:
    """A parsed ComputePool."""
    body = compute_pool_body(name, metadata=metadata, **spec)
    return ComputePool.parse({**body, "status": status or {}})


def node_body(
    name: str = "node-0",
    *,
    cpu: str = "4",
    memory: str = "8Gi",
    labels: dict[str, str] | None = None,
    ready: bool = True,
    cordoned: bool = False,
    taints: list[dict[str, str]] | None = None,
    **allocatable: str,
) -> dict[str, Any]:
    """A node of the pool, if it has the pool's labels."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": POOL_LABELS if labels is None else labels},
        "spec": {"unschedulable": cordoned, "taints": taints or []},
        "status": {
            "allocatable": {"cpu": cpu, "memory": memory, "pods": "110", **allocatable},
            "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
        },
    }


def pod_on(
    node: str,
    name: str = "p",
    *,
    cpu: str = "1",
    memory: str = "1Gi",
    pool: str = "",
    tier: str = "realtime",
    phase: str = "Running",
    managed: bool = True,
) -> dict[str, Any]:
    """A pod that has a node; of ours on slices of `pool`, or of somebody else's."""
    labels = {"tidegate.io/pool": pool, "tidegate.io/tier": tier} if pool else {}
    if managed:
        labels["app.kubernetes.io/managed-by"] = "tidegate"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ads", "uid": f"uid-{name}", "labels": labels},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "triton", "resources": {"requests": {"cpu": cpu, "memory": memory}}}],
        },
        "status": {"phase": phase},
    }
