"""GPUs shared by ResourceClaims: which claim an Inference is given, what becomes of claims, and which pods are let in."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.compute_pool import a_compute_pool, gpu_slice_body, node_body, pod_on
from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import ModelFormat, Tier
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.planning.claims import Claim, GpuShare, seated_pod
from tidegate.planning.compute_pool import PoolObserved, plan_pool
from tidegate.planning.deployments import DeploymentView
from tidegate.planning.gpu_choice import GpuLedger
from tidegate.planning.nodes import node_view
from tidegate.planning.placement import Placing, place
from tidegate.planning.pods import pod_view
from tidegate.planning.pool_claims import PoolClaims
from tidegate.planning.pool_slices import PoolSlices, pool_slices
from tidegate.planning.shared_claims import ClaimPod, ClaimsPlan, ClaimView, claim_pod, plan_claims
from tidegate.resources.pod import SLICE_GATE
from tidegate.resources.sharing.choice import sharing_of
from tidegate.resources.sharing.gpus import Gpu, published_gpus
from tidegate.resources.sharing.shared_claim import claim_name, is_current, resource_claim

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MIB = 1 << 20
MPS = {"backend": "SharedClaim", "slicesPerGPU": 4, "runAsUser": 1000, "cpu": "2", "memory": "8Gi"}


def a_pool(**mps: Any) -> ComputePool:
    return a_compute_pool("gpu-a", slice={"cpu": None, "mps": {**MPS, **mps}})


def slices_of(
    pool: ComputePool, gpus: int, claims: dict[int, str] | None = None, **published: Any
) -> PoolSlices:
    """The slices of one node with so many GPUs; `claims` are those that have some of them."""
    held = claims or {}
    body = gpu_slice_body("gpu-0", gpus, **published)
    found = tuple(
        Gpu(one, ObjectKey("ads", held[index]), "gpu-a") if index in held else Gpu(one)
        for index, one in enumerate(published_gpus(body))
    )
    node = replace(node_view(node_body("gpu-0", cpu="64", memory="256Gi")), gpus=found)
    return pool_slices(pool, [node], {})


def a_claim(
    name: str, replicas: int, namespace: str = "ads", on: str = "", held: int = 0, **more: Any
) -> Claim:
    """An Inference's claim on the pool; `on` is the ResourceClaim where its Deployment holds `held` slices."""
    gpus = {on: GpuShare(held, held)} if on else {}
    key, made = ObjectKey(namespace, name), more.pop("made", "")
    return Claim(key, Tier.REALTIME, 1, replicas, held, made, gpu_claim=on, **{"gpus": gpus, **more})


def placed(wanted: Claim, *others: Claim, pool: ComputePool | None = None, gpus: int = 1) -> Placing:
    pool = pool or a_pool()
    live = None
    if wanted.held:
        live = DeploymentView({}, complete=True, overdue=False, replicas=wanted.held, pool="gpu-a", slices=1)
    return place(wanted, live, pool, slices_of(pool, gpus), PoolClaims((wanted, *others)))


FIRST, SECOND = claim_name("gpu-a", 4, 0), claim_name("gpu-a", 4, 1)


def test_a_claim_is_one_gpu_under_mps_with_the_whole_parts_of_it() -> None:
    body: Any = resource_claim(a_pool(slicesPerGPU=7), ObjectKey("ads", "c"), 81559 * MIB + 5)
    request, config = body["spec"]["devices"]["requests"][0], body["spec"]["devices"]["config"][0]
    assert request["exactly"]["deviceClassName"] == "gpu.nvidia.com"
    assert config["requests"] == [request["name"]]
    limits = config["opaque"]["parameters"]["sharing"]["mpsConfig"]
    assert limits == {"defaultActiveThreadPercentage": 14, "defaultPinnedDeviceMemoryLimit": "11651Mi"}
    assert 7 * 11651 <= 81559
    # A smaller GPU would have its memory given away more than once.
    (selector,) = request["exactly"]["selectors"]
    assert "quantity('81559Mi')) >= 0" in selector["cel"]["expression"]
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("ComputePool", "gpu-a")


@pytest.mark.parametrize(
    ("name", "current"),
    [
        (claim_name("gpu-a", 4, 0), True),
        (claim_name("gpu-a", 4, 17), True),
        (claim_name("gpu-a", 2, 0), False),
        (claim_name("gpu-a-4", 4, 0), False),
        (claim_name("gpu-b", 4, 0), False),
        ("tidegate-gpu-a-4-", False),
        ("", False),
    ],
)
def test_a_claims_name_says_whose_it_is_and_of_which_size(name: str, current: bool) -> None:
    assert is_current(name, "gpu-a", 4) is current


def test_names_of_long_pools_do_not_meet() -> None:
    one, other = (f"{'a' * 60}-{end}" for end in "xy")
    assert claim_name(one, 4, 0) != claim_name(other, 4, 0)
    assert len(claim_name(one, 48, 1000)) <= 63


def test_a_pod_names_its_claim_and_waits_at_the_gate_and_asks_for_no_device_of_the_plugin() -> None:
    seat = sharing_of(a_pool()).seat(1, Tier.OFFLINE)
    assert (seat.devices, seat.run_as_user, seat.shared_memory_of_node) == ({}, 1000, True)
    assert seat.env == {"CUDA_MPS_CLIENT_PRIORITY": "1"}
    assert "nvidia.com/mps.capable" not in seat.node_selector


def test_slices_are_those_of_gpus_that_nobody_else_has() -> None:
    pool = a_pool()
    assert slices_of(pool, 3).total == 12
    assert slices_of(pool, 3, {0: FIRST}).total == 12
    assert slices_of(pool, 3, {0: "somebodys", 1: FIRST}).total == 8
    assert slices_of(pool, 3, tainted=(1,)).total == 8
    assert slices_of(pool, 3, kind="mig").total == 0


@pytest.mark.parametrize(
    ("others", "replicas", "gpus", "claim", "given"),
    [
        pytest.param((), 3, 1, FIRST, 3, id="a GPU that nobody has"),
        pytest.param((a_claim("a", 3, on=FIRST, held=3),), 1, 2, FIRST, 1, id="beside others"),
        pytest.param((a_claim("a", 3, on=FIRST, held=3),), 2, 2, SECOND, 2, id="no room beside them"),
        pytest.param((a_claim("a", 3, on=FIRST, held=3),), 2, 1, FIRST, 1, id="as many as there are"),
        pytest.param((a_claim("a", 4, on=FIRST, held=4),), 2, 1, "", 0, id="nothing left"),
        pytest.param((a_claim("a", 1, "cvr", on=FIRST, held=1),), 2, 2, FIRST, 2, id="another namespace's"),
        pytest.param((a_claim("a", 1, "cvr", on=FIRST, held=1),), 2, 1, "", 0, id="that is no room"),
        pytest.param((), 6, 2, FIRST, 4, id="more than one GPU has"),
        pytest.param(
            (a_claim("a", 1, on=FIRST, held=1), a_claim("b", 2, on=SECOND, held=2)),
            *(2, 2, SECOND, 2),
            id="the fullest with room",
        ),
        pytest.param(
            (a_claim("a", 0, gpus={FIRST: GpuShare(4, 4)}),), 2, 2, SECOND, 2, id="pods on their way out"
        ),
    ],
)
def test_an_inference_gets_a_gpu(
    others: tuple[Claim, ...], replicas: int, gpus: int, claim: str, given: int
) -> None:
    pool = a_pool()
    wanted = a_claim("ctr", replicas)
    ledger = GpuLedger.of(pool, 4, slices_of(pool, gpus).gpus, PoolClaims((wanted, *others)))
    assert ledger.give(wanted, replicas) == given
    choice = ledger.choice(wanted.key)
    assert choice is not None
    assert choice.claim == claim


def test_who_has_a_gpu_stays_there_and_grows_no_further_than_it() -> None:
    wanted = a_claim("ctr", 4, on=SECOND, held=2)
    placing = placed(wanted, a_claim("b", 1, on=SECOND, held=1), gpus=4)
    assert placing.seat is not None
    assert (placing.seat.gpu_claim, placing.replicas) == (SECOND, 3)
    assert placing.verdict.reason is Reason.POOL_FULL
    assert f"gives 3 of 4 replicas: ResourceClaim {SECOND} has no more slices" in placing.verdict.message


def test_replicas_that_no_gpu_has_are_nobodys_loss() -> None:
    """Who wants more than a GPU has is first by age, and the other GPU is free."""
    many = a_claim("a", 50, made="2025")
    other = a_claim("b", 2, "zzz", made="2026")
    assert placed(many, other, gpus=2).replicas == 4
    placing = placed(other, many, gpus=2)
    assert (placing.replicas, placing.verdict.reason) == (2, Reason.PLACED)


def test_those_who_want_to_grow_on_a_full_gpu_leave_the_free_one_to_others() -> None:
    grows = a_claim("a", 4, on=FIRST, held=3, made="2024")
    beside = a_claim("c", 4, on=FIRST, held=1, made="2025")
    newcomer = a_claim("b", 4, "zzz", made="2026")
    placing = placed(newcomer, grows, beside, gpus=2)
    assert (placing.replicas, placing.verdict.reason) == (4, Reason.PLACED)


def test_slices_of_others_namespaces_are_kept_for_nobody() -> None:
    """An older Inference has no GPU to go to: what is left on those that there are is for who is there."""
    there = a_claim("p1", 2, "p", on=FIRST, held=2), a_claim("q", 4, "q", on=FIRST, held=4)
    older, grows = a_claim("w", 4, "r", made="2024"), a_claim("p2", 2, "p", made="2026")
    assert placed(older, grows, *there, gpus=2).replicas == 0
    placing = placed(grows, older, *there, gpus=2)
    assert (placing.replicas, placing.verdict.reason) == (2, Reason.PLACED)


def test_who_stays_on_a_gpu_of_another_size_takes_no_slice_of_those_of_the_new_size() -> None:
    smaller = a_pool(slicesPerGPU=2)
    stays, newcomer = a_claim("a", 2, on=FIRST, held=2), a_claim("b", 2)
    slices = slices_of(smaller, 2, {0: FIRST})
    placing = place(newcomer, None, smaller, slices, PoolClaims((stays, newcomer)))
    assert (placing.replicas, placing.verdict.reason) == (2, Reason.PLACED)


def test_nobodys_share_shrinks_for_pods_that_others_have_for_a_while() -> None:
    surging = a_claim("b", 2, on=FIRST, gpus={FIRST: GpuShare(3, 3)})
    placing = placed(a_claim("ctr", 2, on=FIRST, held=2), surging)
    assert placing.replicas == 2


@pytest.mark.parametrize(
    ("wanted", "others", "words"),
    [
        (a_claim("ctr", 6), (), "of 6 replicas: all replicas of an Inference share one GPU of 4"),
        (
            a_claim("ctr", 1),
            (a_claim("b", 1, "other", on=FIRST, held=1),),
            "each of 1 GPUs is shared by a ResourceClaim already, and none of namespace ads has a free slice",
        ),
    ],
)
def test_the_figures_of_the_gpu_are_said(wanted: Claim, others: tuple[Claim, ...], words: str) -> None:
    placing = placed(wanted, *others)
    assert placing.verdict.reason is Reason.POOL_FULL
    assert words in placing.verdict.message
    assert placed(replace(wanted, replicas=1)).verdict.reason is Reason.PLACED


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (a_claim("ctr", 1, scaled=True), Reason.SCALING_UNSUPPORTED),
        (a_claim("ctr", 1, model=ModelFormat.PYTHON), Reason.MODEL_NOT_SHAREABLE),
        (replace(a_claim("ctr", 1), slices=2), Reason.TOO_MANY_SLICES),
        (a_claim("ctr", 1), Reason.PLACED),
    ],
)
def test_what_cannot_be_shared_so_is_refused(wanted: Claim, reason: Reason) -> None:
    placing = placed(wanted)
    assert placing.verdict.reason is reason
    assert placing.replicas == int(reason is Reason.PLACED)


def test_after_a_change_of_size_pods_stay_until_the_last_of_them_is_gone() -> None:
    smaller, old = a_pool(slicesPerGPU=3), FIRST
    wanted = a_claim("ctr", 3, on=old, held=2)
    stays = placed(wanted, pool=smaller, gpus=2)
    assert stays.seat is not None
    assert (stays.seat.gpu_claim, stays.replicas) == (old, 2)
    assert "drain its node" in stays.verdict.message

    gone = replace(wanted, gpus={old: GpuShare(2, 0)})
    drained = placed(gone, pool=smaller, gpus=2)
    assert drained.seat is not None
    assert (drained.seat.gpu_claim, drained.replicas) == (claim_name("gpu-a", 3, 0), 3)
    assert drained.verdict.reason is Reason.PLACED

    # There they are fewer, and no pod is left that would be protected by waiting.
    fewer = placed(replace(gone, replicas=4, held=4), pool=smaller, gpus=2)
    assert fewer.seat is not None
    assert (fewer.seat.gpu_claim, fewer.replicas) == (claim_name("gpu-a", 3, 0), 3)
    assert "share one GPU of 3 slices" in fewer.verdict.message
    nowhere = placed(gone, a_claim("b", 3, "other", on=claim_name("gpu-a", 3, 0), held=3), pool=smaller)
    assert (nowhere.seat, nowhere.replicas) == (None, 2)


def test_a_gpu_of_another_size_is_named_and_its_slices_are_not_counted() -> None:
    smaller = a_pool(slicesPerGPU=2)
    slices = slices_of(smaller, 2, {1: FIRST})
    assert (slices.total, slices.healthy, slices.gpus) == (2, 2, 1)
    said = _condition(plan_pool(PoolObserved(smaller, NOW, slices)), "SharingConfigured")
    assert said["reason"] == "SharingNotConfigured"
    assert f"which has ResourceClaim ads/{FIRST} of another slicesPerGPU than 2" in said["message"]
    assert "kubectl drain gpu-0" in said["message"]
    all_old = plan_pool(PoolObserved(smaller, NOW, slices_of(smaller, 1, {0: FIRST})))
    assert (
        "no GPU is shared out as spec.slice says yet: node gpu-0" in _condition(all_old, "Ready")["message"]
    )
    well = plan_pool(PoolObserved(a_pool(), NOW, slices_of(a_pool(), 2, {1: FIRST})))
    assert _condition(well, "SharingConfigured")["status"] == "True"


def test_what_is_missing_is_said_before_any_node_is_named() -> None:
    pool = a_pool()
    unpublished = pool_slices(pool, [node_view(node_body("gpu-0", cpu="64", memory="256Gi"))], {})
    nodes = _condition(plan_pool(PoolObserved(pool, NOW, unpublished)), "SharingConfigured")
    assert "has no GPU in a ResourceSlice of the driver gpu.nvidia.com" in nodes["message"]
    observed = PoolObserved(pool, NOW, unpublished, claims_missing="there is no DeviceClass")
    assert _condition(plan_pool(observed), "SharingConfigured")["message"] == "there is no DeviceClass"


def _condition(plan: Any, kind: str) -> dict[str, Any]:
    return next((each for each in plan.status["conditions"] if each["type"] == kind), {})


def a_pod(number: int, claim: str = FIRST, **more: Any) -> ClaimPod:
    gates = (SLICE_GATE,) if more.pop("waits", False) else ()
    key = ObjectKey("ads", f"p-{number}")
    return ClaimPod(
        key, ObjectKey("ads", claim), "1", gates, **{"leaving": False, "inference": "ctr", **more}
    )


def live(*names: str, leaving: bool = False) -> list[ClaimView]:
    return [ClaimView(ObjectKey("ads", name), f"uid-{name}", leaving) for name in names]


def test_claims_that_were_given_are_made_and_those_of_nobody_deleted() -> None:
    claims = PoolClaims((a_claim("ctr", 2, on=FIRST, held=2),))
    pool = a_pool()
    assert plan_claims(pool, claims, [], ()).make == (ObjectKey("ads", FIRST),)
    assert plan_claims(pool, claims, live(FIRST), ()) == ClaimsPlan()
    (gone,) = plan_claims(pool, claims, live(FIRST, SECOND), ()).delete
    assert gone.key.name == SECOND
    # One that is on its way out is neither deleted again nor made before it is gone.
    assert plan_claims(pool, PoolClaims(), live(FIRST, leaving=True), ()) == ClaimsPlan()
    assert plan_claims(pool, claims, live(FIRST, leaving=True), ()) == ClaimsPlan()


def test_a_claim_of_another_size_stays_while_it_has_pods_and_gets_no_others() -> None:
    claims, smaller = PoolClaims((a_claim("ctr", 2, on=FIRST, held=2),)), a_pool(slicesPerGPU=2)
    pods = (a_pod(0), a_pod(1, waits=True))
    assert plan_claims(smaller, claims, live(FIRST), pods) == ClaimsPlan()
    assert plan_claims(a_pool(), claims, live(FIRST), pods).admit == (pods[1],)


def test_pods_are_let_in_while_there_are_slices_realtime_first_and_then_by_age() -> None:
    claims = PoolClaims((a_claim("ctr", 4, on=FIRST, held=4),))
    inside = (a_pod(0), a_pod(1, leaving=True))
    waiting = [
        a_pod(2, waits=True, tier="offline", made="1"),
        a_pod(3, waits=True, tier="realtime", made="3"),
        a_pod(4, waits=True, tier="realtime", made="2"),
        a_pod(5, waits=True, tier="realtime", made="0", leaving=True),
    ]
    admitted = plan_claims(a_pool(), claims, live(FIRST), (*inside, *waiting)).admit
    assert [pod.key.name for pod in admitted] == ["p-4", "p-3"]
    assert plan_claims(a_pool(), claims, [], waiting).admit == ()
    assert plan_claims(a_pool(), claims, live(FIRST, leaving=True), waiting).admit == ()


def test_a_pod_of_a_surge_takes_no_slice_that_another_inference_was_given() -> None:
    surging, waits = a_claim("surging", 2, on=FIRST, held=2), a_claim("waits", 2, on=FIRST, held=2)
    claims = PoolClaims((surging, waits))
    inside = (a_pod(0, inference="surging"), a_pod(1, inference="surging"), a_pod(2, inference="waits"))
    surge = a_pod(3, inference="surging", waits=True, tier="realtime", made="1")
    own = a_pod(4, inference="waits", waits=True, tier="offline", made="2")
    assert plan_claims(a_pool(), claims, live(FIRST), (*inside, surge, own)).admit == (own,)
    # Nor before the other's pod has been made again.
    assert plan_claims(a_pool(), claims, live(FIRST), (*inside, surge)).admit == ()
    fewer = PoolClaims((surging, replace(waits, gpus={FIRST: GpuShare(1, 1)})))
    assert plan_claims(a_pool(), fewer, live(FIRST), (*inside, surge)).admit == (surge,)


def test_a_pod_takes_its_slice_until_it_has_ended() -> None:
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimName": FIRST}]}
    metadata = {"name": "p", "namespace": "ads", "resourceVersion": "5", "deletionTimestamp": "now"}
    body: dict[str, Any] = {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}
    found = claim_pod(body)
    assert found is not None
    assert (found.claim.name, found.waits, found.leaving) == (FIRST, False, True)
    assert claim_pod({**body, "status": {"phase": "Failed"}}) is None
    assert claim_pod({**body, "spec": {}}) is None


def test_a_pod_at_the_gate_says_what_it_waits_for() -> None:
    body = pod_on("", name="p")
    body["spec"] |= {
        "resourceClaims": [{"name": "gpu", "resourceClaimName": FIRST}],
        "schedulingGates": [{"name": SLICE_GATE}],
    }
    assert pod_view(body).unschedulable == f"waits until ResourceClaim {FIRST} has a slice of its GPU for it"
    assert pod_view({**body, "spec": {**body["spec"], "schedulingGates": []}}).unschedulable == ""
    body["metadata"]["labels"] |= {"tidegate.io/pool": "gpu-a", "tidegate.io/slices": "1"}
    body["spec"]["nodeName"] = "gpu-0"
    seated = seated_pod(body)
    assert seated is not None
    assert seated.gpu_claim == FIRST


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 6), st.sampled_from(["ads", "cvr"])), max_size=30
    ),
    gpus=st.integers(1, 3),
)
def test_no_gpu_is_ever_given_more_often_than_it_has_slices(
    steps: list[tuple[int, int, str]], gpus: int
) -> None:
    """Inferences come, grow, shrink and go; what each is given is what it holds from then on."""
    pool, all_claims = a_pool(), PoolClaims()
    slices, given_before = slices_of(pool, gpus), dict[ObjectKey, tuple[str, int]]()
    for number, replicas, namespace in steps:
        key = ObjectKey(namespace, f"m-{number}")
        on, held = given_before.get(key, ("", 0))
        wanted = a_claim(key.name, replicas, namespace, on=on if held else "", held=held)
        all_claims.put(wanted)
        live = DeploymentView({}, complete=True, overdue=False, replicas=held, pool="gpu-a", slices=1)
        placing = place(wanted, live, pool, slices, all_claims)
        assert placing.seat is not None
        claim = placing.seat.gpu_claim
        assert bool(claim) == bool(placing.replicas)
        assert not held or not placing.replicas or claim == on
        given_before[key] = (claim, placing.replicas)
        all_claims.put(a_claim(key.name, replicas, namespace, on=claim, held=placing.replicas))
        taken = GpuLedger.of(pool, 4, gpus, all_claims).taken
        assert all(count <= 4 for count in taken.values())
        assert len([count for count in taken.values() if count]) <= gpus


@given(
    wanted=st.lists(
        st.tuples(
            st.integers(0, 5),
            st.integers(1, 60),
            st.sampled_from(["ads", "cvr", "zzz"]),
            st.sampled_from(["", "2025", "2026"]),
        ),
        max_size=12,
        unique_by=lambda each: (each[0], each[2]),
    ),
    gpus=st.integers(1, 4),
    data=st.data(),
)
def test_nobody_is_refused_while_a_gpu_is_free(
    wanted: list[tuple[int, int, str, str]], gpus: int, data: st.DataObject
) -> None:
    """In whichever order they are looked at; then some grow or shrink, and are looked at again."""
    pool = a_pool()
    slices, all_claims = slices_of(pool, gpus), PoolClaims()
    names = [ObjectKey(namespace, f"m-{number}") for number, _, namespace, _ in wanted]
    replicas = {key: each[1] for key, each in zip(names, wanted, strict=True)}
    made = {key: each[3] for key, each in zip(names, wanted, strict=True)}
    has = dict.fromkeys(names, ("", 0))

    def put(key: ObjectKey) -> Claim:
        on, held = has[key]
        more = {"on": on if held else "", "held": held, "made": made[key]}
        each = a_claim(key.name, replicas[key], key.namespace, **more)
        all_claims.put(each)
        return each

    for grown in (False, True):
        if grown:
            replicas |= {key: data.draw(st.integers(1, 60)) for key in names if data.draw(st.booleans())}
        for key in names:
            put(key)
        order = data.draw(st.permutations(names))
        # Twice, since what one gives back is of use to those looked at before.
        for key in order * 2:
            held = has[key][1]
            live = DeploymentView({}, complete=True, overdue=False, replicas=held, pool="gpu-a", slices=1)
            placing = place(put(key), live, pool, slices, all_claims)
            assert placing.seat is not None
            has[key] = placing.seat.gpu_claim, placing.replicas
            put(key)
        taken = GpuLedger.of(pool, 4, gpus, all_claims).taken
        if len(taken) < gpus:
            assert all(count for _, count in has.values())
        for key, (on, count) in has.items():
            if not count:
                assert all(taken[each] == 4 for each in taken if each.namespace == key.namespace)
            elif count < min(replicas[key], 4):
                assert taken[ObjectKey(key.namespace, on)] == 4
