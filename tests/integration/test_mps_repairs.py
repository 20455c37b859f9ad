"""MPS that fails on GPU nodes: controllers and node agents as real processes, MPS and kubelets played.

A real scheduler and the real DaemonSet controller decide which pods come where, taints and tolerations included.
"""

from __future__ import annotations

import pytest

from builders.waiting import wait_until
from fixtures.gpu_fleet import DAEMON, PLUGIN, SLICES, GpuFleet
from fixtures.processes import Running
from tidegate.api.reasons import Reason
from tidegate.api.repairs import SharingFault
from tidegate.planning.sharing_repairs import TREATMENTS

SEEN_S = 15.0
"""For a look by the agent, the controllers and this test's own steps, on a machine that is busy."""


def metric(running: Running, name: str, fleet: GpuFleet, kind: SharingFault) -> float:
    labels = f'{{kind="{kind.value}",pool="{fleet.pool}"}}'
    lines = (line for line in running.metrics().splitlines() if line.startswith(f"{name}{labels}"))
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def confirm_s(fault: SharingFault) -> float:
    return TREATMENTS[fault].confirm.total_seconds()


@pytest.mark.produces(Reason.SHARING_HEALTHY)
@pytest.mark.slow("a treatment in real time; each step is checked in unit/test_sharing_health.py")
def test_nothing_is_done_and_nothing_written_while_all_is_well(
    fleet: GpuFleet, watching: tuple[Running, int]
) -> None:
    fleet.pools.inference("ctr", pool=fleet.pool, replicas=3)
    fleet.runs(3)
    fleet.pools.tiers(fleet.pool, realtime=3)
    assert fleet.says(Reason.SHARING_HEALTHY) == "MPS answers on 2 nodes"

    def written() -> str:
        return str(fleet.kubectl.json("get", "computepool", fleet.pool)["metadata"]["resourceVersion"])

    before, looks = written(), _looks(watching[0])
    # Longer than it takes until the controllers look without having been woken.
    wait_until(lambda: _looks(watching[0]) >= looks + 2, what="the controllers look again", timeout_s=40.0)
    assert written() == before
    assert [node.mps.commands for node in fleet.nodes.values()] == [[], []]
    assert [node.replaced for node in fleet.nodes.values()] == [[], []]


@pytest.mark.produces(Reason.DAEMON_LOST)
def test_lost_daemon_is_made_anew_and_its_pods_serve_elsewhere(
    fleet: GpuFleet, watching: tuple[Running, int]
) -> None:
    fleet.pools.inference("ctr", pool=fleet.pool, replicas=2)
    fleet.runs(2)
    node, fault = fleet.busy(), SharingFault.DAEMON_LOST
    before = set(node.pids)
    node.mps.write(daemon="dead")

    assert fleet.reaches(node, "Repairing", confirm_s(fault) + SEEN_S) >= confirm_s(fault) - 2
    said = fleet.pools.condition(fleet.pool, "SharingHealthy")
    assert said["reason"] == Reason.DAEMON_LOST
    assert f"1 of 2 nodes being repaired: node {node.name} has no MPS control daemon" in said["message"]
    fleet.reaches(node, "Recovered", TREATMENTS[fault].window.total_seconds())
    fleet.settle(lambda: fleet.taint(node) is None, "the node takes pods again")
    fleet.runs(2)

    assert node.replaced == [DAEMON]
    assert not before & {uid for each in fleet.nodes.values() for uid in each.pids}
    fleet.says(Reason.SHARING_HEALTHY)
    fleet.pools.counts(fleet.pool, 2 * SLICES, 2 * SLICES, 2 * SLICES - 2)
    running = watching[0]
    assert metric(running, "tidegate_pool_node_faults_total", fleet, fault) == 1
    assert metric(running, "tidegate_pool_node_recovery_seconds_count", fleet, fault) == 1
    assert "node" in fleet.event(Reason.DAEMON_LOST)


@pytest.mark.produces(Reason.GPU_FAULT)
def test_fault_ends_the_processes_of_the_gpu_and_mps_goes_on(fleet: GpuFleet) -> None:
    fleet.pools.inference("ctr", pool=fleet.pool, replicas=4)
    fleet.runs(4)
    node = fleet.busy()
    hit = set(node.pids)
    spared = {uid for each in fleet.nodes.values() if each is not node for uid in each.pids}
    node.mps.write(status="FAULT", clients=node.pids.values())

    said = fleet.event(Reason.GPU_FAULT, SEEN_S)
    assert f"node {node.name} has an MPS server in FAULT" in said
    fleet.reaches(node, "Recovered", TREATMENTS[SharingFault.GPU_FAULT].window.total_seconds())
    fleet.settle(lambda: fleet.taint(node) is None, "the node takes pods again")
    fleet.runs(4)
    now = {uid for each in fleet.nodes.values() for uid in each.pids}
    assert not hit & now
    assert spared <= now
    assert node.replaced == []


@pytest.mark.produces(Reason.CLIENT_STUCK)
@pytest.mark.slow("a treatment in real time; each step is checked in unit/test_sharing_health.py")
def test_process_that_outlives_its_pod_is_ended_and_its_neighbours_serve_on(fleet: GpuFleet) -> None:
    fleet.pools.inference("ctr", pool=fleet.pool, replicas=3)
    fleet.runs(3)
    node = max(fleet.nodes.values(), key=lambda each: len(each.pids))
    (uid, pid), *neighbours = node.pids.items()
    node.lingers.add(pid)
    pods = fleet.kubectl.json("get", "pods", "-n", fleet.namespace)["items"]
    name = next(each["metadata"]["name"] for each in pods if each["metadata"]["uid"] == uid)
    fleet.kubectl("delete", "pod", name, "-n", fleet.namespace, "--force", "--grace-period=0")

    said = fleet.event(Reason.CLIENT_STUCK, 10 + confirm_s(SharingFault.CLIENT_STUCK) + SEEN_S)
    assert f"process {pid} connected to MPS, whose pod {uid} should have ended" in said
    fleet.reaches(node, "Recovered", TREATMENTS[SharingFault.CLIENT_STUCK].window.total_seconds())
    assert node.mps.commands == [f"terminate_client 4100 {pid}"]
    assert pid not in node.mps.clients
    assert {each for each, _ in neighbours} <= set(node.pids)
    assert fleet.taint(node) is None


@pytest.mark.produces(Reason.ALLOCATABLE_GONE)
@pytest.mark.slow("a treatment in real time; each step is checked in unit/test_sharing_health.py")
def test_plugin_that_withdraws_its_slices_is_made_anew_and_what_runs_goes_on(fleet: GpuFleet) -> None:
    fleet.pools.inference("ctr", pool=fleet.pool, replicas=2)
    fleet.runs(2)
    node, fault = fleet.busy(), SharingFault.ALLOCATABLE_GONE
    before = {uid for each in fleet.nodes.values() for uid in each.pids}
    fleet.offer(node, 0)

    assert fleet.reaches(node, "Repairing", confirm_s(fault) + SEEN_S) >= confirm_s(fault) - 2
    assert fleet.pools.condition(fleet.pool, "SharingHealthy")["reason"] == Reason.ALLOCATABLE_GONE
    fleet.reaches(node, "Recovered", TREATMENTS[fault].window.total_seconds())
    assert node.replaced == [PLUGIN]
    assert {uid for each in fleet.nodes.values() for uid in each.pids} == before
    fleet.pools.counts(fleet.pool, 2 * SLICES, 2 * SLICES, 2 * SLICES - 2)


@pytest.mark.produces(Reason.ADMISSION_ERRORS, Reason.NODE_QUARANTINED)
@pytest.mark.slow("a treatment in real time; each step is checked in unit/test_sharing_health.py")
def test_node_that_goes_on_refusing_pods_is_kept_out_until_a_person_says_so(fleet: GpuFleet) -> None:
    node, other = fleet.nodes.values()
    fleet.kubectl("cordon", other.name)
    node.refuses = True
    fleet.pools.inference("ctr", pool=fleet.pool, replicas=1)

    assert "refused pods of the pool" in fleet.event(Reason.ADMISSION_ERRORS, SEEN_S)
    bound = TREATMENTS[SharingFault.ADMISSION_ERRORS].bound.total_seconds()
    # Between attempts it has to have refused nobody for a while, and then gets another pod.
    fleet.reaches(node, "Quarantined", 2 * bound + 4 * SEEN_S)
    assert fleet.taint(node) == "Quarantined"
    assert PLUGIN in node.replaced
    message = fleet.says(Reason.NODE_QUARANTINED)
    assert f"kubectl taint node {node.name} tidegate.io/sharing-" in message
    fleet.pools.counts(fleet.pool, 2 * SLICES, 0, 0)

    def refused() -> list[str]:
        pods = fleet.kubectl.json("get", "pods", "-n", fleet.namespace)["items"]
        return [
            each["metadata"]["name"]
            for each in pods
            if each.get("status", {}).get("reason") == "UnexpectedAdmissionError"
        ]

    # The last of them may have come there just before the taint.
    fleet.settle(lambda: not refused(), "no refused pod is left", SEEN_S)
    node.refuses = False
    fleet.kubectl("taint", "node", node.name, "tidegate.io/sharing-")
    fleet.runs(1)
    fleet.says(Reason.SHARING_HEALTHY)
    assert node.pids


@pytest.mark.produces(Reason.NODE_AGENT_SILENT)
@pytest.mark.slow("a treatment in real time; each step is checked in unit/test_sharing_health.py")
def test_silence_of_an_agent_is_said_and_costs_nobody_a_slice(fleet: GpuFleet) -> None:
    fleet.pools.inference("ctr", pool=fleet.pool, replicas=2)
    fleet.runs(2)
    node = fleet.busy()
    node.agent.stop()
    message = fleet.says(Reason.NODE_AGENT_SILENT, 60.0)
    assert f"node {node.name} has no node agent that answers" in message
    fleet.pools.counts(fleet.pool, 2 * SLICES, 2 * SLICES, 2 * SLICES - 2)
    assert (node.replaced, fleet.taint(node)) == ([], None)
    node.agent.start()
    fleet.says(Reason.SHARING_HEALTHY)


def _looks(running: Running) -> float:
    """How often a pool has been reconciled without an error."""
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in running.metrics().splitlines()
        if line.startswith("tidegate_reconciles_total{") and 'queue="compute-pool"' in line
    )
