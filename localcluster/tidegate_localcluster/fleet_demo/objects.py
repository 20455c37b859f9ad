"""Build every object of the fleet: nodes, pool, Inferences, and what the chart would install around them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.fleet_demo.prometheus import GATEWAY_POD, SLO_S
from tidegate_localcluster.fleet_demo.workload import (
    GPUS_PER_NODE,
    SLICES_PER_GPU,
    VALUE_PER_REQUEST,
    FleetModel,
    generate_models,
)
from tidegate_localcluster.state import ClusterPlan

POOL: Final = "fleet"
NAMESPACE: Final = "fleet"
SYSTEM_NAMESPACE: Final = "tidegate-system"
RELEASE: Final = "tidegate"
USERS: Final = {"controllers": "tidegate-controllers", "xds": "tidegate-xds"}
"""Users of the processes of Tidegate; each has the rights that the chart gives it."""
INTERVAL: Final = "10s"
SMALL_FLEET_INTERVAL: Final = "5s"
LARGE_FLEET: Final = 200
"""With this many Inferences a tick's changes take more than five seconds to apply at the busiest hour."""
DWELL: Final = "10s"
"""The default of five minutes would be sixteen hours of the demo's day."""
TIERS: Final = ("realtime", "nearline", "offline")
API_PATH: Final = "/apis/tidegate.io/v1alpha1"
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_PLURALS: Final = {
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
_SHARED_GPU: Final = "nvidia.com/gpu.shared"

Manifest = Mapping[str, Any]
ObjectAtPath = tuple[str, Manifest]
"""An object and its path."""


def count_slices(plan: ClusterPlan) -> int:
    """Return the number of slices of the plan's fleet."""
    if plan.fleet is None:
        raise LocalClusterError("the plan is not of a fleet demo")
    return plan.fleet.nodes * GPUS_PER_NODE * SLICES_PER_GPU


def list_models(plan: ClusterPlan) -> Sequence[FleetModel]:
    """Return the models of the plan's fleet."""
    slices = count_slices(plan)
    assert plan.fleet is not None  # noqa: S101  count_slices raised otherwise
    return generate_models(plan.fleet.inferences, slices, plan.fleet.seed)


def read_crds(root: Path) -> Iterator[ObjectAtPath]:
    """Yield the CRDs of the source tree."""
    for path in sorted((root / "crds").glob("*.yaml")):
        body = yaml.safe_load(path.read_text())
        name = body["metadata"]["name"]
        yield f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}", body


def make_namespaces() -> Iterator[ObjectAtPath]:
    """Yield the namespaces, which must exist before the objects in them."""
    for name in (SYSTEM_NAMESPACE, NAMESPACE):
        yield f"/api/v1/namespaces/{name}", _make_body("v1", "Namespace", name)


def read_chart_objects(
    root: Path,
    *,
    users: Mapping[str, str] = USERS,
    templates: Sequence[str] = ("overrides",),
    values: Mapping[str, str] | None = None,
) -> Iterator[ObjectAtPath]:
    """Yield priority classes, the rights of `users`, and the policies of these templates of the chart."""
    for number, tier in enumerate(reversed(TIERS)):
        name = f"{RELEASE}-{tier}"
        priority = {**_make_body("scheduling.k8s.io/v1", "PriorityClass", name), "value": (number + 1) * 1000}
        yield f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}", priority
    yield from read_rbac(root, "ClusterRole", "controllers-cluster", users["controllers"])
    yield from read_rbac(root, "Role", "controllers-release", users["controllers"])
    yield from read_rbac(root, "ClusterRole", "xds-cluster", users["xds"])
    for template in templates:
        for body in render_policies(root, template, values or {}):
            name = body["metadata"]["name"]
            yield f"{_ADMISSION}/{_PLURALS[body['kind']]}/{name}", body


def render_policies(root: Path, template: str, values: Mapping[str, str]) -> Sequence[Manifest]:
    """Render the objects of a template of the chart without Helm, without labels, with all conditions true.

    `values` maps other expressions between braces to their text.
    """
    text = (_chart_folder(root) / "templates" / f"{template}.yaml").read_text()
    text = re.sub(r"\{\{/\*.*?\*/\}\}", "", text, flags=re.DOTALL)
    text = text.replace('{{- include "tidegate.complete" . -}}\n', "")
    text = re.sub(r"labels: \{\{- include.*", "labels: {}", text)
    text = re.sub(r"^\{\{- (if .*|end) \}\}$", "", text, flags=re.MULTILINE)
    for expression, value in {
        'include "tidegate.fullname" .': RELEASE,
        ".Release.Namespace": SYSTEM_NAMESPACE,
        **values,
    }.items():
        text = text.replace(f"{{{{ {expression} }}}}", value)
    return tuple(yaml.safe_load_all(text))


def read_rbac(
    root: Path,
    kind: str,
    file: str,
    user: str,
    *,
    objects: Sequence[str] = (),
    namespace: str = SYSTEM_NAMESPACE,
) -> Iterator[ObjectAtPath]:
    """Yield a role of the chart and its binding to `user`; `objects` limits the role to these names.

    `namespace` is that of a Role; a ClusterRole has none.
    """
    rules = yaml.safe_load((_chart_folder(root) / "files" / "rbac" / f"{file}.yaml").read_text())
    if objects:
        rules = [{**rule, "resourceNames": [*objects]} for rule in rules]
    inside = f"/namespaces/{namespace}" if kind == "Role" else ""
    path, group = f"{_RBAC}{inside}/{kind.lower()}", "rbac.authorization.k8s.io"
    name = f"{RELEASE}-{file}"
    yield f"{path}s/{name}", {**_make_body(f"{group}/v1", kind, name), "rules": rules}
    yield (
        f"{path}bindings/{name}",
        {
            **_make_body(f"{group}/v1", f"{kind}Binding", name),
            "roleRef": {"apiGroup": group, "kind": kind, "name": name},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        },
    )


def _chart_folder(root: Path) -> Path:
    return root / "charts" / "tidegate"


def make_node(number: int) -> Manifest:
    """Build a ready node as NVIDIA's device plugin configures one whose GPUs are shared under MPS."""
    name = f"gpu-sim-{number:03}"
    offered = {
        "cpu": "32",
        "memory": "256Gi",
        "pods": "110",
        _SHARED_GPU: str(GPUS_PER_NODE * SLICES_PER_GPU),
    }
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "tidegate.io/simulated": "true",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.count": str(GPUS_PER_NODE),
        "nvidia.com/gpu.product": "NVIDIA-L40S-SHARED",
        "nvidia.com/gpu.sharing-strategy": "mps",
        "nvidia.com/mps.capable": "true",
        "nvidia.com/device-plugin.config": f"mps-{SLICES_PER_GPU}",
    }
    ready = {"type": "Ready", "status": "True", "reason": "Simulated", "message": "set by the fleet demo"}
    return {
        **_make_body("v1", "Node", name, labels=labels),
        "status": {"capacity": offered, "allocatable": offered, "conditions": [ready]},
    }


def make_pool(inferences: int) -> Manifest:
    """Build the pool of all simulated nodes, with an allocator that applies its decisions."""
    interval = INTERVAL if inferences >= LARGE_FLEET else SMALL_FLEET_INTERVAL
    mps = {"slicesPerGPU": SLICES_PER_GPU, "cpu": "2", "memory": "8Gi"}
    return {
        **_make_body("tidegate.io/v1alpha1", "ComputePool", POOL),
        "spec": {
            "nodeSelector": {"tidegate.io/simulated": "true"},
            "slice": {"mps": mps},
            "policy": {"mode": "Auto", "interval": interval, "dwell": DWELL},
        },
    }


def make_inference(model: FleetModel) -> Manifest:
    """Build one Inference, with bounds for the allocator and the capacity of a replica."""
    spec: dict[str, Any] = {
        "model": {"uri": f"file:///models/{model.name}", "version": "1"},
        "tier": model.tier,
        "placement": {"pool": POOL},
        "scaling": {"minReplicas": model.min_replicas, "maxReplicas": model.max_replicas},
        "value": {"perRequest": VALUE_PER_REQUEST[model.tier]},
    }
    if model.tier in SLO_S:
        spec["slo"] = {"latencyP99": f"{round(SLO_S[model.tier] * 1000)}ms"}
        spec["capacity"] = {"requestsPerSecond": f"{model.capacity_per_s:g}"}
    return {**_make_body("tidegate.io/v1alpha1", "Inference", model.name, namespace=NAMESPACE), "spec": spec}


def make_gateway_pod() -> Manifest:
    """Build a pod that represents the gateways, so that the controllers query Prometheus for demand."""
    labels = {"app.kubernetes.io/instance": RELEASE, "app.kubernetes.io/component": "gateway"}
    return {
        **_make_body("v1", "Pod", GATEWAY_POD, namespace=SYSTEM_NAMESPACE, labels=labels),
        "spec": {
            "nodeName": make_node(0)["metadata"]["name"],
            "automountServiceAccountToken": False,
            "containers": [{"name": "envoy", "image": "simulated"}],
        },
    }


def _make_body(
    version: str, kind: str, name: str, *, namespace: str = "", labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    if labels:
        metadata["labels"] = dict(labels)
    return {"apiVersion": version, "kind": kind, "metadata": metadata}
