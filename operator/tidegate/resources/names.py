"""Names and labels of child objects: deterministic, and still unique after truncation."""

import hashlib
from collections.abc import Mapping
from typing import Final

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "tidegate"
MANAGED_SELECTOR: Final = f"{MANAGED_BY}={MANAGER}"
"""Label selector of everything that the controllers create."""
UNMANAGED_SELECTOR: Final = f"{MANAGED_BY}!={MANAGER}"
"""Label selector of everything else."""
INFERENCE_LABEL: Final = "tidegate.io/inference"
FEATURE_COMPUTE_LABEL: Final = "tidegate.io/feature-compute"
INGESTER_LABEL: Final = "tidegate.io/feature-ingester"
"""The FeatureCompute whose events an ingester of its own writes: on the Deployment beside FEATURE_COMPUTE_LABEL, on its pods instead."""
ACCESS_LABEL: Final = "tidegate.io/access"
BACKFILL_LABEL: Final = "tidegate.io/backfill"
"""The FeatureCompute whose spec.backfill it is of: without FEATURE_COMPUTE_LABEL, because its pods do not serve."""
PIPELINE_LABEL: Final = "tidegate.io/pipeline"
"""The ModelAccess and the route whose pipeline it is, with a dot between."""
TIER_LABEL: Final = "tidegate.io/tier"
POOL_LABEL: Final = "tidegate.io/pool"
SLICES_LABEL: Final = "tidegate.io/slices"
"""How many slices of its pool each pod of a workload has."""
SPARE_LABEL: Final = "tidegate.io/shared-spare"
"""The number of a spare that Inferences of its namespace share, on its Deployment and its pod: without INFERENCE_LABEL."""
SPARE_MODELS_ANNOTATION: Final = "tidegate.io/shared-models"
"""On the Deployment of a shared spare the Inferences whose models it loads; on its pod those that it serves, with the version."""
SPARE_NODE_ANNOTATION: Final = "tidegate.io/shared-spare-node"
"""On the same Deployment: the node of its pod."""
RUN_LABEL: Final = "tidegate.io/run"
"""The run of a batch, on its Job and pods."""
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
"""Kueue's label: the LocalQueue in which a Job waits until it may run."""
MAX_REPLICAS_LABEL: Final = "tidegate.io/max-replicas"
"""On a HorizontalPodAutoscaler: its author's maximum, with which it asks us to bound maxReplicas."""
BOUNDED_ANNOTATION: Final = "tidegate.io/bounded-to"
"""On the same: the maxReplicas that we wrote last, because the pool has no room for more."""
RECORDED_SLICES_ANNOTATION: Final = "tidegate.io/recorded-slices"
"""On a ComputePool in a file of tidegate record: its healthy slices."""
RECORDED_NODES_ANNOTATION: Final = "tidegate.io/recorded-nodes"
"""On the same: its nodes."""
RECORDED_LOAD_ANNOTATION: Final = "tidegate.io/recorded-load"
"""On an Inference there: the measured time until a new replica serves, as a duration."""
RECORDED_DRAIN_ANNOTATION: Final = "tidegate.io/recorded-drain"
"""On the same: the measured time until a replica that stops has freed its slices."""
SOURCE_LABEL: Final = "tidegate.io/source"
"""Hash of everything but the version: pods that differ in it cannot swap in place and are replaced."""
TEMPLATE_ANNOTATION: Final = "tidegate.io/template"
"""Hash of the pod template, on every pod: shows which pods are still to be replaced."""
CALLS_ANNOTATION: Final = "tidegate.io/calls"
"""The Inferences that a pipeline's pod calls, separated by commas: gateways route to them while it runs."""
LAST_READY_ANNOTATION: Final = "tidegate.io/last-ready-template"
"""On a Deployment during a rollout: the pod template to roll back to, as JSON."""
ROLLED_BACK_ANNOTATION: Final = "tidegate.io/rolled-back"
"""On a Deployment that was rolled back: which attempt failed and why, as JSON."""

_MAX_CHILD_NAME: Final = 52
"""Leaves room in 63 characters for the hashes that Deployments and ReplicaSets append to pod names."""
_MAX_LABEL_VALUE: Final = 63


def make_child_name(prefix: str, name: str, suffix: str = "") -> str:
    """Return `inf-ctr`, or for a long name its beginning and a hash of the whole: `inf-a-very-long…-1f3c9a2b`."""
    tail = f"-{suffix}" if suffix else ""
    return _shorten_name(f"{prefix}-{name}".replace(".", "-"), name, _MAX_CHILD_NAME - len(tail)) + tail


def make_pool_deployment_name(inference: str, pool: str) -> str:
    """Return the name of the Deployment of one of several pools, beside the one that has the bare name.

    `pool` is the pool's name as a label value. The hash keeps it from being the bare name of another Inference.
    """
    return make_child_name("inf", inference, hashlib.sha256(pool.encode()).hexdigest()[:8])


def to_label_value(name: str) -> str:
    """Return a name as a label value: unchanged up to 63 characters, otherwise shortened with a hash."""
    return _shorten_name(name, name, _MAX_LABEL_VALUE)


def parse_slices(labels: Mapping[str, str]) -> int:
    """Return the number in SLICES_LABEL; 0 where there is none."""
    slices = labels.get(SLICES_LABEL, "")
    return int(slices) if slices.isdecimal() else 0


def _shorten_name(text: str, identity: str, limit: int) -> str:
    # A dot replaced by a dash can collide as well ("a.b" and "a-b"), so both cases carry the hash.
    if len(text) <= limit and text.endswith(identity):
        return text
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    return f"{text[: limit - 9].rstrip('-.')}-{digest}"
