"""From caches to routing: every change of an object or pod reaches the routing, and nothing that is no change."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from builders.feature_compute import feature_compute_body
from builders.inference import inference_body
from builders.model_access import a_route, model_access_body
from tidegate.api.shared_spares import MAX_SHARED_MODELS
from tidegate.kube import kinds
from tidegate.kube.port import Manifest
from tidegate.kube.store import ObjectStore
from tidegate.publisher.restart_deadlines import RestartDeadlines
from tidegate.publisher.routing_inputs import RoutingInputs
from tidegate.resources.names import (
    CALLS_ANNOTATION,
    FEATURE_COMPUTE_LABEL,
    INFERENCE_LABEL,
    PIPELINE_LABEL,
    SPARE_LABEL,
    SPARE_MODELS_ANNOTATION,
)
from tidegate.routing.envoy.clusters import encode_cluster
from tidegate.routing.fleet import BackendKey, BackendKind
from tidegate.routing.guards import CALLER_REASONS, AddressGuard, ClosedGuard, TokenGuard
from tidegate.routing.hosts import HostKey
from tidegate.routing.incremental import IncrementalTranslator, RoutingChange
from tidegate.routing.ir import InferenceProtocol, PoolKey


class Fed:
    """A feed and the routing behind it."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, 12, tzinfo=UTC)
        self.feed = RoutingInputs(deadlines=RestartDeadlines(lambda: self.now))
        self.routing = IncrementalTranslator()
        self.wakes = 0
        self._versions = 1
        self.feed.subscribe(self._woken)

    def take(self) -> RoutingChange:
        """What became of the routing since the last time."""
        self.feed.feed_changes(self.routing)
        return self.routing.take_change()

    def put(self, kind: kinds.Kind, body: Manifest, event: str = "MODIFIED") -> None:
        """One event of a watch."""
        self._versions += 1
        metadata = {**body["metadata"], "resourceVersion": str(self._versions)}
        self._store(kind).observe(event, {**body, "metadata": metadata})

    def addresses(self) -> dict[str, list[str]]:
        """The changed pools, by backend."""
        return {
            str(key): [] if pool is None else [endpoint.address for endpoint in pool.endpoints]
            for key, pool in self.take().pools.items()
        }

    def _store(self, kind: kinds.Kind) -> ObjectStore:
        return next(store for store in self.feed.required_stores if store.kind == kind)

    def _woken(self) -> None:
        self.wakes += 1


@pytest.fixture
def fed() -> Fed:
    return Fed()


def pod_body(name: str, label: str, value: str, *, ready: str = "True", **metadata: Any) -> Manifest:
    """A running pod of a backend."""
    return {
        "metadata": {"name": name, "namespace": "ads", "uid": name, "labels": {label: value}, **metadata},
        "status": {"podIP": f"10.0.0.{len(name)}", "conditions": [{"type": "Ready", "status": ready}]},
    }


def test_pods_are_the_endpoints_of_their_backend_whichever_comes_first(fed: Fed) -> None:
    fed.put(kinds.POD, pod_body("p", INFERENCE_LABEL, "ctr"))
    assert fed.addresses() == {}
    fed.put(kinds.INFERENCE, inference_body())
    assert fed.addresses() == {"Inference ads/ctr": ["10.0.0.1"]}
    fed.put(kinds.POD, pod_body("pp", INFERENCE_LABEL, "ctr"))
    assert fed.addresses() == {"Inference ads/ctr": ["10.0.0.1", "10.0.0.2"]}


def test_a_pod_that_goes_or_changes_sides_is_missed_by_its_backend(fed: Fed) -> None:
    fed.put(kinds.INFERENCE, inference_body("ctr"))
    fed.put(kinds.INFERENCE, inference_body("cvr"))
    pod = pod_body("p", INFERENCE_LABEL, "ctr")
    fed.put(kinds.POD, pod)
    fed.take()

    fed.put(kinds.POD, pod_body("p", INFERENCE_LABEL, "cvr"))
    assert fed.addresses() == {"Inference ads/ctr": [], "Inference ads/cvr": ["10.0.0.1"]}

    fed.put(kinds.POD, pod, "DELETED")
    assert fed.addresses() == {"Inference ads/cvr": []}


def test_an_access_of_a_later_version_keeps_its_routes_and_one_that_never_could_be_read_has_none(
    fed: Fed,
) -> None:
    access, other = HostKey.parse("access/ads/ctr"), HostKey.parse("access/ads/cvr")
    fed.put(kinds.MODEL_ACCESS, model_access_body("ctr"))
    assert fed.take().hosts[access] is not None

    fed.put(kinds.MODEL_ACCESS, model_access_body("ctr", laterField="x"))
    fed.put(kinds.MODEL_ACCESS, model_access_body("cvr", auth={"laterField": "x"}))
    hosts = fed.take().hosts
    assert hosts[access] is not None
    assert hosts.get(other) is None


PIPELINE = {"name": "home", "pipeline": {"models": [{"inference": "ctr", "as": "pctr"}]}}
BACKENDS = {
    "Inference ads/ctr": (kinds.INFERENCE, inference_body("ctr"), INFERENCE_LABEL, "ctr"),
    "FeatureCompute ads/user": (
        kinds.FEATURE_COMPUTE,
        feature_compute_body("user"),
        FEATURE_COMPUTE_LABEL,
        "user",
    ),
    "Pipeline ads/scene.home": (
        kinds.MODEL_ACCESS,
        model_access_body("scene", routes=[PIPELINE]),
        PIPELINE_LABEL,
        "scene.home",
    ),
}
"""Of each kind that has endpoints: what its pool is called, the object that it comes from, and the label of its pods."""


@pytest.mark.parametrize(
    "pod",
    [{"ready": "False"}, {"ready": "Unknown"}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}],
    ids=["unready", "silent", "terminating"],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_pod_that_cannot_answer_is_no_endpoint(fed: Fed, backend: str, pod: dict[str, Any]) -> None:
    kind, body, label, value = BACKENDS[backend]
    fed.put(kind, body)
    fed.put(kinds.POD, pod_body("p", label, value, **pod))
    assert fed.addresses() == {backend: []}


def test_a_warm_spare_is_no_endpoint_until_it_is_promoted_or_takes_anothers_place(fed: Fed) -> None:
    def inference(replicas: int, spares: int) -> Manifest:
        body = inference_body(
            placement={"pool": "cpu-a"}, scaling={"minReplicas": 1, "maxReplicas": 4}, replicas=1
        )
        allocation = {"replicas": replicas, "spares": spares, "decision": "d", "epoch": 1}
        return {**body, "status": {"allocation": allocation}}

    def pod(name: str, second: int) -> Manifest:
        body = pod_body(name, INFERENCE_LABEL, "ctr")
        condition = {
            "type": "Ready",
            "status": "True",
            "lastTransitionTime": f"2026-01-01T12:00:{second:02}Z",
        }
        return {**body, "status": {**body["status"], "conditions": [condition]}}

    fed.put(kinds.INFERENCE, inference(2, 1))
    for body in (pod("p", 1), pod("pp", 3), pod("ppp", 2)):
        fed.put(kinds.POD, body)
    assert fed.addresses() == {"Inference ads/ctr": ["10.0.0.1", "10.0.0.3"]}

    fed.put(kinds.INFERENCE, inference(3, 0))
    assert fed.addresses() == {"Inference ads/ctr": ["10.0.0.1", "10.0.0.2", "10.0.0.3"]}

    fed.put(kinds.INFERENCE, inference(2, 1))
    fed.put(kinds.POD, pod_body("p", INFERENCE_LABEL, "ctr", ready="False"))
    assert fed.addresses() == {"Inference ads/ctr": ["10.0.0.2", "10.0.0.3"]}


def test_a_pod_wakes_the_access_only_when_its_target_falls_asleep_or_awakes(fed: Fed) -> None:
    fed.put(kinds.INFERENCE, inference_body())
    fed.put(kinds.MODEL_ACCESS, model_access_body(routes=[a_route()]))
    fed.put(kinds.POD, pod_body("p", INFERENCE_LABEL, "ctr"))
    assert [str(key) for key in fed.take().hosts] == ["access/ads/ctr"]

    fed.put(kinds.POD, pod_body("pp", INFERENCE_LABEL, "ctr"))
    assert fed.take().hosts == {}


def test_a_feature_compute_is_a_host_with_its_pods(fed: Fed) -> None:
    fed.put(kinds.FEATURE_COMPUTE, feature_compute_body("user"))
    fed.put(kinds.POD, pod_body("p", FEATURE_COMPUTE_LABEL, "user"))
    change = fed.take()
    (planned,) = change.hosts.values()
    assert planned is not None
    assert planned.state.answers


def test_an_object_that_comes_back_has_the_pods_that_stayed(fed: Fed) -> None:
    fed.put(kinds.INFERENCE, inference_body())
    fed.put(kinds.POD, pod_body("p", INFERENCE_LABEL, "ctr"))
    fed.put(kinds.INFERENCE, inference_body(), "DELETED")
    fed.take()
    fed.put(kinds.INFERENCE, inference_body())
    assert fed.addresses() == {"Inference ads/ctr": ["10.0.0.1"]}


@pytest.mark.parametrize("gone", ["deleted", "deleting"])
def test_an_object_that_goes_takes_no_traffic(fed: Fed, gone: str) -> None:
    objects = [
        (kinds.INFERENCE, inference_body()),
        (kinds.FEATURE_COMPUTE, feature_compute_body("user")),
        (kinds.MODEL_ACCESS, model_access_body()),
    ]
    for kind, body in objects:
        fed.put(kind, body)
    assert None not in fed.take().hosts.values()

    for kind, body in objects:
        if gone == "deleted":
            fed.put(kind, body, "DELETED")
        else:
            ending = {**body["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
            fed.put(kind, {**body, "metadata": ending})
    change = fed.take()
    assert set(change.hosts.values()) == set(change.pools.values()) == {None}
    assert change.hosts.keys() == {HostKey.parse("access/ads/ctr"), HostKey.parse("features/ads/user")}


ON_THE_WAY_OUT = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


def test_a_pipeline_has_its_pods_and_what_they_still_call(fed: Fed) -> None:
    for name in ("ctr", "old"):
        fed.put(kinds.INFERENCE, inference_body(name))
    fed.put(kinds.POD, pod_body("i", INFERENCE_LABEL, "old"))
    fed.put(kinds.MODEL_ACCESS, model_access_body("scene", routes=[PIPELINE]))
    calling = {"annotations": {CALLS_ANNOTATION: "old"}, **ON_THE_WAY_OUT}
    fed.put(kinds.POD, pod_body("going", PIPELINE_LABEL, "scene.home", **calling))
    fed.put(kinds.POD, pod_body("p", PIPELINE_LABEL, "scene.home", annotations={CALLS_ANNOTATION: "ctr"}))
    change = fed.take()

    (pool,) = [pool for key, pool in change.pools.items() if str(key) == "Pipeline ads/scene.home"]
    assert pool is not None
    assert [endpoint.address for endpoint in pool.endpoints] == ["10.0.0.1"]
    inside = change.hosts[HostKey.parse("pipeline/ads/scene")]
    assert inside is not None
    assert [(rule.name, rule.unavailable is None) for rule in inside.host.rules] == [
        ("ctr", False),
        ("old", True),
    ]

    # The last pod of before is gone, and with it what only it called.
    fed.put(kinds.POD, pod_body("going", PIPELINE_LABEL, "scene.home", **calling), "DELETED")
    inside = fed.take().hosts[HostKey.parse("pipeline/ads/scene")]
    assert inside is not None
    assert [rule.name for rule in inside.host.rules] == ["ctr"]


def test_all_pods_of_a_pipeline_that_may_still_call_are_let_in_at_its_parts(fed: Fed) -> None:
    """Before they are ready and while they end; not once they have ended, when others may have their addresses."""
    fed.put(kinds.MODEL_ACCESS, model_access_body("scene", routes=[PIPELINE]))

    def guard() -> object:
        inside = fed.take().hosts[HostKey.parse("pipeline/ads/scene")]
        assert inside is not None
        return inside.host.guard

    def put(name: str, status: Mapping[str, Any], *, ready: bool = True, **metadata: Any) -> None:
        body = pod_body(name, PIPELINE_LABEL, "scene.home", ready=ready, **metadata)
        fed.put(kinds.POD, {**body, "status": {**body["status"], **status}})

    assert guard() == ClosedGuard()
    put("in", {"podIP": None}, ready="False")
    assert fed.take().hosts == {}
    both = {"podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.2"}, {"ip": "fd00::2"}]}
    put("in", both, ready="False")
    assert guard() == AddressGuard(("10.0.0.2", "fd00::2"))
    for phase in ("Succeeded", "Failed"):
        put("out", {}, **ON_THE_WAY_OUT)
        assert guard() == AddressGuard(("10.0.0.2", "10.0.0.3", "fd00::2"))
        put("out", {"phase": phase}, **ON_THE_WAY_OUT)
        assert guard() == AddressGuard(("10.0.0.2", "fd00::2"))
    fed.put(kinds.POD, pod_body("in", PIPELINE_LABEL, "scene.home"), "DELETED")
    assert guard() == ClosedGuard()


def test_a_route_that_is_no_pipeline_any_more_takes_its_host_and_pool_along(fed: Fed) -> None:
    fed.put(kinds.INFERENCE, inference_body())
    fed.put(kinds.MODEL_ACCESS, model_access_body("scene", routes=[PIPELINE]))
    fed.take()
    fed.put(kinds.MODEL_ACCESS, model_access_body("scene", routes=[a_route("home")]))
    change = fed.take()

    assert change.hosts[HostKey.parse("pipeline/ads/scene")] is None
    assert {str(key): pool for key, pool in change.pools.items()} == {"Pipeline ads/scene.home": None}


@pytest.mark.parametrize("routes", [[a_route("home")], [{**PIPELINE, "name": "other"}]])
def test_pods_whose_route_is_gone_call_their_models_until_they_end(fed: Fed, routes: list[Any]) -> None:
    """The objects that hold them are deleted at once; what they were asked before, they still have to answer."""
    for name in ("ctr", "old"):
        fed.put(kinds.INFERENCE, inference_body(name))
    calling = {"annotations": {CALLS_ANNOTATION: "old"}}
    fed.put(kinds.MODEL_ACCESS, model_access_body("scene", routes=[PIPELINE]))
    fed.put(kinds.POD, pod_body("p", PIPELINE_LABEL, "scene.home", **calling))
    fed.take()
    fed.put(kinds.MODEL_ACCESS, model_access_body("scene", routes=routes))
    change = fed.take()

    inside = change.hosts[HostKey.parse("pipeline/ads/scene")]
    assert inside is not None
    assert "old" in [rule.name for rule in inside.host.rules]
    gone = {key: pool for key, pool in change.pools.items() if str(key) == "Pipeline ads/scene.home"}
    assert list(gone.values()) == [None]

    # Their model has a pod now, and they are told; then they are on their way out, and then not there any more.
    fed.put(kinds.POD, pod_body("i", INFERENCE_LABEL, "old"))
    inside = fed.take().hosts[HostKey.parse("pipeline/ads/scene")]
    assert inside is not None
    assert {rule.name: rule.unavailable for rule in inside.host.rules}["old"] is None
    fed.put(kinds.POD, pod_body("p", PIPELINE_LABEL, "scene.home", **calling, **ON_THE_WAY_OUT))
    assert None not in fed.take().hosts.values()
    fed.put(kinds.POD, pod_body("p", PIPELINE_LABEL, "scene.home", **calling), "DELETED")
    inside = fed.take().hosts[HostKey.parse("pipeline/ads/scene")]
    assert "old" not in ([] if inside is None else [rule.name for rule in inside.host.rules])


def test_pods_of_others_wake_nobody(fed: Fed) -> None:
    fed.put(kinds.POD, pod_body("p", "app", "something-else"))
    assert fed.wakes == 0
    fed.put(kinds.INFERENCE, inference_body())
    assert fed.wakes == 1


OLD, NEW = "https://login.example.com/old", "https://login.example.com/new"


def tokened(address: str) -> dict[str, Any]:
    return {"jwt": {"issuer": "i", "audiences": ["ads"], "jwksUri": address}}


@pytest.fixture
def trusting() -> Fed:
    """One that asks for keys, and has those of the address `OLD`."""
    fed = Fed()
    fed.routing = IncrementalTranslator(key_hosts=["login.example.com"])
    fed.feed.put_keys(OLD, "old keys")
    return fed


def guard_of(fed: Fed, *awaited: str) -> object:
    """The guard of access ads/ctr, or "closed", if anything became of it; else None."""
    fed.feed.feed_changes(fed.routing, awaited)
    host = fed.routing.take_change().hosts.get(HostKey.parse("access/ads/ctr"))
    if host is None:
        return None
    closed = any(refusal.reason in CALLER_REASONS for refusal in host.refusals)
    return "closed" if closed else host.host.guard


def test_an_access_goes_on_with_its_old_keys_until_its_new_address_has_answered(trusting: Fed) -> None:
    trusting.put(kinds.MODEL_ACCESS, model_access_body(auth=tokened(OLD)))
    assert guard_of(trusting) == TokenGuard("i", ("ads",), "old keys", forward=False)
    trusting.put(kinds.MODEL_ACCESS, model_access_body(auth=tokened(NEW)))
    assert trusting.feed.key_addresses == {"ads": [NEW]}
    assert guard_of(trusting, NEW) is None
    trusting.feed.put_keys(NEW, "new keys")
    assert guard_of(trusting) == TokenGuard("i", ("ads",), "new keys", forward=False)


def test_an_address_that_never_answers_holds_nothing_back_for_good(trusting: Fed) -> None:
    trusting.put(kinds.MODEL_ACCESS, model_access_body(auth=tokened(OLD)))
    guard_of(trusting)
    trusting.put(kinds.MODEL_ACCESS, model_access_body(auth=tokened(NEW)))
    assert guard_of(trusting, NEW) is None
    assert guard_of(trusting) == "closed"


@pytest.mark.parametrize("auth", [None, tokened(NEW)])
def test_what_has_no_keys_to_go_on_with_is_closed_at_once(trusting: Fed, auth: Any) -> None:
    """Above all what everybody could call so far."""
    trusting.put(kinds.MODEL_ACCESS, model_access_body(auth=auth))
    guard_of(trusting, NEW)
    trusting.put(kinds.MODEL_ACCESS, model_access_body(auth=tokened(NEW), hosts=["x.com"]))
    assert guard_of(trusting, NEW) == "closed"


def test_an_access_that_is_deleted_while_its_new_address_is_awaited_is_gone_at_once(trusting: Fed) -> None:
    trusting.put(kinds.MODEL_ACCESS, model_access_body(auth=tokened(OLD)))
    guard_of(trusting)
    trusting.put(kinds.MODEL_ACCESS, model_access_body(auth=tokened(NEW)))
    assert guard_of(trusting, NEW) is None
    trusting.put(kinds.MODEL_ACCESS, model_access_body(auth=tokened(NEW)), "DELETED")
    trusting.feed.feed_changes(trusting.routing, [NEW])
    assert trusting.routing.take_change().hosts == {HostKey.parse("access/ads/ctr"): None}
    assert trusting.feed.key_addresses == {}


def test_addresses_are_named_once_each_by_the_age_of_their_accesses(fed: Fed) -> None:
    for name, address, year in (("a", NEW, 2026), ("b", OLD, 2025), ("c", NEW, 2024), ("d", NEW, 2023)):
        namespace = "shop" if name == "d" else "ads"
        metadata = {"creationTimestamp": f"{year}-01-01T00:00:00Z"}
        fed.put(
            kinds.MODEL_ACCESS, model_access_body(name, namespace, metadata=metadata, auth=tokened(address))
        )
    assert fed.feed.key_addresses == {"ads": [NEW, OLD], "shop": [NEW]}
    named = fed.feed.key_addresses
    fed.put(kinds.POD, pod_body("p", INFERENCE_LABEL, "ctr"))
    assert fed.feed.key_addresses is named


def test_a_shared_spare_answers_for_an_inference_whose_version_it_serves(fed: Fed) -> None:
    def serving(version: str | None) -> Manifest:
        status = {"versions": {"serving": version}} if version else {}
        return {**inference_body("ctr"), "status": status}

    def spares() -> dict[str, Any]:
        pool = fed.take().pools[BackendKey(BackendKind.INFERENCE, "ads", "ctr")]
        assert pool is not None
        shared = pool.spares.pods if pool.spares is not None else ()
        return {
            "own": [endpoint.address for endpoint in pool.endpoints],
            "spares": [endpoint.address for endpoint in shared],
        }

    annotation = {SPARE_MODELS_ANNOTATION: "ctr=3@s,cvr=1@s"}
    fed.put(kinds.INFERENCE, serving("3"))
    fed.put(kinds.POD, pod_body("p", INFERENCE_LABEL, "ctr"))
    fed.put(kinds.POD, pod_body("pp", SPARE_LABEL, "0", annotations=annotation))
    assert spares() == {"own": ["10.0.0.1"], "spares": ["10.0.0.2"]}
    # Its model is not there, or not in the version of the replicas.
    fed.put(kinds.POD, pod_body("pp", SPARE_LABEL, "0", annotations={SPARE_MODELS_ANNOTATION: "cvr=1@s"}))
    assert spares()["spares"] == []
    fed.put(kinds.POD, pod_body("pp", SPARE_LABEL, "0", annotations=annotation))
    assert spares()["spares"] == ["10.0.0.2"]
    fed.put(kinds.INFERENCE, serving("4"))
    assert spares()["spares"] == []
    # Without a replica nothing is known to serve, and the spare is all that there is.
    fed.put(kinds.INFERENCE, serving(None))
    fed.put(kinds.POD, pod_body("p", INFERENCE_LABEL, "ctr"), "DELETED")
    assert spares() == {"own": [], "spares": ["10.0.0.2"]}
    fed.put(kinds.POD, pod_body("pp", SPARE_LABEL, "0", ready="False", annotations=annotation))
    assert spares() == {"own": [], "spares": []}


def pod_without_compiler(state: Mapping[str, Any], restarts: int = 0) -> Manifest:
    """A pod of `ctr` whose compiler has ended at noon, and whose node tells nothing after that."""
    end = {"terminated": {"exitCode": 137, "finishedAt": "2026-01-01T12:00:00Z"}}
    compiler = {
        "name": "compiler",
        "ready": False,
        "restartCount": restarts,
        "lastState": end,
        "state": state,
    }
    body = pod_body("p", INFERENCE_LABEL, "ctr")
    ready = {
        "type": "Ready",
        "status": "False",
        "reason": "ContainersNotReady",
        "lastTransitionTime": "2026-01-01T11:59:00Z",
    }
    statuses = [{"name": "triton", "ready": True}, compiler]
    return {
        **body,
        "status": {**body["status"], "conditions": [ready], "containerStatuses": statuses},
    }


@pytest.mark.parametrize(("restarts", "due_s"), [(0, 70), (1, 80), (4, 220), (5, 360), (900, 360)])
def test_a_pod_serves_without_its_compiler_until_its_kubelet_would_have_restarted_that(
    fed: Fed, restarts: int, due_s: int
) -> None:
    fed.put(kinds.INFERENCE, inference_body("ctr"))
    fed.put(kinds.POD, pod_without_compiler({"waiting": {"reason": "CrashLoopBackOff"}}, restarts))
    assert fed.addresses() == {"Inference ads/ctr": ["10.0.0.1"]}
    assert fed.feed.find_wait_s() == due_s
    fed.now += timedelta(seconds=due_s - 1)
    assert (fed.feed.find_wait_s(), fed.addresses()) == (1.0, {})
    fed.now += timedelta(seconds=1)
    assert (fed.feed.find_wait_s(), fed.addresses()) == (0.0, {"Inference ads/ctr": []})
    assert (fed.feed.find_wait_s(), fed.addresses()) == (None, {})
    fed.put(kinds.POD, pod_body("p", INFERENCE_LABEL, "ctr"))
    assert fed.addresses() == {"Inference ads/ctr": ["10.0.0.1"]}
    assert fed.feed.find_wait_s() is None


def test_a_compiler_that_cannot_be_started_costs_no_requests(fed: Fed) -> None:
    fed.put(kinds.INFERENCE, inference_body("ctr"))
    fed.put(kinds.POD, pod_without_compiler({"waiting": {"reason": "CreateContainerError"}}))
    fed.now += timedelta(days=1)
    assert fed.addresses() == {"Inference ads/ctr": ["10.0.0.1"]}
    assert fed.feed.find_wait_s() is None


def test_the_cluster_of_an_inference_with_spares_stays_the_same_whichever_of_its_pods_serve(fed: Fed) -> None:
    """Gateways replace a changed cluster, with its connections and ejections."""

    def read_clusters() -> dict[PoolKey, bytes]:
        return {
            key: encode_cluster("c", pool, InferenceProtocol.GRPC)
            for key, pool in fed.take().pools.items()
            if pool is not None
        }

    shared = BackendKey(BackendKind.INFERENCE, "ads", "ctr")
    fed.put(kinds.INFERENCE, inference_body("ctr"))
    fed.put(kinds.MODEL_ACCESS, model_access_body("ctr", protection={"maxConcurrent": 9}))
    fed.put(kinds.POD, pod_body("p", INFERENCE_LABEL, "ctr"))
    plain = read_clusters()
    assert len(plain) == 2
    spare = pod_body("pp", SPARE_LABEL, "0", annotations={SPARE_MODELS_ANNOTATION: "ctr=3@s"})
    fed.put(kinds.POD, spare)
    checked = read_clusters()
    assert checked[shared] != plain[shared]

    without_it = pod_body("pp", SPARE_LABEL, "0", annotations={SPARE_MODELS_ANNOTATION: ""})
    for body, event in (
        (pod_body("p", INFERENCE_LABEL, "ctr"), "DELETED"),
        (without_it, "MODIFIED"),
        (spare, "MODIFIED"),
        (spare, "DELETED"),
        (pod_body("p", INFERENCE_LABEL, "ctr"), "MODIFIED"),
    ):
        fed.put(kinds.POD, body, event)
        assert read_clusters() == checked

    # Anyone may write any names into their pod's annotation: those without an Inference are not kept.
    for number in range(50):
        names = ",".join(f"made-up-{number}-{name}=1@s" for name in range(100))
        fed.put(kinds.POD, pod_body("pp", SPARE_LABEL, "0", annotations={SPARE_MODELS_ANNOTATION: names}))
    assert len(fed.feed._had_spares) == 1 + MAX_SHARED_MODELS
    fed.put(kinds.POD, without_it)
    assert len(fed.feed._had_spares) == 1
    assert read_clusters() == {}

    # A new one of the same name has none.
    fed.put(kinds.INFERENCE, inference_body("ctr"), "DELETED")
    fed.take()
    fed.put(kinds.INFERENCE, inference_body("ctr"))
    assert read_clusters() == plain
