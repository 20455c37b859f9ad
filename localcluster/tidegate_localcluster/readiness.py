"""Waits until a cluster is ready, and explains what prevents it when it takes too long."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate_localcluster.api_client import ApiClient, has_condition
from tidegate_localcluster.errors import LocalClusterError, NotReadyError
from tidegate_localcluster.node import node_name
from tidegate_localcluster.process import ChildProcess
from tidegate_localcluster.state import ClusterPlan

POLL_INTERVAL_S = 0.1
LOG_LINES = 10


@dataclass(frozen=True, slots=True)
class ReadinessRequirement:
    """A condition of a Kubernetes object that must be True."""

    description: str
    path: str
    condition: str
    pods: str | None = None
    """The API path of the pods whose state explains why it is not."""

    def is_met(self, client: ApiClient) -> bool:
        """Return whether the condition is True now; False when the server does not answer."""
        try:
            resource = client.get(self.path)
        except OSError:
            return False
        return resource is not None and has_condition(resource, self.condition)


def list_requirements(plan: ClusterPlan) -> Sequence[ReadinessRequirement]:
    """Return the requirements of a cluster's readiness, in the order in which they are usually met."""
    real = [] if plan.control_plane_only else [node_name(index) for index in range(plan.nodes)]
    simulated = [f"gpu-sim-{index}" for index in range(plan.simulated_gpu_nodes)]
    nodes = [
        ReadinessRequirement(f"{name} is Ready", f"/api/v1/nodes/{name}", "Ready")
        for name in (*simulated, *real)
    ]
    deployments = [
        ReadinessRequirement(
            f"{name} is Available",
            f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}",
            "Available",
            f"/api/v1/namespaces/{namespace}/pods",
        )
        for name, namespace in (("coredns", "kube-system"), ("prometheus", "monitoring"))
        if name in plan.images and not plan.control_plane_only
    ]
    return (*nodes, *deployments)


def wait_for_requirement(
    requirement: ReadinessRequirement, client: ApiClient, processes: Sequence[ChildProcess], timeout_s: float
) -> None:
    """Wait until `requirement` holds.

    Raises ProcessDiedError when one of `processes` ends, and NotReadyError after `timeout_s` with the states and logs
    of its pods.
    """
    deadline = time.monotonic() + timeout_s
    while not requirement.is_met(client):
        for process in processes:
            process.check_running()
        if time.monotonic() > deadline:
            details = "".join(f"\n  {line}" for line in _explain_delay(requirement, client))
            raise NotReadyError(f"waited {timeout_s:g} s in vain until {requirement.description}{details}")
        time.sleep(POLL_INTERVAL_S)


def _explain_delay(requirement: ReadinessRequirement, client: ApiClient) -> Sequence[str]:
    if requirement.pods is None:
        return ("see `tidegate local logs` for the logs of the parts",)
    lines: list[str] = []
    for pod in client.list_items(requirement.pods):
        name, status = pod["metadata"]["name"], pod["status"]
        lines.append(f"pod {name}: {status.get('phase')}")
        for container in status.get("containerStatuses", []):
            state: Mapping[str, Mapping[str, Any]] = container["state"]
            for phase, details in state.items():
                text = f"{phase}: {details.get('reason', '')} {details.get('message', '')}"
                lines.append(f"  container {container['name']} is {' '.join(text.split())}")
            lines += [
                f"    {line}"
                for line in _read_container_log(client, requirement.pods, name, container["name"])
            ]
    return lines


def _read_container_log(client: ApiClient, pods: str, pod: str, container: str) -> Sequence[str]:
    path = f"{pods}/{pod}/log?container={container}&tailLines={LOG_LINES}"
    try:
        return (client.get_text(path) or "").splitlines()
    except (OSError, LocalClusterError):
        return ()
