"""The kinds of objects that Tidegate reads or writes, and their URL paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from tidegate.api.meta import GROUP, VERSION

_SAFE_CHARACTERS: Final = ":"
"""Safe in paths; names may have it. A slash or a question mark must be quoted, or it would change the path."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind: its names, and the path of its objects."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """Return the apiVersion of a manifest: `apps/v1`, or `v1` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def url_path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path of one object, of all in a namespace, or (both empty) of all in the cluster."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if namespace and self.namespaced:
            parts += ["namespaces", quote(namespace, safe=_SAFE_CHARACTERS)]
        parts.append(self.plural)
        parts += [quote(part, safe=_SAFE_CHARACTERS) for part in (name, subresource) if part]
        return "/".join(parts)

    def __str__(self) -> str:
        return self.kind


INFERENCE: Final = Kind(GROUP, VERSION, "Inference", "inferences")
MODEL_ACCESS: Final = Kind(GROUP, VERSION, "ModelAccess", "modelaccesses")
FEATURE_COMPUTE: Final = Kind(GROUP, VERSION, "FeatureCompute", "featurecomputes")
COMPUTE_POOL: Final = Kind(GROUP, VERSION, "ComputePool", "computepools", namespaced=False)
COMPUTE_OVERRIDE: Final = Kind(GROUP, VERSION, "ComputeOverride", "computeoverrides", namespaced=False)
ALLOCATION_DECISION: Final = Kind(
    GROUP, VERSION, "AllocationDecision", "allocationdecisions", namespaced=False
)
DEPLOYMENT: Final = Kind("apps", "v1", "Deployment", "deployments")
JOB: Final = Kind("batch", "v1", "Job", "jobs")
WORKLOAD: Final = Kind("kueue.x-k8s.io", "v1beta2", "Workload", "workloads")
"""Kueue's object about a Job, which says whether the Job may run. Exists only if Kueue is installed."""
SECRET: Final = Kind("", "v1", "Secret", "secrets")
CONFIG_MAP: Final = Kind("", "v1", "ConfigMap", "configmaps")
POD: Final = Kind("", "v1", "Pod", "pods")
NODE: Final = Kind("", "v1", "Node", "nodes", namespaced=False)
POD_DISRUPTION_BUDGET: Final = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
HORIZONTAL_POD_AUTOSCALER: Final = Kind(
    "autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"
)
LEASE: Final = Kind("coordination.k8s.io", "v1", "Lease", "leases")
EVENT: Final = Kind("", "v1", "Event", "events")
NAMESPACE: Final = Kind("", "v1", "Namespace", "namespaces", namespaced=False)
CUSTOM_RESOURCE_DEFINITION: Final = Kind(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)
VALIDATING_ADMISSION_POLICY: Final = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingAdmissionPolicy",
    "validatingadmissionpolicies",
    namespaced=False,
)
VALIDATING_ADMISSION_POLICY_BINDING: Final = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingAdmissionPolicyBinding",
    "validatingadmissionpolicybindings",
    namespaced=False,
)

KINDS: Final = (
    INFERENCE,
    MODEL_ACCESS,
    FEATURE_COMPUTE,
    COMPUTE_POOL,
    COMPUTE_OVERRIDE,
    ALLOCATION_DECISION,
    DEPLOYMENT,
    JOB,
    WORKLOAD,
    SECRET,
    CONFIG_MAP,
    POD,
    NODE,
    POD_DISRUPTION_BUDGET,
    HORIZONTAL_POD_AUTOSCALER,
    LEASE,
    EVENT,
    NAMESPACE,
)

_BY_MANIFEST: Final = {(kind.api_version, kind.kind): kind for kind in KINDS}


def kind_of(manifest: Mapping[str, Any]) -> Kind:
    """Return the kind of a manifest.

    Raises KeyError for one that Tidegate does not use: a mistake in our code, not in a user's object.
    """
    return _BY_MANIFEST[str(manifest.get("apiVersion")), str(manifest.get("kind"))]
