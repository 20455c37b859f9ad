"""Every object of the fleet: its nodes, its pool, its Inferences, and what a chart would have installed around them."""

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
    WORTH,
    Model,
    population,
)
from tidegate_localcluster.state import Plan

POOL: Final = "fleet"
NAMESPACE: Final = "fleet"
SYSTEM: Final = "tidegate-system"
RELEASE: Final = "tidegate"
USERS: Final = {"controllers": "tidegate-controllers", "xds": "tidegate-xds"}
"""As whom the processes of Tidegate ask the API server: each with the rights that the chart gives it."""
INTERVAL: Final = "10s"
INTERVAL_OF_FEW: Final = "5s"
MANY: Final = 200
"""So many Inferences take the allocator's processes more than five seconds to follow, at the busiest hour."""
DWELL: Final = "10s"
"""The default of five minutes would be sixteen hours of the demo's day."""
TIERS: Final = ("realtime", "nearline", "offline")
OURS: Final = "/apis/tidegate.io/v1alpha1"
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
Placed = tuple[str, Manifest]
"""An object and its path."""


def slices_of(plan: Plan) -> int:
    """Slices that the fleet has."""
    if plan.fleet is None:
        raise LocalClusterError("the plan is not of a fleet demo")
    return plan.fleet.nodes * GPUS_PER_NODE * SLICES_PER_GPU


def models_of(plan: Plan) -> Sequence[Model]:
    """Who lives in the fleet of this plan."""
    slices = slices_of(plan)
    assert plan.fleet is not None  # noqa: S101  slices_of raised otherwise
    return population(plan.fleet.inferences, slices, plan.fleet.seed)


def definitions(root: Path) -> Iterator[Placed]:
    """The CRDs."""
    for path in sorted((root / "crds").glob("*.yaml")):
        body = yaml.safe_load(path.read_text())
        name = body["metadata"]["name"]
        yield f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}", body


def namespaces() -> Iterator[Placed]:
    """Namespaces, which must exist before what lies in them."""
    for name in (SYSTEM, NAMESPACE):
        yield f"/api/v1/namespaces/{name}", _body("v1", "Namespace", name)


def around(root: Path) -> Iterator[Placed]:
    """Priority classes, rights and the policies about overrides."""
    for number, tier in enumerate(reversed(TIERS)):
        name = f"{RELEASE}-{tier}"
        priority = {**_body("scheduling.k8s.io/v1", "PriorityClass", name), "value": (number + 1) * 1000}
        yield f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}", priority
    chart = root / "charts" / "tidegate"
    yield from _rights(chart, "ClusterRole", "controllers-cluster", USERS["controllers"])
    yield from _rights(chart, "Role", "controllers-release", USERS["controllers"])
    yield from _rights(chart, "ClusterRole", "xds-cluster", USERS["xds"])
    for body in policies((chart / "templates" / "overrides.yaml").read_text()):
        name = body["metadata"]["name"]
        yield f"{_ADMISSION}/{_PLURALS[body['kind']]}/{name}", body


def policies(template: str) -> Sequence[Manifest]:
    """The objects of a template of the chart that uses the release's name, labels and conditions, and nothing else."""
    text = re.sub(r"\{\{/\*.*?\*/\}\}", "", template, flags=re.DOTALL)
    text = re.sub(r"labels: \{\{- include.*", "labels: {}", text)
    text = re.sub(r"^\{\{- (if .*|end) \}\}$", "", text, flags=re.MULTILINE)
    return tuple(yaml.safe_load_all(text.replace("{{ .Release.Name }}", RELEASE)))


def _rights(chart: Path, kind: str, file: str, user: str) -> Iterator[Placed]:
    """A role of the chart, and who has it."""
    rules = yaml.safe_load((chart / "files" / "rbac" / f"{file}.yaml").read_text())
    inside = f"/namespaces/{SYSTEM}" if kind == "Role" else ""
    path, group = f"{_RBAC}{inside}/{kind.lower()}", "rbac.authorization.k8s.io"
    yield f"{path}s/{user}", {**_body(f"{group}/v1", kind, user), "rules": rules}
    yield (
        f"{path}bindings/{user}",
        {
            **_body(f"{group}/v1", f"{kind}Binding", user),
            "roleRef": {"apiGroup": group, "kind": kind, "name": user},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        },
    )


def node(number: int) -> Manifest:
    """A node as NVIDIA's device plugin leaves one whose GPUs are shared out under MPS, ready from its birth."""
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
    ready = {"type": "Ready", "status": "True", "reason": "Simulated", "message": "said by the fleet demo"}
    return {
        **_body("v1", "Node", name, labels=labels),
        "status": {"capacity": offered, "allocatable": offered, "conditions": [ready]},
    }


def pool(inferences: int) -> Manifest:
    """All these nodes; its allocator moves compute by itself."""
    interval = INTERVAL if inferences >= MANY else INTERVAL_OF_FEW
    mps = {"slicesPerGPU": SLICES_PER_GPU, "cpu": "2", "memory": "8Gi"}
    return {
        **_body("tidegate.io/v1alpha1", "ComputePool", POOL),
        "spec": {
            "nodeSelector": {"tidegate.io/simulated": "true"},
            "slice": {"mps": mps},
            "policy": {"mode": "Auto", "interval": interval, "dwell": DWELL},
        },
    }


def inference(model: Model) -> Manifest:
    """One model, with a range for the allocator and what a replica of it serves."""
    spec: dict[str, Any] = {
        "model": {"uri": f"file:///models/{model.name}", "version": "1"},
        "tier": model.tier,
        "placement": {"pool": POOL},
        "scaling": {"minReplicas": model.least, "maxReplicas": model.most},
        "value": {"perRequest": WORTH[model.tier]},
    }
    if model.tier in SLO_S:
        spec["slo"] = {"latencyP99": f"{round(SLO_S[model.tier] * 1000)}ms"}
        spec["capacity"] = {"requestsPerSecond": f"{model.capacity_per_s:g}"}
    return {**_body("tidegate.io/v1alpha1", "Inference", model.name, namespace=NAMESPACE), "spec": spec}


def gateway() -> Manifest:
    """What stands for the gateways: whoever asks for demand asks Prometheus about the gateways that take traffic."""
    labels = {"app.kubernetes.io/instance": RELEASE, "app.kubernetes.io/component": "gateway"}
    return {
        **_body("v1", "Pod", GATEWAY_POD, namespace=SYSTEM, labels=labels),
        "spec": {
            "nodeName": node(0)["metadata"]["name"],
            "automountServiceAccountToken": False,
            "containers": [{"name": "envoy", "image": "simulated"}],
        },
    }


def _body(
    version: str, kind: str, name: str, *, namespace: str = "", labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    if labels:
        metadata["labels"] = dict(labels)
    return {"apiVersion": version, "kind": kind, "metadata": metadata}
