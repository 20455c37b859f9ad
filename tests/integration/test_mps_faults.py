"""MPS that fails on GPU nodes: controllers and node agents as real processes; MPS and kubelets are simulated.

A real scheduler and the real DaemonSet controller place the pods, taints and tolerations included.
"""

from __future__ import annotations

import pytest

from fixtures.gpu_fleet import SLICES, GpuFleet, GpuNode
from fixtures.processes import Running
from tidegate.api.faulty_nodes import SharingFault
from tidegate.api.reasons import Reason
from tidegate.planning.gpu_sharing.health import RESTART_POLICY

SEEN_S = 15.0
"""For the agent's question, the controllers and this test's own steps, on a busy machine."""


def metric(running: Running, name: str, fleet: GpuFleet, kind: SharingFault) -> float:
    labels = f'{{kind="{kind.value}",pool="{fleet.pool}"}}'
    lines = (line for line in running.metrics().splitlines() if line.startswith(f"{name}{labels}"))
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def run_pods(fleet: GpuFleet, count: int) -> GpuNode:
    """Run so many pods; return a node that has some."""
    fleet.pools.inference("ctr", pool=fleet.pool, replicas=count)
    fleet.runs(count)
    return fleet.busy()


@pytest.mark.produces(Reason.DAEMON_LOST)
def test_lost_daemon_is_restarted_and_pods_of_the_pool_stay(
    fleet: GpuFleet, watching: tuple[Running, int]
) -> None:
    node, fault = run_pods(fleet, 2), SharingFault.DAEMON_LOST
    pods = {uid for node in fleet.nodes.values() for uid in node.pids}
    node.mps.write(daemon="dead")

    assert f"1 of 2 nodes show DaemonLost: node {node.name} has no MPS" in fleet.says(Reason.DAEMON_LOST)
    after_s = RESTART_POLICY.after.total_seconds()
    fleet.settle(lambda: node.restarts == 1, "the daemon is restarted", after_s + SEEN_S)
    fleet.reaches(node, "Recovered")
    fleet.says(Reason.SHARING_HEALTHY)
    assert {uid for node in fleet.nodes.values() for uid in node.pids} == pods
    assert fleet.taint(node) is None
    assert "(MPS daemon restarted, 1 of 3)" in fleet.event(Reason.DAEMON_LOST)
    assert metric(watching[0], "tidegate_pool_node_faults_total", fleet, fault) == 1
    assert metric(watching[0], "tidegate_pool_node_recovery_seconds_count", fleet, fault) == 1


@pytest.mark.produces(Reason.GPU_FAULT, Reason.ALLOCATABLE_GONE)
@pytest.mark.slow(
    "each step is checked in unit/test_sharing_health.py; a restart and a quarantine are always carried out"
)
def test_faults_are_reported_and_pods_of_the_pool_stay(fleet: GpuFleet) -> None:
    node = run_pods(fleet, 2)
    pods = {uid for node in fleet.nodes.values() for uid in node.pids}
    node.mps.write(status="FAULT", clients=node.pids.values())
    assert f"node {node.name} has an MPS server in FAULT" in fleet.says(Reason.GPU_FAULT)
    assert f"node {node.name} has an MPS server in FAULT" in fleet.event(Reason.GPU_FAULT)
    node.mps.healthy(node.pids.values())
    fleet.reaches(node, "Recovered")

    fleet.offer(node, 0)
    assert f"node {node.name} offers no nvidia.com/gpu.shared" in fleet.says(Reason.ALLOCATABLE_GONE)
    fleet.offer(node, SLICES)
    fleet.says(Reason.SHARING_HEALTHY)
    assert {uid for node in fleet.nodes.values() for uid in node.pids} == pods
    assert (node.restarts, fleet.taint(node)) == (0, None)


@pytest.mark.produces(Reason.CLIENT_STUCK)
@pytest.mark.slow(
    "each step is checked in unit/test_sharing_health.py; a restart and a quarantine are always carried out"
)
def test_process_that_outlives_its_pod_is_reported(fleet: GpuFleet) -> None:
    node = run_pods(fleet, 1)
    ((uid, pid),) = node.pids.items()
    node.lingers.add(pid)
    pods = fleet.kubectl.json("get", "pods", "-n", fleet.namespace)["items"]
    name = next(pod["metadata"]["name"] for pod in pods if pod["metadata"]["uid"] == uid)
    fleet.kubectl("delete", "pod", name, "-n", fleet.namespace, "--force", "--grace-period=0")

    message = fleet.says(Reason.CLIENT_STUCK, 10 + SEEN_S)
    assert f"process {pid} connected to MPS, whose pod {uid} should have ended" in message
    node.lingers.clear()
    fleet.says(Reason.SHARING_HEALTHY)


@pytest.mark.produces(Reason.ADMISSION_ERRORS, Reason.NODE_QUARANTINED)
def test_node_that_refuses_pods_is_quarantined_until_the_fault_has_gone(fleet: GpuFleet) -> None:
    node, other = fleet.nodes.values()
    fleet.kubectl("cordon", other.name)
    node.refuses = True
    fleet.pools.inference("ctr", pool=fleet.pool, replicas=1)

    fleet.reaches(node, "Quarantined")
    assert fleet.entry(node)["fault"] == Reason.ADMISSION_ERRORS
    message = fleet.says(Reason.NODE_QUARANTINED)
    assert f"node {node.name} refused pods of the pool (UnexpectedAdmissionError)" in message
    fleet.settle(lambda: fleet.taint(node) == "Quarantined", "the node has the taint")
    fleet.pools.counts(fleet.pool, 2 * SLICES, 0, 0)

    node.refuses = False
    fleet.kubectl("delete", "pods", "-n", fleet.namespace, "--field-selector=status.phase=Failed")
    fleet.says(Reason.SHARING_HEALTHY)
    fleet.runs(1)
    assert (fleet.taint(node), len(node.pids)) == (None, 1)


@pytest.mark.produces(Reason.NODE_AGENT_SILENT)
@pytest.mark.slow(
    "the agent is silent for half a minute; each step is checked in unit/test_sharing_health.py"
)
def test_silent_agent_is_reported_and_costs_no_slice(fleet: GpuFleet) -> None:
    node = run_pods(fleet, 2)
    node.agent.stop()
    message = fleet.says(Reason.NODE_AGENT_SILENT, 60.0)
    assert f"node {node.name} has a node agent that does not report" in message
    fleet.pools.counts(fleet.pool, 2 * SLICES, 2 * SLICES, 2 * SLICES - 2)
    assert (node.restarts, fleet.taint(node)) == (0, None)
    node.agent.start()
    fleet.says(Reason.SHARING_HEALTHY)
