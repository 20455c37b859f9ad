"""Carrying a plan out: whose objects are written, waited for, or left alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from builders.inference import an_inference, inference_body
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.errors import PermanentError, RetryableError
from tidegate.kube.changes import compute_digest
from tidegate.kube.fence import CREATED_ANNOTATION, Fence
from tidegate.kube.kinds import INFERENCE, Kind
from tidegate.kube.port import ClusterApi, Manifest
from tidegate.planning.inference.deletion_order import COST_ANNOTATION, FIRST_COST, PodCost
from tidegate.planning.plan import ReconcilePlan
from tidegate.resources.names import MANAGED_BY, MANAGER
from tidegate_controllers.applier import Applier
from tidegate_controllers.stores import Stores

OWNER = an_inference()
BODY = {**inference_body(), "status": {"observedGeneration": 1}}
"""As it is once a status was written."""
CHILD: Mapping[str, Any] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {
        "name": "inf-ctr",
        "namespace": "ads",
        "labels": {MANAGED_BY: MANAGER},
        "ownerReferences": [{"uid": OWNER.metadata.uid}],
    },
}


@dataclass
class OneObject:
    """A cluster that holds the owner, and `live` under whatever other name it is asked for."""

    live: Manifest | None
    owner: Manifest | None
    applied: list[Manifest] = field(default_factory=list[Manifest])
    created: list[Manifest] = field(default_factory=list[Manifest])
    taken_over: list[ObjectKey] = field(default_factory=list[ObjectKey])
    read: list[Kind] = field(default_factory=list[Kind])
    merged: list[tuple[ObjectKey, Manifest]] = field(default_factory=list[tuple[ObjectKey, Manifest]])
    refusal: Exception | None = None
    """What it says to merges."""

    async def get(self, kind: Kind, key: ObjectKey) -> Manifest | None:
        del key
        self.read.append(kind)
        return self.owner if kind == INFERENCE else self.live

    async def apply(self, manifest: Manifest, fence: Fence) -> Manifest:
        del fence
        self.applied.append(manifest)
        return manifest

    async def apply_new(self, manifest: Manifest, fence: Fence) -> Manifest | None:
        del fence
        if self.live is not None:
            return None
        self.created.append(manifest)
        return manifest

    async def take_over(self, kind: Kind, key: ObjectKey, fence: Fence) -> Manifest | None:
        del kind, fence
        self.taken_over.append(key)
        return self.live

    async def merge(self, kind: Kind, key: ObjectKey, patch: Manifest, fence: Fence) -> Manifest | None:
        del kind, fence
        if self.refusal is not None:
            raise self.refusal
        self.merged.append((key, patch))
        return self.live

    async def apply_status(
        self, kind: Kind, key: ObjectKey, status: Manifest, **_: object
    ) -> Manifest | None:
        del kind, key
        return None if self.owner is None else {**self.owner, "status": status}


def a_writer(
    live: Manifest | None, owner: Manifest | None = BODY, known: Manifest = BODY
) -> tuple[Applier, OneObject]:
    """A writer whose cache holds `known`, whatever the cluster has by now."""
    cluster, stores = OneObject(live, owner), Stores()
    stores.inferences.observe("ADDED", known)
    return Applier(cast("ClusterApi", cluster), stores, Fence.unlimited()), cluster


def live_with(**metadata: object) -> Manifest:
    return {**CHILD, "metadata": {**CHILD["metadata"], **metadata}}


async def test_child_that_its_owner_left_behind_is_taken_over() -> None:
    writer, cluster = a_writer(live_with(ownerReferences=[]))

    assert await writer.apply_children(OWNER, ReconcilePlan(status={}, apply=(CHILD,))) is None
    assert cluster.applied == [CHILD]


async def test_child_of_a_deleted_namesake_is_waited_for_and_the_status_says_so() -> None:
    writer, cluster = a_writer(live_with(ownerReferences=[{"uid": "predecessor"}]))

    refusal = await writer.apply_children(OWNER, ReconcilePlan(status={}, apply=(CHILD,)))

    assert refusal is not None
    assert refusal.reason is Reason.PREDECESSOR_DELETING
    assert "ConfigMap ads/inf-ctr" in refusal.message
    assert not refusal.to_verdict().stalled, "nobody has to do anything about it"
    assert cluster.applied == []


@pytest.mark.parametrize(
    "there",
    [
        None,
        inference_body(metadata={"uid": "successor"}),
        inference_body(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        inference_body(metadata={"generation": 2}),
    ],
    ids=["gone", "another of its name", "on its way out", "changed meanwhile"],
)
async def test_deleted_inference_does_not_come_back_to_life_when_its_deletion_was_missed(
    there: Manifest | None,
) -> None:
    writer, cluster = a_writer(None, owner=there)

    with pytest.raises(RetryableError, match=r"ads/ctr .*deleted"):
        await writer.apply_children(OWNER, ReconcilePlan(status={}, apply=(CHILD,)))

    assert cluster.applied == cluster.created == []
    assert writer.stores.inferences.get(OWNER.key) == there, "and the cache has learned of it"


async def test_child_that_went_is_made_again_for_an_inference_that_is_there() -> None:
    """The negative: the same plan is carried out as long as its owner lives."""
    writer, cluster = a_writer(None)

    assert await writer.apply_children(OWNER, ReconcilePlan(status={}, apply=(CHILD,))) is None
    assert cluster.created == [CHILD]
    assert INFERENCE in cluster.read, "it was asked whether its owner lives"


async def test_what_a_new_object_needs_is_made_without_a_question() -> None:
    """Were it gone again already, its first status would find nobody, and no second time be wasted on it."""
    writer, cluster = a_writer(None, known=inference_body())

    assert await writer.apply_children(OWNER, ReconcilePlan(status={}, apply=(CHILD,))) is None
    assert (cluster.created, cluster.read) == ([CHILD], [])


@pytest.mark.parametrize(
    "known", [None, inference_body(metadata={"uid": "successor"})], ids=["gone", "another"]
)
async def test_one_that_went_while_its_pods_were_asked_gets_no_children(known: Manifest | None) -> None:
    """The watch has told us of it after the plan was begun: the cache, too, has another picture than the plan."""
    writer, cluster = a_writer(None, owner=known)
    writer.stores.inferences.observe("DELETED", BODY)
    if known is not None:
        writer.stores.inferences.observe("ADDED", known)

    with pytest.raises(RetryableError, match="deleted"):
        await writer.apply_children(OWNER, ReconcilePlan(status={}, apply=(CHILD,)))
    assert cluster.created == []


async def test_what_was_created_is_taken_over_before_it_is_applied() -> None:
    """Else a field that is no longer wanted would stay: who applies takes away only what was applied."""
    writer, cluster = a_writer(live_with(annotations={CREATED_ANNOTATION: "of before"}))
    writer.stores.config_maps.observe("ADDED", cluster.live or {})

    assert await writer.apply_children(OWNER, ReconcilePlan(status={}, apply=(CHILD,))) is None
    assert (cluster.taken_over, cluster.applied) == ([ObjectKey("ads", "inf-ctr")], [CHILD])


async def test_what_was_created_and_is_as_planned_is_left_alone() -> None:
    writer, cluster = a_writer(live_with(annotations={CREATED_ANNOTATION: compute_digest(CHILD)}))
    writer.stores.config_maps.observe("ADDED", cluster.live or {})

    assert await writer.apply_children(OWNER, ReconcilePlan(status={}, apply=(CHILD,))) is None
    assert (cluster.created, cluster.applied, cluster.read) == ([], [], [])


async def test_status_that_finds_nobody_makes_us_forget_the_object() -> None:
    writer, _ = a_writer(None, owner=None)

    await writer.write_status(INFERENCE, BODY, ReconcilePlan(status={"replicas": 1}))

    assert writer.stores.inferences.get(OWNER.key) is None


async def test_object_of_somebody_else_is_left_alone() -> None:
    writer, cluster = a_writer(live_with(ownerReferences=[], labels={"app": "other"}))

    refusal = await writer.apply_children(OWNER, ReconcilePlan(status={}, apply=(CHILD,)))

    assert refusal is not None
    assert refusal.reason is Reason.NAME_CONFLICT
    assert cluster.applied == []


COSTS = (PodCost(ObjectKey("ads", "a"), "uid-a", FIRST_COST), PodCost(ObjectKey("ads", "b"), "uid-b", None))


async def test_pods_that_end_first_are_written_with_nothing_else_of_them() -> None:
    pod = {"metadata": {"name": "a", "namespace": "ads", "uid": "uid-a", "resourceVersion": "7"}}
    writer, cluster = a_writer(pod)

    await writer.write_deletion_costs(COSTS)

    assert cluster.merged == [
        (ObjectKey("ads", "a"), {"metadata": {"uid": "uid-a", "annotations": {COST_ANNOTATION: "-1"}}}),
        (ObjectKey("ads", "b"), {"metadata": {"uid": "uid-b", "annotations": {COST_ANNOTATION: None}}}),
    ]
    # The cache has it before the watch does, so that it is not written again.
    assert writer.stores.pods.get(ObjectKey("ads", "a")) is not None


async def test_refusal_of_the_order_delays_no_scaling() -> None:
    writer, cluster = a_writer(None)
    cluster.refusal = PermanentError("pods is forbidden")

    await writer.write_deletion_costs(COSTS)

    assert cluster.merged == []
    # An API server that does not answer is asked again, before the Deployment is scaled.
    cluster.refusal = RetryableError("no answer")
    with pytest.raises(RetryableError):
        await writer.write_deletion_costs(COSTS)
