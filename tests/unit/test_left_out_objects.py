"""Objects that a cache of the controllers leaves out: which caches are reported, and that the others in a cache are read."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from prometheus_client import CollectorRegistry

from builders.fake_clock import FakeClock, settle
from tidegate.api.meta import ObjectKey
from tidegate.kube import kinds
from tidegate.kube.client import KubeClient
from tidegate.kube.occupancy import NodeOccupancy
from tidegate.kube.port import EventNote
from tidegate.kube.store import ObjectStore
from tidegate.runtime.process_metrics import show_left_out
from tidegate.triton.node_agents import NodeAgentClient
from tidegate_controllers.manager import ManagerDependencies
from tidegate_controllers.node_agents import NodeAgents
from tidegate_controllers.object_events import report_left_out
from tidegate_controllers.process import PodCaches
from tidegate_controllers.stores import Stores
from tidegate_controllers.workloads import KueueWorkloads
from tidegate_dataplane.contract.sharing import DaemonState, NodeReport

UNUSED = cast(Any, None)


def a_pod(name: str, address: str, **resources: Any) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True"}
    return {
        "metadata": {"name": name, "namespace": "tidegate-system", "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "main", "resources": resources}]},
        "status": {"phase": "Running", "podIP": address, "conditions": [ready]},
    }


def an_odd_pod(name: str) -> dict[str, Any]:
    return {**a_pod(name, "10.0.0.9"), "status": {"conditions": ["Ready"]}}


def dependencies(pods: PodCaches, autoscalers: ObjectStore) -> ManagerDependencies:
    stores = Stores()
    return ManagerDependencies(
        cluster=UNUSED,
        stores=stores,
        agents=UNUSED,
        proxies=UNUSED,
        occupancy=NodeOccupancy(stores.pods),
        ownership=UNUSED,
        workloads=KueueWorkloads(cast(KubeClient, None), stores.jobs),
        measurements=UNUSED,
        allocator=UNUSED,
        sharing=None,
        serving=UNUSED,
        clock=UNUSED,
        further_stores=(autoscalers, *pods),
    )


def test_a_pod_that_cannot_be_read_hides_no_other_xds_server_or_gateway() -> None:
    pods = PodCaches()
    for store in (pods.xds, pods.gateways):
        store.observe("ADDED", an_odd_pod("odd"))
        store.observe("ADDED", a_pod("good", "10.0.0.1"))

    assert pods.list_report_addresses(8080) == ("10.0.0.1:8080",)
    assert [target.address for target in pods.list_gateways(9901)] == ["10.0.0.1:9901"]
    assert [list(store.left_out) for store in (pods.xds, pods.gateways)] == [
        [ObjectKey("tidegate-system", "odd")]
    ] * 2


async def test_a_node_agent_whose_pod_cannot_be_read_hides_no_other() -> None:
    report = NodeReport(node="node-2", revision="r", daemon=DaemonState.ANSWERS)

    class Client:
        async def get_report(self, address: str, revision: str) -> NodeReport:
            if revision == report.revision:
                await asyncio.Event().wait()
            assert address == "10.0.0.1"
            return report

    store = ObjectStore(kinds.POD)
    agents = NodeAgents(store, cast(NodeAgentClient, Client()))
    odd, good = an_odd_pod("odd"), a_pod("good", "10.0.0.1")
    for pod, node in ((odd, "node-1"), (good, "node-2")):
        pod["spec"]["nodeName"] = node
        store.observe("ADDED", pod)
    task = asyncio.create_task(agents.run())
    await settle()
    task.cancel()

    assert (agents.last_report("node-1").report, agents.last_report("node-2").report) == (None, report)
    assert list(store.left_out) == [ObjectKey("tidegate-system", "odd")]


async def test_what_is_left_out_of_workloads_autoscalers_and_pods_of_the_release_is_reported() -> None:
    pods, autoscalers, notes = PodCaches(), ObjectStore(kinds.HORIZONTAL_POD_AUTOSCALER), list[EventNote]()
    parts = dependencies(pods, autoscalers)

    class Cluster:
        async def create_event(self, note: EventNote) -> None:
            notes.append(note)

    def refuse(_: ObjectKey) -> None:
        raise ArithmeticError

    watched = (parts.workloads.store, autoscalers, pods.xds, pods.gateways, pods.node_agents, pods.plugin)
    for number, store in enumerate(watched):
        store.subscribe(refuse)
        store.observe("ADDED", {**a_pod(f"odd-{number}", "10.0.0.9"), "status": {}})
    task = asyncio.create_task(report_left_out(cast(Any, Cluster()), parts.watched_stores, FakeClock()))
    await settle()
    task.cancel()

    assert sorted((note.key.name, note.kind.kind) for note in notes) == [
        ("odd-0", "Workload"),
        ("odd-1", "HorizontalPodAutoscaler"),
        *((f"odd-{number}", "Pod") for number in range(2, 6)),
    ]
    registry = CollectorRegistry()
    show_left_out(registry, parts.watched_stores)
    for kind, count in (("Workload", 1), ("HorizontalPodAutoscaler", 1), ("Pod", 4), ("Inference", 0)):
        assert registry.get_sample_value("tidegate_cache_objects_left_out", {"kind": kind}) == count
