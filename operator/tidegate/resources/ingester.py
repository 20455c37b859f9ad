"""Build the Deployment of the ingester that writes a FeatureCompute's events into a Redis."""

from dataclasses import replace
from typing import Final

from tidegate.resources.containers import build_ingester
from tidegate.resources.manifest import Manifest
from tidegate.resources.names import (
    INGESTER_LABEL,
    MANAGED_BY,
    MANAGER,
    SOURCE_LABEL,
    TIER_LABEL,
)
from tidegate.resources.pod import build_secret_volume, build_security_context
from tidegate.resources.serving import ServingWorkload, add_template_hash, build_owned_object
from tidegate.resources.serving_pod import EventStore, ServingPod
from tidegate.resources.settings import ServingSettings

_GRACE_S: Final = 20


def build_ingester_deployment(
    name: str, workload: ServingWorkload, pod: ServingPod, store: EventStore, settings: ServingSettings
) -> Manifest:
    """Build the ingester, of this name, of the plan that `pod` serves; each plan has one, as long as pods of the plan exist.

    One replica, or none if there are no pods to read the events. Another one would do no harm, since a write that does not
    follow the last one is refused, and no good.
    """
    # Not the labels of the pods that serve: this one answers no request.
    owner = {INGESTER_LABEL: next(iter(workload.selector.values())), SOURCE_LABEL: workload.source}
    labels = {**owner, TIER_LABEL: workload.labels[TIER_LABEL], MANAGED_BY: MANAGER}
    annotations = {"kubectl.kubernetes.io/default-container": "ingester"}
    template = {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": _build_pod(pod, store, settings),
    }
    spec = {
        "replicas": min(workload.replicas, 1),
        "revisionHistoryLimit": 2,
        "selector": {"matchLabels": owner},
        "strategy": {"type": "Recreate"},
        "template": add_template_hash(template),
    }
    # Its own labels keep those of the owner, by which the controllers find it.
    return build_owned_object(
        replace(workload, labels={**workload.labels, **owner}), "apps/v1", "Deployment", name, {"spec": spec}
    )


def _build_pod(pod: ServingPod, store: EventStore, settings: ServingSettings) -> dict[str, object]:
    volumes: list[dict[str, object]] = [
        {"name": "desired", "configMap": {"name": pod.config_map}},
        {"name": "ingester-tmp", "emptyDir": {}},
        *(build_secret_volume(name, secret) for name, _, secret in store.secret_volumes),
    ]
    if store.redis_secret:
        volumes.append(build_secret_volume("redis-secret", store.redis_secret))
    spec: dict[str, object] = {
        "serviceAccountName": pod.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_S,
        "securityContext": build_security_context(pod, settings),
        "containers": [build_ingester(store, settings)],
        "volumes": volumes,
    }
    if pod.priority_class is not None:
        spec["priorityClassName"] = pod.priority_class
    return spec
