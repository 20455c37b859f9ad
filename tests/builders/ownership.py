"""Owner references as the controllers and Kubernetes write them, from a pod up to its Inference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_HASH = "5d9f8c7b6"


def of_inference(name: str, namespace: str = "ads", uid: str = "") -> dict[str, Any]:
    """Metadata of a Deployment or a Job of an Inference."""
    owner = {
        "apiVersion": "tidegate.io/v1alpha1",
        "kind": "Inference",
        "name": name,
        "uid": uid or f"uid-{namespace}-{name}",
        "controller": True,
    }
    return {"ownerReferences": [owner]}


def of_deployment(name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Metadata of a pod of a Deployment, with these labels beside Kubernetes' own."""
    replica_set = f"{name}-{_HASH}"
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": replica_set,
        "uid": f"uid-{replica_set}",
        "controller": True,
    }
    return {"labels": {**labels, "pod-template-hash": _HASH}, "ownerReferences": [owner]}


def of_job(name: str, uid: str) -> dict[str, Any]:
    """Metadata of a pod of a Job."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}
    return {"ownerReferences": [owner]}
