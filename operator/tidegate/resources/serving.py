"""Build the objects around serving pods, which are the same for every kind that serves."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.resources.digest import hash_json
from tidegate.resources.manifest import Manifest
from tidegate.resources.names import MANAGED_BY, MANAGER, SOURCE_LABEL, TEMPLATE_ANNOTATION
from tidegate.resources.pod import build_pod_template
from tidegate.resources.serving_pod import CLIENT_CA_FILE, DESIRED_FILE, ServingPod
from tidegate.resources.settings import ServingSettings


@dataclass(frozen=True, slots=True)
class ServingWorkload:
    """One serving workload: its owner, its names and labels, and the order that its pods start with."""

    namespace: str
    name: str
    owner: Mapping[str, object]
    """Owner reference of every child."""
    selector: Mapping[str, str]
    """The labels that select its pods; immutable once created."""
    labels: Mapping[str, str]
    """Labels of every child, the selector's among them."""
    source: str
    """Short hash of what cannot change inside a pod; part of the ConfigMap's name."""
    replicas: int
    start_order: str
    """JSON of the DesiredState with which a starting pod begins."""
    max_replicas: int = 1
    """The most replicas that it may ever have."""
    pool_labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Labels of the Deployment alone that name the pool whose slices its pods run on."""
    in_place: bool = False
    """Whether a pod ends before its successor starts, since there is no room for both."""
    progress_deadline_s: int = 600
    deployment: str = ""
    """The Deployment's name if it is not `name`: the object has one for each of several pools."""
    pod_selector: Mapping[str, str] = field(default_factory=dict[str, str])
    """The labels that select the pods of this Deployment alone; empty for `selector`."""
    has_compiler: bool = False
    """Whether its pods have a compiler of graphs, without which they serve although Kubernetes counts them as unhealthy."""

    @property
    def config_map(self) -> str:
        """Return the ConfigMap's name for this source; pods of an earlier source keep reading theirs."""
        return f"{self.name}-{self.source}"


def build_workload_objects(
    workload: ServingWorkload, pod: ServingPod, settings: ServingSettings
) -> tuple[Manifest, ...]:
    """Build all objects of a workload, in the order in which they are applied.

    No Service: gateways reach pods by address. No ServiceAccount: no pod has a token. No PodDisruptionBudget for one
    replica, which it would not protect; an existing one stays when replicas become fewer.
    """
    return (
        build_config_map(workload, settings),
        build_deployment(workload, pod, settings),
        *build_disruption_budgets(workload),
    )


def build_deployment(workload: ServingWorkload, pod: ServingPod, settings: ServingSettings) -> Manifest:
    """Build the Deployment of a workload."""
    spec = _build_deployment_spec(workload, pod, settings)
    name = workload.deployment or workload.name
    return build_owned_object(workload, "apps/v1", "Deployment", name, {"spec": spec}, in_pool=True)


def build_disruption_budgets(workload: ServingWorkload) -> tuple[Manifest, ...]:
    """Build the PodDisruptionBudget of all pods of an object; none for one replica, which it would not protect."""
    return () if workload.max_replicas <= 1 else (_build_disruption_budget(workload),)


def find_template_hash(objects: Iterable[Manifest]) -> str:
    """Return the hash that pods of the Deployment among `objects` carry."""
    return get_template_hash(find_deployment(objects))


def get_template_hash(deployment: Manifest) -> str:
    """Return the hash that pods of a Deployment of ours carry."""
    body: Any = deployment
    return read_template_hash(body["spec"]["template"])


def find_deployment(objects: Iterable[Manifest]) -> Manifest:
    """Return the Deployment among the objects of a workload."""
    return next(manifest for manifest in objects if manifest["kind"] == "Deployment")


def read_template_hash(template: Mapping[str, Any]) -> str:
    """Return the hash that a pod template of ours carries; empty for one that is not ours."""
    return str((template["metadata"].get("annotations") or {}).get(TEMPLATE_ANNOTATION, ""))


def build_config_map(workload: ServingWorkload, settings: ServingSettings) -> Manifest:
    """Build the ConfigMap that tells a starting pod which model to serve and whose calls to accept."""
    data = {DESIRED_FILE: workload.start_order, CLIENT_CA_FILE: settings.client_ca}
    return build_owned_object(workload, "v1", "ConfigMap", workload.config_map, {"data": data})


def build_owned_object(
    workload: ServingWorkload,
    api_version: str,
    kind: str,
    name: str,
    content: Mapping[str, object],
    *,
    in_pool: bool = False,
) -> Manifest:
    """Build one child, with its labels and owner; `in_pool` adds the labels of the slices that its pods run on."""
    pool_labels = workload.pool_labels if in_pool else {}
    labels = {**workload.labels, **pool_labels, MANAGED_BY: MANAGER, SOURCE_LABEL: workload.source}
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": workload.namespace,
            "labels": labels,
            "ownerReferences": [dict(workload.owner)],
        },
        **content,
    }


def _build_deployment_spec(
    workload: ServingWorkload, pod: ServingPod, settings: ServingSettings
) -> dict[str, object]:
    return {
        "replicas": workload.replicas,
        "revisionHistoryLimit": 2,
        "progressDeadlineSeconds": workload.progress_deadline_s,
        "selector": {"matchLabels": dict(workload.pod_selector or workload.selector)},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {
                "maxSurge": int(not workload.in_place),
                "maxUnavailable": int(workload.in_place),
            },
        },
        "template": add_template_hash(build_pod_template(pod, settings)),
    }


def add_template_hash(template: dict[str, Any]) -> dict[str, Any]:
    """Add a template's own hash to its annotations."""
    metadata = template["metadata"]
    annotations = {**metadata["annotations"], TEMPLATE_ANNOTATION: hash_json(template)}
    return {**template, "metadata": {**metadata, "annotations": annotations}}


def _build_disruption_budget(workload: ServingWorkload) -> Manifest:
    spec = {
        "maxUnavailable": 1,
        "selector": {"matchLabels": dict(workload.selector)},
        # Pods that do not serve stop no drain. Those without their compiler serve, and Kubernetes cannot tell them apart.
        "unhealthyPodEvictionPolicy": "IfHealthyBudget" if workload.has_compiler else "AlwaysAllow",
    }
    return build_owned_object(workload, "policy/v1", "PodDisruptionBudget", workload.name, {"spec": spec})
