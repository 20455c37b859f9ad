"""Faults of nodes' GPU sharing: how they are found and reported, when a daemon is restarted, and when a node is quarantined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.sharing_world import START, Gpu, SharingWorld
from stages.examples import examples
from tidegate.api.faulty_nodes import MAX_FAULTY_NODES, FaultState, SharingFault
from tidegate.api.reasons import Reason
from tidegate.planning.gpu_sharing.health import (
    FAULT_POLICIES,
    RESTART_POLICY,
    RestartDaemon,
    TaintNode,
    count_allowed_disruptions,
    plan_sharing,
)
from tidegate.planning.gpu_sharing.node_sharing import (
    DaemonPod,
    NodeAgentReport,
    NodeAgentState,
    SlicePod,
    diagnose_node,
    parse_daemon_pod,
    parse_slice_pod,
)

NODE = "gpu-0"
FOUND_BY_AGENTS = (SharingFault.DAEMON_LOST, SharingFault.GPU_FAULT, SharingFault.CLIENT_STUCK)


def failing(fault: SharingFault, *, nodes: int = 5) -> tuple[SharingWorld, Gpu]:
    """A world in which one node has a fault; it has two pods that serve."""
    world = SharingWorld(nodes)
    gpu = world.gpus[NODE]
    gpu.add_pod("a")
    gpu.add_pod("b")
    gpu.fault = fault
    if fault is SharingFault.ADMISSION_ERRORS:
        gpu.add_pod("refused", refused_at=START)
    return world, gpu


def test_nothing_is_done_on_healthy_nodes() -> None:
    world = SharingWorld()
    for gpu in world.gpus.values():
        gpu.add_pod("a")
    world.check()
    assert world.message == "MPS answers on 5 nodes"
    plan = world.run(60)
    assert (world.actions, plan.faulty, plan.changes, plan.verdict and plan.verdict.holds) == (
        [],
        (),
        (),
        True,
    )


def test_lost_daemon_is_restarted_and_the_node_recovers() -> None:
    world, gpu = failing(SharingFault.DAEMON_LOST)
    gpu.restart_helps = True
    verdict = world.check().verdict
    assert verdict is not None
    assert (verdict.holds, verdict.reason) == (False, Reason.DAEMON_LOST)
    assert verdict.message == (
        "1 of 5 nodes show DaemonLost: node gpu-0 has no MPS control daemon that answers (Cannot find MPS control daemon process)"
    )
    assert world.run_until(NODE, FaultState.RESTARTING, 40) == 30
    assert [type(action) for _, action in world.actions] == [RestartDaemon]
    assert world.message.endswith("(MPS daemon restarted, 1 of 3)")
    assert world.plans[-1].changes[0].to_event.reason == "DaemonLost"
    world.run_until(NODE, FaultState.RECOVERED, 2)
    event = world.plans[-1].changes[0].to_event
    assert (event.reason, event.message) == ("NodeRecovered", "node gpu-0 recovered 31 s after DaemonLost")
    assert (gpu.tainted, len(gpu.pods)) == (False, 2)
    world.run_until(NODE, None, 601)


def test_restarts_are_spaced_and_bounded_and_then_the_node_is_quarantined() -> None:
    world, gpu = failing(SharingFault.DAEMON_LOST)
    world.check()
    assert world.run_until(NODE, FaultState.QUARANTINED, 400) == 390
    restarted_at = [at for at, action in world.actions if isinstance(action, RestartDaemon)]
    assert [later - earlier for earlier, later in pairwise(restarted_at)] == [120, 120]
    assert (len(restarted_at), gpu.restarts, gpu.tainted) == (
        RESTART_POLICY.limit,
        RESTART_POLICY.limit,
        True,
    )
    world.run(1000)
    assert gpu.restarts == RESTART_POLICY.limit


def test_daemon_that_fails_again_and_again_is_not_restarted_for_ever() -> None:
    world, gpu = failing(SharingFault.DAEMON_LOST)
    gpu.restart_helps = True
    for _ in range(RESTART_POLICY.limit):
        gpu.fault = SharingFault.DAEMON_LOST
        world.run_until(NODE, FaultState.RESTARTING, 200)
        world.run_until(NODE, FaultState.RECOVERED, 2)
    gpu.fault = SharingFault.DAEMON_LOST
    world.run_until(NODE, FaultState.QUARANTINED, 200)
    assert gpu.restarts == RESTART_POLICY.limit
    gpu.fault = None
    world.run(RESTART_POLICY.remembered.total_seconds() + 2)
    gpu.fault = SharingFault.DAEMON_LOST
    world.run_until(NODE, FaultState.RESTARTING, 200)


@pytest.mark.parametrize(
    ("fault", "after_s"),
    [
        (SharingFault.GPU_FAULT, 60),
        (SharingFault.CLIENT_STUCK, 60),
        (SharingFault.ALLOCATABLE_GONE, 180),
        (SharingFault.ADMISSION_ERRORS, 0),
    ],
)
def test_node_is_quarantined_while_its_fault_lasts(fault: SharingFault, after_s: float) -> None:
    world, gpu = failing(fault)
    world.check()
    assert world.run_until(NODE, FaultState.QUARANTINED, 200) == after_s
    assert gpu.tainted
    assert [event.reason for event in (change.to_event for change in world.plans[-1].changes)] == [
        "NodeQuarantined"
    ]
    verdict = world.plans[-1].verdict
    assert verdict is not None
    assert verdict.reason is Reason.NODE_QUARANTINED
    assert verdict.message.startswith("1 of 5 nodes are quarantined: node gpu-0 ")
    gpu.tainted = False  # somebody removes the taint, which does not end the fault
    world.run(1)
    assert gpu.tainted

    gpu.fault = None
    world.run_until(NODE, FaultState.RECOVERED, 700)
    world.run(1)
    assert (gpu.tainted, world.message, gpu.restarts) == (False, "MPS answers on 5 nodes", 0)
    assert fault is not SharingFault.ADMISSION_ERRORS or world.seconds == pytest.approx(600, abs=5)


@pytest.mark.parametrize("fault", [SharingFault.GPU_FAULT, SharingFault.CLIENT_STUCK])
def test_fault_that_soon_ends_by_itself_is_reported_and_nothing_is_done(fault: SharingFault) -> None:
    world, gpu = failing(fault)
    world.check()
    assert [change.to_event.reason for change in world.plans[-1].changes] == [fault.value]
    assert world.state(NODE) is FaultState.DETECTED
    world.run(50)
    gpu.fault = None
    world.run(1)
    assert (world.state(NODE), world.actions) == (FaultState.RECOVERED, [])


@pytest.mark.parametrize("fault", [SharingFault.DAEMON_LOST, SharingFault.ALLOCATABLE_GONE])
def test_what_every_node_shows_while_it_boots_is_no_event_and_nothing_is_done(fault: SharingFault) -> None:
    world, gpu = failing(fault)
    gpu.daemon_ready_since = None
    world.run(60)
    gpu.daemon_ready_since = world.now
    world.run(110)
    assert (world.actions, world.state(NODE)) == ([], None)
    verdict = world.plans[-1].verdict
    assert verdict is not None
    assert verdict.reason.value == fault.value


@pytest.mark.parametrize(
    ("has_daemon", "hint"),
    [
        (False, "; the daemon has no pod there: check its DaemonSet"),
        (True, "; its pod nvidia/daemon-gpu-0 is not ready: check its logs"),
    ],
)
def test_daemon_whose_pod_does_not_run_is_not_restarted_and_its_node_is_quarantined(
    has_daemon: bool, hint: str
) -> None:
    world, gpu = failing(SharingFault.DAEMON_LOST)
    gpu.has_daemon, gpu.daemon_ready_since = has_daemon, None
    world.check()
    assert hint in world.message
    assert world.run_until(NODE, FaultState.QUARANTINED, 700) == 600
    assert (gpu.restarts, gpu.tainted) == (0, True)


def test_process_whose_pod_ends_in_its_grace_period_is_not_stuck() -> None:
    world = SharingWorld()
    world.gpus[NODE].add_pod("a", ends_by=START + timedelta(seconds=20))
    assert world.run(29).first_seen == {}
    assert world.run(2).first_seen[NODE].fault is SharingFault.CLIENT_STUCK
    assert "has process 7000 connected to MPS, whose pod gpu-0-a should have ended" in world.message


@pytest.mark.parametrize("change", ["ready", "cordoned"])
def test_nothing_is_done_to_a_node_that_is_down_or_cordoned(change: str) -> None:
    world, gpu = failing(SharingFault.DAEMON_LOST)
    setattr(gpu, change, change != "ready")
    world.run(700)
    assert (world.actions, world.state(NODE)) == ([], None)
    assert ("(left alone while it is cordoned)" in world.message) is (change == "cordoned")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("silent", "has a node agent that does not report: check its pod there"),
        (
            "blind",
            "has a node agent that cannot ask MPS (nvidia-cuda-mps-control cannot be started: No such file or directory): set "
            "nodeAgent.runtimeClassName in Tidegate's Helm values to the RuntimeClass of the driver's programs",
        ),
    ],
)
def test_silent_agent_is_reported_and_nothing_is_done(change: str, message: str) -> None:
    world, gpu = failing(SharingFault.DAEMON_LOST)
    setattr(gpu, change, True)
    verdict = world.run(700).verdict
    assert verdict is not None
    assert verdict.reason is Reason.NODE_AGENT_SILENT
    assert verdict.message == f"1 of 5 nodes have a silent node agent: node gpu-0 {message}"
    assert world.actions == []


def test_faults_that_need_no_agent_are_found_without_one() -> None:
    world, gpu = failing(SharingFault.ALLOCATABLE_GONE)
    gpu.silent = True
    world.run_until(NODE, FaultState.QUARANTINED, 200)


@pytest.mark.parametrize("fault", FOUND_BY_AGENTS)
def test_one_old_report_is_no_reason_to_act(fault: SharingFault) -> None:
    world, gpu = failing(fault)
    gpu.reported_at = world.now
    world.run(700)
    assert world.actions == []


def test_quarantine_does_not_end_because_the_agent_is_silent() -> None:
    world, gpu = failing(SharingFault.GPU_FAULT)
    world.run_until(NODE, FaultState.QUARANTINED, 70)
    gpu.silent, gpu.fault = True, None
    world.run(100)
    assert gpu.tainted
    assert world.message == (
        "1 of 5 nodes are quarantined: node gpu-0 showed GpuFault (quarantined while it lasts), and has a node agent that does "
        "not report: check its pod there"
    )
    gpu.silent = False
    world.run(2)
    assert not gpu.tainted


def test_agent_that_has_not_reported_yet_leaves_the_condition_as_it_is() -> None:
    world = SharingWorld(1)
    view = world.gpus[NODE].view(START)
    for age_s, state in ((29, NodeAgentState.PENDING), (31, NodeAgentState.SILENT)):
        report = NodeAgentReport(None, timedelta(seconds=age_s))
        assert diagnose_node(replace(view, agent=report), START).agent is state
    pending = replace(view, agent=NodeAgentReport(None, timedelta()))
    assert plan_sharing(world.pool, [pending], {}, START).verdict is None


def test_taint_that_no_fault_explains_is_removed() -> None:
    world = SharingWorld()
    world.gpus[NODE].tainted = True
    world.check()
    assert world.actions == [(0, TaintNode(NODE, quarantined=False))]


def test_nodes_beyond_the_limit_wait() -> None:
    world = SharingWorld(5)
    for name in ("gpu-0", "gpu-1", "gpu-2"):
        world.gpus[name].fault = SharingFault.DAEMON_LOST
    world.run(40)
    assert world.message.startswith("3 of 5 nodes show DaemonLost: node gpu-0 ")
    assert "(waits: too many nodes of the pool are restarting or quarantined)" in world.message
    assert [gpu.restarts for gpu in world.gpus.values()] == [1, 0, 0, 0, 0]
    world.gpus["gpu-0"].fault = None
    world.run(3)
    assert [world.state(name) for name in ("gpu-1", "gpu-2")] == [FaultState.RESTARTING, FaultState.WAITING]


@pytest.mark.parametrize("change", [{"ready": False}, {"silent": True}], ids=lambda change: str(*change))
def test_node_about_which_nothing_is_known_keeps_no_other_from_a_restart(change: Mapping[str, bool]) -> None:
    world, gpu = failing(SharingFault.DAEMON_LOST)
    world.run_until(NODE, FaultState.RESTARTING, 40)
    for name, value in change.items():
        setattr(gpu, name, value)
    world.gpus["gpu-1"].fault = SharingFault.DAEMON_LOST
    world.run_until("gpu-1", FaultState.RESTARTING, 40)


def test_status_lists_a_bounded_number_of_nodes_and_the_condition_counts_all() -> None:
    world = SharingWorld(100)
    for gpu in world.gpus.values():
        gpu.fault = SharingFault.GPU_FAULT
    world.check()
    assert len(world.pool.status.faulty_nodes) == MAX_FAULTY_NODES
    assert world.message.startswith("100 of 100 nodes show GpuFault: ")
    assert world.message.endswith("; and 97 more")
    for gpu in world.gpus.values():
        gpu.fault = None
    world.run(1)
    # Nodes that have recovered give their place to a new fault.
    world.gpus["gpu-99"].fault = SharingFault.GPU_FAULT
    world.run(1)
    assert world.state("gpu-99") is FaultState.DETECTED
    assert len(world.pool.status.faulty_nodes) == MAX_FAULTY_NODES


def test_the_worst_fault_gives_the_reason() -> None:
    world = SharingWorld(5)
    world.gpus["gpu-1"].silent = True
    world.gpus["gpu-2"].fault = SharingFault.CLIENT_STUCK
    world.gpus["gpu-3"].fault = SharingFault.DAEMON_LOST
    verdict = world.check().verdict
    assert verdict is not None
    assert verdict.reason is Reason.DAEMON_LOST
    assert verdict.message.startswith(
        "1 of 5 nodes show DaemonLost, 1 of 5 nodes show ClientStuck, 1 of 5 nodes have a silent node agent: node gpu-3 has "
    )


turns = st.lists(
    st.tuples(st.integers(0, 11), st.none() | st.sampled_from(SharingFault), st.booleans(), st.booleans()),
    max_size=20,
)
"""Which node changes, to which fault (None: it is well), whether a restart helps, and whether the node is cordoned."""


@given(st.integers(1, 12), turns)
@settings(max_examples=examples(60), deadline=None)
def test_never_more_nodes_than_the_limit_are_restarting_or_quarantined(
    nodes: int, failures: list[tuple[int, SharingFault | None, bool, bool]]
) -> None:
    world = SharingWorld(nodes)
    acting = (FaultState.RESTARTING, FaultState.QUARANTINED)
    for number, fault, curable, cordoned in [*failures, *[(99, None, False, False)] * 5]:
        gpu = world.gpus.get(f"gpu-{number}")
        if gpu is not None:
            gpu.fault, gpu.restart_helps, gpu.cordoned = fault, curable, cordoned
            if fault is SharingFault.ADMISSION_ERRORS:
                gpu.add_pod("refused", refused_at=world.now)
        for _ in range(8):
            world.now += timedelta(seconds=20)
            world.check()
            entries = world.pool.status.faulty_nodes
            assert sum(entry.state in acting for entry in entries) <= count_allowed_disruptions(nodes)
            quarantined = {entry.node for entry in entries if entry.state is FaultState.QUARANTINED}
            assert {name for name, gpu in world.gpus.items() if gpu.tainted} == quarantined
            assert all(entry.restarts <= RESTART_POLICY.limit for entry in entries)


def test_agents_report_at_least_twice_before_anything_is_done() -> None:
    """A report counts for 30 s, so the one that is younger than that is another one than the first."""
    acts_after = {fault: FAULT_POLICIES[fault].quarantine_after for fault in FOUND_BY_AGENTS}
    acts_after[SharingFault.DAEMON_LOST] = RESTART_POLICY.after
    assert min(acts_after.values()) >= timedelta(seconds=30)


def a_pod(**status: Any) -> dict[str, Any]:
    metadata = {"name": "p", "namespace": "ads", "uid": "u", "creationTimestamp": "2026-10-01T00:00:00Z"}
    return {
        "metadata": {**metadata, "labels": {"tidegate.io/pool": "gpu-a"}},
        "spec": {"nodeName": NODE},
        "status": status,
    }


def test_pod_is_refused_from_when_the_kubelet_took_it() -> None:
    refused = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "startTime": "2026-11-01T00:00:00Z"}
    assert parse_slice_pod(a_pod(**refused)) == SlicePod("u", NODE, refused_at=START)
    assert parse_slice_pod(a_pod(phase="Failed", reason="Evicted")) == SlicePod("u", NODE)
    deleted = a_pod(**refused)
    deleted["metadata"]["deletionTimestamp"] = "2026-11-01T00:00:00Z"
    assert parse_slice_pod(deleted) == SlicePod("u", NODE, ends_by=START)


def test_pod_of_the_daemon_is_known_by_its_owner_and_starts_when_it_is_ready() -> None:
    body = a_pod()
    body["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "mps"}]
    pod = parse_daemon_pod(body, "mps")
    assert pod is not None
    assert pod.ready_since is None
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-01T00:00:00Z"}
    pod = parse_daemon_pod({**body, "status": {"conditions": [ready]}}, "mps")
    assert pod is not None
    assert isinstance(pod, DaemonPod)
    assert [pod.has_started(START + timedelta(seconds=age)) for age in (119, 120)] == [False, True]
    assert not replace(pod, terminating=True).has_started(START + timedelta(hours=1))
    assert parse_daemon_pod(body, "plugin") is None
