"""What the controllers keep of nodes and pods: begun late, told only of what counts, and equal to a look at everything."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from builders.compute_pool import compute_pool_body, node_body, pod_on
from tidegate.api.compute_pool import ComputePool
from tidegate.api.meta import ObjectKey
from tidegate.kube import kinds
from tidegate.kube.occupancy import NodeOccupancy
from tidegate.kube.pool_slices_cache import PoolSlicesCache
from tidegate.kube.store import ObjectStore
from tidegate.kube.typed_cache import TypedCache
from tidegate.planning.pools.nodes import parse_node, parse_occupant
from tidegate.planning.pools.pool_slices import sum_pool_slices


class World:
    """The caches behind the views, fed as watches feed them."""

    def __init__(self) -> None:
        self.ours = ObjectStore(kinds.POD)
        self.occupancy = NodeOccupancy(self.ours)
        self.store = ObjectStore(kinds.COMPUTE_POOL)
        self.pools = TypedCache(ComputePool, self.store)
        self.views = PoolSlicesCache(self.pools, self.occupancy)
        self.told: list[str] = []
        self.occupancy.subscribe(self.told.append)
        self._nodes = self.occupancy._nodes
        self._others = self.occupancy._foreign_pods
        self._version = 0

    def has(self, body: dict[str, Any], *, gone: bool = False) -> None:
        """An event of a watch."""
        self._version += 1
        body = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self._version)}}
        labels = body["metadata"].get("labels") or {}
        ours = labels.get("app.kubernetes.io/managed-by") == "tidegate"
        store = {"Node": self._nodes, "ComputePool": self.store, "Pod": self.ours if ours else self._others}[
            body["kind"]
        ]
        store.observe("DELETED" if gone else "MODIFIED", body)

    def pool(self, name: str = "cpu-a") -> ComputePool:
        found = self.pools.get(ObjectKey("", name))
        assert found is not None
        return found


def test_pods_from_before_the_first_pool_are_counted() -> None:
    world = World()
    world.has(pod_on("node-0", pool="cpu-a"))
    assert world.told == []
    world.occupancy.start_watching()
    world.has(node_body())
    world.has(compute_pool_body())
    assert world.views.get_slices(world.pool()).count_used("realtime") == 1


def test_a_strangers_pod_takes_what_it_asks_for_as_a_whole() -> None:
    world = World()
    world.occupancy.start_watching()
    pod = pod_on("node-0", managed=False)
    pod["spec"]["resources"] = {"requests": {"cpu": "3"}}
    world.has(pod)
    assert [each.requests["cpu"] for each in world.occupancy.list_occupants("node-0")] == [3]


def test_only_what_counts_is_told() -> None:
    world = World()
    world.occupancy.start_watching()
    world.has(node_body())
    world.has(pod_on("node-0"))
    told = len(world.told)

    world.has(node_body())  # a heartbeat
    world.has(pod_on("node-0"))  # a probe that turned
    world.has(pod_on("", "waiting"))
    assert len(world.told) == told
    world.has(node_body(cordoned=True))
    world.has(pod_on("node-0", phase="Succeeded"))
    assert len(world.told) == told + 2


def test_a_pod_of_a_recreated_name_on_another_node_frees_the_first() -> None:
    world = World()
    world.occupancy.start_watching()
    for name in ("node-0", "node-1"):
        world.has(node_body(name))
    world.has(compute_pool_body())
    world.has(pod_on("node-0", pool="cpu-a"))
    world.views.get_slices(world.pool())
    world.has(pod_on("node-1", pool="cpu-a"))
    assert [node.used for node in world.views.get_slices(world.pool()).nodes] == [{}, {"realtime": 1}]


_NODES = st.builds(
    node_body,
    st.sampled_from(["node-0", "node-1", "node-2"]),
    cpu=st.sampled_from(["2", "4"]),
    cordoned=st.booleans(),
    labels=st.sampled_from([{"pool": "a"}, {"pool": "b"}, {"pool": "a", "zone": "z"}]),
)
_PODS = st.builds(
    pod_on,
    st.sampled_from(["node-0", "node-1", ""]),
    st.sampled_from(["p", "q", "r"]),
    pool=st.sampled_from(["", "cpu-a"]),
    phase=st.sampled_from(["Running", "Failed"]),
    managed=st.just(True),
)
_POOLS = st.builds(
    compute_pool_body,
    st.sampled_from(["cpu-a", "cpu-b"]),
    nodeSelector=st.sampled_from([{"pool": "a"}, {"zone": "z", "pool": "a"}]),
    metadata=st.sampled_from([{"creationTimestamp": "2025-01-01T00:00:00Z"}, {}]),
)
_EVENTS = st.lists(st.tuples(st.one_of(_NODES, _PODS, _POOLS), st.booleans()), max_size=25)


@given(events=_EVENTS)
def test_after_any_events_the_views_are_what_a_look_at_everything_gives(
    events: list[tuple[dict[str, Any], bool]],
) -> None:
    world = World()
    world.occupancy.start_watching()
    there: dict[tuple[str, str], dict[str, Any]] = {}
    for body, gone in events:
        key = (body["kind"], body["metadata"]["name"])
        if body["kind"] == "ComputePool" and key in there:
            # Its age cannot change.
            body["metadata"]["creationTimestamp"] = there[key]["metadata"]["creationTimestamp"]
        world.has(body, gone=gone)
        there.pop(key, None)
        if not gone:
            there[key] = body
        for pool in world.pools.list_all():
            found = world.views.get_slices(pool)
            bodies = {kind: [one for (k, _), one in there.items() if k == kind] for kind in ("Node", "Pod")}
            on: dict[str, list[Any]] = {}
            for each in filter(None, map(parse_occupant, bodies["Pod"])):
                on.setdefault(each.node, []).append(each)
            assert found == sum_pool_slices(pool, map(parse_node, bodies["Node"]), on, world.pools.list_all())


def test_a_node_that_nobody_is_on_any_more_leaves_nothing_behind() -> None:
    world = World()
    world.occupancy.start_watching()
    world.has(node_body("node-0"))
    world.has(pod_on("node-0", "theirs", managed=False))
    world.has(pod_on("node-0", pool="cpu-a"))
    assert len(world.occupancy.list_occupants("node-0")) == 2
    world.has(pod_on("node-0", "theirs", managed=False), gone=True)
    world.has(pod_on("node-0", pool="cpu-a"), gone=True)
    world.has(node_body("node-0"), gone=True)
    assert world.occupancy.list_occupants("node-0") == ()
    assert world.occupancy._by_node == {}
