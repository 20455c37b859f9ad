"""How far the autoscaler of an Inference may go in its pool, and when it is told so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from builders.allocator import a_member, observed
from builders.inference import an_inference
from tidegate.api.compute_pool import PolicyMode
from tidegate.api.inference import Tier
from tidegate.api.meta import ObjectKey
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import HORIZONTAL_POD_AUTOSCALER, Kind
from tidegate.kube.port import Manifest
from tidegate.kube.store import ObjectStore
from tidegate.planning.inference.autoscalers import (
    AutoscalerView,
    compute_max_replicas,
    explain_unbounded,
    make_bound_patch,
    parse_autoscaler,
)
from tidegate_controllers.allocator.autoscalers import AutoscalerLimits


def autoscaler(
    least: int = 1, most: int = 10, *, own: str | None = "10", bounded: str | None = None, **target: str
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "ctr",
            "namespace": "ads",
            "resourceVersion": "7",
            "labels": {} if own is None else {"tidegate.io/max-replicas": own},
            "annotations": {} if bounded is None else {"tidegate.io/bounded-to": bounded},
        },
        "spec": {
            "minReplicas": least,
            "maxReplicas": most,
            "scaleTargetRef": {
                "apiVersion": "tidegate.io/v1alpha1",
                "kind": "Inference",
                "name": "ctr",
                **target,
            },
        },
    }


def view(*bounds: int, **more: Any) -> AutoscalerView:
    found = parse_autoscaler(autoscaler(*bounds, **more))
    assert found is not None
    return found


CTR = a_member(held=2, least=2, most=None)


def test_what_others_have_beyond_their_least_can_be_had() -> None:
    batch = a_member("batch", held=5, least=0, tier=Tier.OFFLINE)
    assert compute_max_replicas(observed(CTR, batch), CTR) == 8
    kept = a_member("batch", held=5, least=3, tier=Tier.OFFLINE)
    assert compute_max_replicas(observed(CTR, kept), CTR) == 5


@pytest.mark.parametrize("held", [1, 2, 7])
def test_the_figure_does_not_change_with_what_it_has_itself(held: int) -> None:
    member = a_member(held=held, least=held, most=None)
    other = a_member("other", held=1, least=1, most=None)
    assert compute_max_replicas(observed(member, other), member) == 7


def test_floors_of_other_tiers_and_the_ceiling_of_its_own_are_kept() -> None:
    tiers = {"offline": {"floor": 2}, "realtime": {"ceiling": 5}}
    assert compute_max_replicas(observed(CTR, tiers=tiers), CTR) == 5
    other = a_member("other", held=1, least=1, most=None)
    assert compute_max_replicas(observed(CTR, other, tiers=tiers), CTR) == 4
    assert compute_max_replicas(observed(CTR, tiers={"offline": {"floor": 6}}), CTR) == 2


def test_replicas_of_several_slices_are_counted_whole() -> None:
    large = a_member(held=1, least=1, most=None, slices=3)
    assert compute_max_replicas(observed(large), large) == 2


def test_what_is_left_out_keeps_what_it_has() -> None:
    moving = a_member("moving", held=3, apart="moves here")
    assert compute_max_replicas(observed(CTR, moving), CTR) == 5


def test_never_more_than_its_author_wants_nor_less_than_its_minimum() -> None:
    assert make_bound_patch(view(), 4) == {
        "metadata": {"resourceVersion": "7", "annotations": {"tidegate.io/bounded-to": "4"}},
        "spec": {"maxReplicas": 4},
    }
    assert (make_bound_patch(view(3, 10), 0) or {})["spec"] == {"maxReplicas": 3}
    assert (make_bound_patch(view(1, 4, bounded="4"), 50) or {})["spec"] == {"maxReplicas": 10}


def test_it_is_told_once_and_not_corrected() -> None:
    assert make_bound_patch(view(1, 4, bounded="4"), 4) is None
    # Somebody has put their own back: nothing is written until the pool has another figure.
    assert make_bound_patch(view(1, 10, bounded="4"), 4) is None
    assert make_bound_patch(view(1, 10, bounded="4"), 5) is not None
    # It has room for all that its author wants, and was never told anything.
    assert make_bound_patch(view(1, 10), 12) is None


@pytest.mark.parametrize("own", ["many", "0", "-1", "1.5", ""])
def test_nothing_is_written_where_the_mark_is_no_number(own: str) -> None:
    assert make_bound_patch(view(1, 6, own=own), 3) is None
    assert make_bound_patch(view(1, 3, own=own, bounded="3"), 50) is None


@pytest.mark.parametrize("given", [(7, 1), (4, 4), (1, 1)])
def test_two_that_wish_for_more_than_there_is_do_not_swing(given: tuple[int, int]) -> None:
    """Each follows its bound at once, as autoscalers do; the pool takes from nobody what he has."""
    wishes, names, held = 7, ("a", "b"), list(given)
    seen = list[tuple[int, ...]]()
    for _ in range(6):
        wanted = [wishes if not seen else min(wishes, seen[-1][number]) for number in range(2)]
        members = [
            a_member(name, held=held[number], least=wanted[number], most=None)
            for number, name in enumerate(names)
        ]
        marked = {member.key for member in members}
        seen.append(tuple(compute_max_replicas(observed(*members), member, marked) for member in members))
        free = 8 - sum(held)
        for number in range(2):
            got = min(max(wanted[number] - held[number], 0), free)
            free -= got
            held[number] = min(held[number] + got, max(wanted[number], 1))
    assert len(set(seen[2:])) == 1, seen
    assert all(most >= kept for most, kept in zip(seen[-1], held, strict=True)), (seen, held)


def test_what_scales_something_else_is_none_of_ours() -> None:
    assert parse_autoscaler(autoscaler(kind="Deployment", apiVersion="apps/v1")) is None
    assert parse_autoscaler(autoscaler(apiVersion="elsewhere.io/v1")) is None


def test_an_autoscaler_without_a_bound_is_told_why() -> None:
    assert explain_unbounded(view(), CTR) == ""
    assert "must be a whole number above 0" in explain_unbounded(view(own="many"), CTR)
    several = an_inference(replicas=2, placement={"pools": [{"name": "cpu-a"}, {"name": "cpu-b"}]})
    problem = explain_unbounded(view(), replace(CTR, inference=several))
    assert problem.startswith("Inference ads/ctr runs in several pools, and none of them bounds it alone")


class Cluster:
    """Keeps the patches of autoscalers by name."""

    def __init__(self) -> None:
        self.patches: dict[str, Manifest] = {}

    async def merge(self, kind: Kind, key: ObjectKey, patch: Manifest, fence: Fence) -> None:
        del fence
        assert kind == HORIZONTAL_POD_AUTOSCALER
        self.patches[key.name] = patch


async def test_an_autoscaler_that_cannot_be_read_keeps_no_other_from_its_bound() -> None:
    cluster, store = Cluster(), ObjectStore(HORIZONTAL_POD_AUTOSCALER)
    limits = AutoscalerLimits(cast(Any, cluster), store)
    odd = autoscaler()
    odd["metadata"]["name"] = "a-first"
    for body in ({**odd, "spec": None}, autoscaler()):
        store.observe("ADDED", body)
    seen = observed(CTR, policy={"mode": "Auto"}, slices=(4,))
    assert seen.effective_mode is PolicyMode.AUTO

    await limits.limit_autoscalers(seen, Fence.unlimited(1))

    assert {name: patch["spec"] for name, patch in cluster.patches.items()} == {"ctr": {"maxReplicas": 4}}
    assert [key.name for key in store.left_out] == ["a-first"]


async def test_a_bound_is_written_for_the_version_that_the_cache_has() -> None:
    """Also where nothing but the version has changed, which no subscriber of the cache hears of."""
    cluster, store = Cluster(), ObjectStore(HORIZONTAL_POD_AUTOSCALER)
    limits = AutoscalerLimits(cast(Any, cluster), store)
    for version in ("7", "8"):
        body = autoscaler()
        body["metadata"]["resourceVersion"] = version
        store.observe("MODIFIED", body)

    await limits.limit_autoscalers(observed(CTR, policy={"mode": "Auto"}, slices=(4,)), Fence.unlimited(1))

    assert cluster.patches["ctr"]["metadata"]["resourceVersion"] == "8"
