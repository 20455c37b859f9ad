"""Repairs of nodes whose MPS fails: what is done about each fault, in which time, and what is never done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.sharing_world import SERVER, START, Gpu, SharingWorld, removes
from stages.examples import examples
from tidegate.api.reasons import Reason
from tidegate.api.repairs import RepairState, SharingFault
from tidegate.planning.node_sharing import Heard, Sight, diagnose, helper_pod
from tidegate.planning.sharing_health import limit
from tidegate.planning.sharing_repairs import (
    ATTEMPTS,
    TOLD_BY_AGENTS,
    TREATMENTS,
    Measure,
    OrderNode,
    RemovePod,
    TaintNode,
    disrupts,
)
from tidegate_dataplane.contract.sharing import NodeAction
from tidegate_localcluster.supplies import source_root

NODE = "gpu-0"
AGED_S = 125
"""After that a helper pod is not just starting any more."""


def failing(fault: SharingFault, *, nodes: int = 5) -> tuple[SharingWorld, Gpu]:
    """A world in which one node shows a fault; it has two pods that serve."""
    world = SharingWorld(nodes)
    gpu = world.gpus[NODE]
    gpu.pod("a")
    gpu.pod("b")
    gpu.fault = fault
    if fault is SharingFault.ADMISSION_ERRORS:
        gpu.pod("refused", refused=True)
    return world, gpu


def test_nothing_is_done_where_all_is_well() -> None:
    world = SharingWorld()
    for gpu in world.gpus.values():
        gpu.pod("a")
    first = world.look()
    assert first.verdict is not None
    assert (first.verdict.holds, first.verdict.message) == (True, "MPS answers on 5 nodes")
    last = world.run(60)
    assert (world.steps, last.repairs, last.turns, last.verdict) == ([], (), (), first.verdict)


def test_lost_daemon_is_recreated_on_an_empty_node() -> None:
    world, gpu = failing(SharingFault.DAEMON_LOST)
    gpu.cured_by = removes("daemon")
    assert world.look().steps == ()  # it may just be starting
    assert world.until(NODE, RepairState.REPAIRING, 10) == 5
    taken = [step for _, step in world.steps]
    assert taken == [
        TaintNode(NODE, RepairState.REPAIRING),
        *(RemovePod(pod.key, pod.uid) for pod in failing(SharingFault.DAEMON_LOST)[1].pods.values()),
        taken[-1],
    ]
    assert removes("daemon")(taken[-1])
    said = world.plans[-1].verdict
    assert said is not None
    assert said.reason is Reason.DAEMON_LOST
    assert said.message == (
        "1 of 5 nodes being repaired: node gpu-0 has no MPS control daemon that answers (Cannot find MPS control daemon "
        "process) (attempt 1 of 3)"
    )
    world.until(NODE, RepairState.RECOVERED, 3)
    world.run(1)
    assert gpu.taint is None
    world.until(NODE, None, 601)


def test_fault_of_a_gpu_ends_the_pods_that_shared_it_and_no_others() -> None:
    world, gpu = failing(SharingFault.GPU_FAULT)
    gpu.cured_by = lambda _: not gpu.pods
    stranger = world.gpus["gpu-1"].pod("a")
    first = world.look()
    assert (world.steps, first.doubted) == ([], {NODE})
    assert first.requeue_after < timedelta(seconds=2)
    assert world.run(1).doubted == frozenset()
    assert [type(step) for _, step in world.steps] == [TaintNode, RemovePod, RemovePod]
    assert stranger.uid in world.gpus["gpu-1"].pods
    assert world.until(NODE, RepairState.RECOVERED, 5) == 1


def test_fault_on_nodes_with_more_gpus_waits_for_its_turn_since_pods_work_on_the_others() -> None:
    world = SharingWorld(5)
    for name in ("gpu-0", "gpu-1"):
        world.gpus[name].count = 2
        world.gpus[name].pod("a")
        world.gpus[name].fault = SharingFault.GPU_FAULT
    world.run(5)
    assert [gpu.taint for gpu in world.gpus.values()].count("Repairing") == 1
    assert sorted(len(gpu.pods) for gpu in world.gpus.values()) == [0, 0, 0, 0, 1]


def test_daemons_are_recreated_within_the_limit_whatever_the_fault_is() -> None:
    world = SharingWorld(5)
    for gpu in world.gpus.values():
        gpu.pod("a")
        gpu.fault = SharingFault.GPU_FAULT
    world.run(5)
    assert {gpu.taint for gpu in world.gpus.values()} == {"Repairing"}
    world.run(20)
    assert sorted(gpu.helpers for gpu in world.gpus.values()) == [0, 0, 0, 0, 1]
    assert [gpu.taint for gpu in world.gpus.values()].count("Repairing") == 1


def test_fault_among_clients_that_nobody_knows_ends_all_pods_of_the_node() -> None:
    _, gpu = failing(SharingFault.GPU_FAULT)
    view = gpu.view(START)
    assert view.heard.report is not None
    one, *others = view.heard.report.clients
    report = view.heard.report.model_copy(update={"clients": (one.model_copy(update={"pod": ""}), *others)})
    assert len(diagnose(replace(view, heard=Heard(report, timedelta())), START).pods) == 2
    report = report.model_copy(update={"clients": (one,)})
    hit = diagnose(replace(view, heard=Heard(report, timedelta())), START).pods
    assert [pod.uid for pod in hit] == [one.pod]


def test_process_that_outlives_its_pod_is_ended_and_nobody_else() -> None:
    world, gpu = failing(SharingFault.CLIENT_STUCK)
    gpu.cured_by = lambda step: isinstance(step, OrderNode)
    world.look()
    assert world.until(NODE, RepairState.REPAIRING, 5) == 2
    (_, order) = world.steps[0]
    assert isinstance(order, OrderNode)
    assert (order.action, order.server, order.client) == (NodeAction.TERMINATE_CLIENT, SERVER, 6999)
    world.until(NODE, RepairState.RECOVERED, 3)
    assert len(world.steps) == 1
    assert len(gpu.pods) == 2


def test_order_is_given_once_for_each_attempt_and_then_the_daemon_is_recreated() -> None:
    world, gpu = failing(SharingFault.CLIENT_STUCK)
    gpu.cured_by = removes("daemon")
    world.look()
    world.until(NODE, RepairState.RECOVERED, 30)
    kinds = [type(step) for _, step in world.steps]
    assert kinds == [OrderNode, TaintNode, RemovePod, RemovePod, RemovePod, TaintNode]
    assert world.steps[1][0] - world.steps[0][0] == 15


def test_pod_that_ends_in_its_time_is_not_stuck() -> None:
    world = SharingWorld()
    gpu = world.gpus[NODE]
    gpu.pod("a", leaving=START + timedelta(seconds=20))
    world.run(29)
    assert world.plans[-1].suspicions == {}
    world.run(2)
    assert world.plans[-1].suspicions[NODE].fault is SharingFault.CLIENT_STUCK


def test_plugin_that_offers_nothing_is_recreated_and_pods_go_on() -> None:
    world, gpu = failing(SharingFault.ALLOCATABLE_GONE)
    gpu.cured_by = removes("plugin")
    world.look()
    assert world.until(NODE, RepairState.REPAIRING, 20) == 15
    assert [step for _, step in world.steps if not removes("plugin")(step)] == []
    world.until(NODE, RepairState.RECOVERED, 2)
    assert len(gpu.pods) == 2


def test_refused_pods_are_deleted_and_a_plugin_that_goes_on_refusing_is_recreated() -> None:
    world, gpu = failing(SharingFault.ADMISSION_ERRORS)
    world.look()
    assert [step.uid for _, step in world.steps if isinstance(step, RemovePod)] == ["gpu-0-refused"]
    assert len(gpu.pods) == 2
    world.until(NODE, RepairState.RECOVERED, 6)
    assert gpu.helpers == 0

    gpu.pod("another", refused=True)
    world.run(1)
    assert world.state(NODE) is RepairState.REPAIRING
    assert (gpu.taint, gpu.helpers) == ("Repairing", 1)
    assert world.until(NODE, RepairState.RECOVERED, 20) >= 10  # it has to show that it refuses nobody
    world.run(1)
    assert gpu.taint is None


@pytest.mark.parametrize("fault", list(SharingFault))
def test_every_fault_that_nothing_cures_is_quarantined_in_its_time(fault: SharingFault) -> None:
    world, gpu = failing(fault)
    world.look()
    bound = TREATMENTS[fault].bound.total_seconds()
    while world.state(NODE) is not RepairState.QUARANTINED:
        assert world.seconds <= bound + 3, f"{fault} is not quarantined after {world.seconds} s"
        if fault is SharingFault.ADMISSION_ERRORS:
            gpu.pod(f"refused-{world.seconds}", refused=True)
        world.run(1)
    assert gpu.taint == "Quarantined"
    # Pods that serve are ended only where MPS itself is broken.
    alive = [pod for pod in gpu.pods.values() if not pod.refused]
    broken = Measure.MOVE_PODS in TREATMENTS[fault].then and fault is not SharingFault.ADMISSION_ERRORS
    assert len(alive) == (0 if broken else 2)

    done = len(world.steps)
    gpu.fault = None
    gpu.pods = {uid: pod for uid, pod in gpu.pods.items() if not pod.refused}
    said = world.run(900).verdict
    assert said is not None
    assert said.reason is Reason.NODE_QUARANTINED
    assert "kubectl taint node gpu-0 tidegate.io/sharing-" in said.message
    assert (len(world.steps), gpu.taint) == (done, "Quarantined")

    gpu.taint = None  # a person has repaired it
    said = world.run(1).verdict
    assert (world.state(NODE), said and said.holds) == (None, True)


def test_attempts_are_counted_and_each_is_given_what_a_new_daemon_takes_to_start() -> None:
    world, gpu = failing(SharingFault.DAEMON_LOST)
    world.look()
    world.until(NODE, RepairState.QUARANTINED, 400)
    said = world.plans[20].verdict
    assert said is not None
    assert "Cannot find MPS control daemon process); pod nvidia/daemon-gpu-0 of its MPS" in said.message
    times = [at for at, step in world.steps if removes("daemon")(step)]
    assert len(times) == ATTEMPTS
    assert [later - earlier for earlier, later in pairwise(times)] == [120, 120]
    assert gpu.helpers == ATTEMPTS


def test_node_that_fails_again_and_again_is_quarantined() -> None:
    world, gpu = failing(SharingFault.DAEMON_LOST)
    gpu.cured_by = removes("daemon")
    for _ in range(ATTEMPTS):
        gpu.fault = SharingFault.DAEMON_LOST
        world.until(NODE, RepairState.REPAIRING, 20)
        world.until(NODE, RepairState.RECOVERED, 20)
        world.run(AGED_S)
    gpu.fault = SharingFault.DAEMON_LOST
    world.until(NODE, RepairState.QUARANTINED, TREATMENTS[SharingFault.DAEMON_LOST].bound.total_seconds())
    assert gpu.helpers == ATTEMPTS


def test_node_that_is_not_ready_or_in_a_persons_hands_is_left_alone() -> None:
    for change in ("ready", "cordoned"):
        world, gpu = failing(SharingFault.DAEMON_LOST)
        setattr(gpu, change, change != "ready")
        world.run(120)
        assert (world.steps, world.state(NODE)) == ([], None), change


def test_silent_agent_is_said_and_nothing_is_done() -> None:
    world, gpu = failing(SharingFault.DAEMON_LOST)
    gpu.silent = True
    said = world.run(60).verdict
    assert said is not None
    assert said.reason is Reason.NODE_AGENT_SILENT
    assert said.message == (
        "1 of 5 nodes not known: node gpu-0 has no node agent that answers: look at its pod there"
    )
    assert world.steps == []


def test_agent_that_cannot_ask_is_said_with_the_way_out_and_nothing_is_done() -> None:
    world, gpu = failing(SharingFault.DAEMON_LOST)
    gpu.blind = True
    said = world.run(60).verdict
    assert said is not None
    assert said.reason is Reason.NODE_AGENT_SILENT
    assert "cannot ask MPS (nvidia-cuda-mps-control cannot be started: No such file" in said.message
    assert "see nodeAgent.runtimeClassName in Tidegate's Helm values" in said.message
    assert world.steps == []


@pytest.mark.parametrize("fault", sorted(TOLD_BY_AGENTS))
def test_one_old_report_is_no_reason_to_act(fault: SharingFault) -> None:
    world, gpu = failing(fault)
    gpu.heard_at = world.now  # by a leader that has just begun, and then not again
    world.run(28)
    assert (world.steps, world.plans[-1].suspicions[NODE].fault) == ([], fault)
    gpu.heard_at = None
    world.until(NODE, RepairState.REPAIRING, 1)


def test_repair_is_not_over_because_the_agent_is_silent() -> None:
    world, gpu = failing(SharingFault.DAEMON_LOST)
    world.look()
    world.until(NODE, RepairState.REPAIRING, 10)
    gpu.silent, gpu.fault = True, None
    world.run(400)
    assert (world.state(NODE), gpu.taint) == (RepairState.REPAIRING, "Repairing")
    gpu.silent = False
    world.until(NODE, RepairState.RECOVERED, 2)


@pytest.mark.parametrize("how", ["ready", "silent"])
def test_node_of_which_nothing_is_heard_for_long_is_quarantined_and_others_are_repaired(how: str) -> None:
    world, gpu = failing(SharingFault.DAEMON_LOST)
    world.look()
    world.until(NODE, RepairState.REPAIRING, 10)
    setattr(gpu, how, how == "silent")
    other = world.gpus["gpu-1"]
    other.fault = SharingFault.DAEMON_LOST
    world.run(400)
    assert (world.state(NODE), world.state("gpu-1")) == (RepairState.REPAIRING, RepairState.WAITING)
    assert world.until(NODE, RepairState.QUARANTINED, 40) >= 15
    assert gpu.taint == "Quarantined"
    world.until("gpu-1", RepairState.REPAIRING, 2)


def test_node_whose_new_daemon_does_not_start_is_quarantined_and_goes_on_counting() -> None:
    world, gpu = failing(SharingFault.DAEMON_LOST)
    world.look()
    world.until(NODE, RepairState.REPAIRING, 10)
    gpu.helpers_since["daemon"] = None
    world.gpus["gpu-1"].fault = SharingFault.DAEMON_LOST
    world.until(NODE, RepairState.QUARANTINED, 430)
    world.run(60)
    assert (gpu.taint, world.state("gpu-1")) == ("Quarantined", RepairState.WAITING)


def test_agent_that_was_never_heard_says_nothing_yet() -> None:
    view = SharingWorld().gpus[NODE].view(START)
    assert diagnose(replace(view, heard=Heard(None, timedelta(seconds=29))), START).sight is Sight.PENDING
    assert diagnose(replace(view, heard=Heard(None, timedelta(seconds=31))), START).sight is Sight.SILENT


def test_daemon_that_would_not_come_back_is_not_ended_nor_any_pod() -> None:
    world, gpu = failing(SharingFault.DAEMON_LOST)
    gpu.tolerates = False
    world.look()
    said = world.run(10).verdict
    assert said is not None
    assert (
        "add {key: tidegate.io/sharing, operator: Exists} to tolerations in its Helm values" in said.message
    )
    world.run(300)
    assert (world.state(NODE), gpu.taint, gpu.helpers, len(gpu.pods)) == (RepairState.WAITING, None, 0, 2)
    gpu.tolerates = True
    world.until(NODE, RepairState.REPAIRING, 2)
    assert (gpu.helpers, gpu.pods) == (1, {})


def test_plugin_that_does_not_tolerate_the_taint_is_recreated_once_the_taint_is_off() -> None:
    world, gpu = failing(SharingFault.DAEMON_LOST)
    world.look()
    world.until(NODE, RepairState.REPAIRING, 10)
    gpu.fault, gpu.tolerates = SharingFault.ALLOCATABLE_GONE, False
    gpu.cured_by = removes("plugin")
    for _ in range(AGED_S):
        world.run(1)
        taken = [step for step in world.plans[-1].steps if removes("plugin")(step)]
        assert not taken or gpu.taint is None
    assert world.state(NODE) is RepairState.RECOVERED


@pytest.mark.parametrize(
    ("fault", "kind"), [(SharingFault.DAEMON_LOST, "daemon"), (SharingFault.ALLOCATABLE_GONE, "plugin")]
)
def test_what_every_node_shows_at_its_start_is_no_fault(fault: SharingFault, kind: str) -> None:
    def looked(change: Callable[[Gpu], object], seconds: float = 115) -> SharingWorld:
        world, gpu = failing(fault)
        change(gpu)
        world.run(seconds)
        return world

    booted = looked(lambda gpu: setattr(gpu, "since", START), 179)
    assert booted.steps == []
    booted.until(NODE, RepairState.REPAIRING, 25)
    young = looked(lambda gpu: gpu.helpers_since.update({kind: START}))
    assert (young.steps, young.state(NODE)) == ([], None)
    young.until(NODE, RepairState.REPAIRING, 30)
    absent = looked(lambda gpu: gpu.helpers_since.pop(kind), 600)
    never_ready = looked(lambda gpu: gpu.helpers_since.update({kind: None}), 600)
    for world, words in ((absent, "look at the DaemonSet"), (never_ready, f"pod nvidia/{kind}-gpu-0 of its")):
        said = world.plans[-1].verdict
        assert said is not None
        assert (world.steps, said.holds, said.reason) == ([], False, Reason(fault.value))
        assert words in said.message


def test_helper_pod_that_is_still_starting_is_not_deleted() -> None:
    world, gpu = failing(SharingFault.GPU_FAULT)
    gpu.cured_by = removes("daemon")
    world.look()
    gpu.helpers_since["daemon"] = None
    world.run(60)
    assert (world.pool.status.repairs[0].attempts, gpu.helpers) == (2, 0)
    gpu.helpers_since["daemon"] = world.now
    world.run(119)
    assert gpu.helpers == 0
    world.run(2)
    assert (gpu.helpers, world.state(NODE)) == (1, RepairState.RECOVERED)


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "tidegate.io/sharing", "operator": "Exists"}, True),
        ({"key": "tidegate.io/sharing", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "tidegate.io/sharing", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "tidegate.io/sharing", "value": "Repairing"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, False),
    ],
)
def test_pod_of_the_plugin_is_known_by_its_owner_and_by_what_it_tolerates(
    toleration: dict[str, str], tolerates: bool
) -> None:
    body = {
        "metadata": {
            "name": "p",
            "namespace": "nvidia",
            "uid": "u",
            "ownerReferences": [{"kind": "DaemonSet", "name": "mps"}],
        },
        "spec": {"tolerations": [toleration]},
    }
    pod = helper_pod(body, "mps")
    assert pod is not None
    assert pod.tolerates is tolerates
    assert pod.ready_since is None
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-01T00:00:00Z"}
    again = helper_pod({**body, "status": {"conditions": [ready]}}, "mps")
    assert again is not None
    assert again.ready_since == START
    assert helper_pod(body, "plugin") is None


def test_taint_of_a_repair_that_is_forgotten_is_taken_off() -> None:
    world = SharingWorld()
    world.gpus[NODE].taint = "Repairing"
    world.look()
    assert world.steps == [(0, TaintNode(NODE, None))]
    world.gpus["gpu-1"].taint = "Quarantined"  # but not one that a person has to decide about
    world.look()
    assert len(world.steps) == 1


def test_nodes_beyond_the_limit_wait_and_say_so() -> None:
    world = SharingWorld(5)
    for name in ("gpu-0", "gpu-1", "gpu-2"):
        world.gpus[name].pod("a")
        world.gpus[name].fault = SharingFault.DAEMON_LOST
    said = world.run(20).verdict
    assert said is not None
    assert "waits until fewer nodes of the pool are out of use" in said.message
    assert [len(gpu.pods) for gpu in world.gpus.values()] == [0, 1, 1, 0, 0]
    world.gpus["gpu-0"].fault = None
    world.run(3)
    assert world.state("gpu-1") is RepairState.REPAIRING
    assert world.state("gpu-2") is RepairState.WAITING


def failing_with_the_limit_used_up(attempts: int) -> tuple[SharingWorld, Gpu]:
    """A node that has recovered after so many attempts fails again while another one is out of use for good."""
    world, gpu = failing(SharingFault.DAEMON_LOST)
    world.gpus["gpu-1"].fault = SharingFault.DAEMON_LOST
    gpu.cured_by = removes("daemon")
    for _ in range(attempts):
        gpu.fault = SharingFault.DAEMON_LOST
        world.gpus["gpu-1"].cordoned = True
        world.until(NODE, RepairState.REPAIRING, 20)
        world.until(NODE, RepairState.RECOVERED, 20)
        world.run(AGED_S)
    world.gpus["gpu-1"].cordoned = False
    world.until("gpu-1", RepairState.REPAIRING, 10)
    gpu.pod("c")
    gpu.fault = SharingFault.DAEMON_LOST
    return world, gpu


@pytest.mark.parametrize("attempts", [1, ATTEMPTS])
def test_node_that_fails_again_waits_too_where_the_limit_is_used_up(attempts: int) -> None:
    world, gpu = failing_with_the_limit_used_up(attempts)
    for _ in range(60):
        world.run(1)
        assert (gpu.taint, [pod.key.name for pod in gpu.pods.values()]) == (None, ["gpu-0-c"])
    assert world.state(NODE) is RepairState.WAITING
    # Waiting is no way to have the attempts forgotten.
    gpu.fault = None
    world.run(2)
    assert next(each.attempts for each in world.pool.status.repairs if each.node == NODE) == attempts


def test_node_counts_as_out_of_use_while_it_is_tainted_whatever_its_fault_has_become() -> None:
    world, gpu = failing(SharingFault.DAEMON_LOST)
    world.look()
    world.until(NODE, RepairState.REPAIRING, 10)
    other = world.gpus["gpu-1"]
    other.pod("a")
    gpu.fault = SharingFault.ALLOCATABLE_GONE
    world.run(AGED_S)
    assert (world.pool.status.repairs[0].fault, gpu.taint) == (SharingFault.ALLOCATABLE_GONE, "Repairing")
    other.fault = SharingFault.DAEMON_LOST
    world.run(10)
    assert (world.state("gpu-1"), other.taint, len(other.pods)) == (RepairState.WAITING, None, 1)


def test_node_that_is_cordoned_while_it_waits_is_left_alone() -> None:
    world = SharingWorld(5)
    for name in ("gpu-0", "gpu-1"):
        world.gpus[name].pod("a")
        world.gpus[name].fault = SharingFault.DAEMON_LOST
    world.run(10)
    assert world.state("gpu-1") is RepairState.WAITING
    world.gpus["gpu-1"].cordoned = True
    world.gpus["gpu-0"].fault = None
    said = world.run(10).verdict
    assert said is not None
    assert "(is left alone while it is cordoned)" in said.message
    assert (world.state("gpu-1"), world.gpus["gpu-1"].taint) == (RepairState.WAITING, None)
    assert len(world.gpus["gpu-1"].pods) == 1
    world.gpus["gpu-1"].cordoned = False
    world.until("gpu-1", RepairState.REPAIRING, 2)


turns = st.lists(
    st.tuples(st.integers(0, 11), st.none() | st.sampled_from(SharingFault), st.booleans(), st.booleans()),
    max_size=20,
)
"""Who fails next and how (None: is well again), whether a new daemon helps, and whether the node is cordoned."""
EXEMPT = (SharingFault.GPU_FAULT, SharingFault.ADMISSION_ERRORS)
"""They cost no pod that still works (on nodes with one GPU), so that any number of nodes may be tainted for them."""


@given(st.integers(1, 12), turns)
@settings(max_examples=examples(60), deadline=None)
def test_never_more_nodes_than_the_limit_are_out_of_use(
    nodes: int, failures: list[tuple[int, SharingFault | None, bool, bool]]
) -> None:
    world = SharingWorld(nodes)
    exempt: set[str] = set()
    for gpu in list(world.gpus.values())[::2]:
        gpu.count = 2
    for at, fault, curable, cordoned in [*failures, *[(99, None, False, False)] * 5]:
        gpu = world.gpus.get(f"gpu-{at}")
        if gpu is not None:
            gpu.fault, gpu.cordoned = fault, cordoned
            gpu.cured_by = removes("daemon") if curable else None
            if fault is SharingFault.ADMISSION_ERRORS or (fault in EXEMPT and gpu.count == 1):
                exempt.add(gpu.name)
            if fault is SharingFault.ADMISSION_ERRORS:
                gpu.pod("refused", refused=True)
        for _ in range(8):
            world.now += timedelta(seconds=4)
            for each in world.gpus.values():
                if each.taint is None:
                    each.pod("a")
            plan = world.look()
            tainted = {each.name for each in world.gpus.values() if each.taint is not None}
            assert len(tainted - exempt) <= limit(nodes), tainted
            removed = {step.uid for step in plan.steps if isinstance(step, RemovePod)}
            emptied = {each.name for each in world.gpus.values() if f"{each.name}-a" in removed}
            assert emptied <= tainted
            assert sum(
                disrupts(repair, world.view(repair.node))
                for repair in plan.repairs
                if repair.node not in exempt
            ) <= limit(nodes)
            quarantined = [each for each in world.gpus.values() if each.taint == "Quarantined"]
            assert len(quarantined) <= limit(nodes)
            for each in world.gpus.values():
                assert each.taint is None or world.state(each.name) is not None


def test_page_says_how_long_each_repair_takes() -> None:
    page = (source_root() / "docs" / "explanation" / "mps-health.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    said = {row[1].strip().strip("`"): row[4].strip() for row in rows}
    bounds = {fault.value: f"{each.bound.total_seconds():.0f} s" for fault, each in TREATMENTS.items()}
    assert said == bounds
