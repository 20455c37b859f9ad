"""Carrying a plan out: whose objects are written, waited for, or left alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from builders.inference import an_inference, inference_body
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.errors import RetryableError
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import INFERENCE, Kind
from tidegate.kube.port import Cluster, Manifest
from tidegate.planning.plan import Plan
from tidegate.resources.names import MANAGED_BY, MANAGER
from tidegate_controllers.carry_out import Writer
from tidegate_controllers.stores import Stores

OWNER = an_inference()
BODY = inference_body()
CHILD: Mapping[str, Any] = {
    "apiVersion": "v1",
    "kind": "Service",
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

    async def get(self, kind: Kind, key: ObjectKey) -> Manifest | None:
        del key
        return self.owner if kind == INFERENCE else self.live

    async def apply(self, manifest: Manifest, fence: Fence) -> Manifest:
        del fence
        self.applied.append(manifest)
        return manifest

    async def apply_status(
        self, kind: Kind, key: ObjectKey, status: Manifest, **_: object
    ) -> Manifest | None:
        del kind, key
        return None if self.owner is None else {**self.owner, "status": status}


def a_writer(live: Manifest | None, owner: Manifest | None = BODY) -> tuple[Writer, OneObject]:
    """A writer whose cache holds BODY, whatever the cluster has by now."""
    cluster, stores = OneObject(live, owner), Stores()
    stores.inferences.observe("ADDED", BODY)
    return Writer(cast("Cluster", cluster), stores, Fence.unlimited()), cluster


def live_with(**metadata: object) -> Manifest:
    return {**CHILD, "metadata": {**CHILD["metadata"], **metadata}}


async def test_child_that_its_owner_left_behind_is_taken_over() -> None:
    writer, cluster = a_writer(live_with(ownerReferences=[]))

    assert await writer.children(OWNER, Plan(status={}, apply=(CHILD,))) is None
    assert cluster.applied == [CHILD]


async def test_child_of_a_deleted_namesake_is_waited_for_and_the_status_says_so() -> None:
    writer, cluster = a_writer(live_with(ownerReferences=[{"uid": "predecessor"}]))

    refusal = await writer.children(OWNER, Plan(status={}, apply=(CHILD,)))

    assert refusal is not None
    assert refusal.reason is Reason.PREDECESSOR_DELETING
    assert "Service ads/inf-ctr" in refusal.message
    assert not refusal.verdict().stalled, "nobody has to do anything about it"
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
        await writer.children(OWNER, Plan(status={}, apply=(CHILD,)))

    assert cluster.applied == []
    assert writer.stores.inferences.get(OWNER.key) == there, "and the cache has learned of it"


async def test_child_that_went_is_made_again_for_an_inference_that_is_there() -> None:
    """The negative: the same plan is carried out as long as its owner lives."""
    writer, cluster = a_writer(None)

    assert await writer.children(OWNER, Plan(status={}, apply=(CHILD,))) is None
    assert cluster.applied == [CHILD]


async def test_status_that_finds_nobody_makes_us_forget_the_object() -> None:
    writer, _ = a_writer(None, owner=None)

    await writer.status(INFERENCE, BODY, Plan(status={"replicas": 1}))

    assert writer.stores.inferences.get(OWNER.key) is None


async def test_object_of_somebody_else_is_left_alone() -> None:
    writer, cluster = a_writer(live_with(ownerReferences=[], labels={"app": "other"}))

    refusal = await writer.children(OWNER, Plan(status={}, apply=(CHILD,)))

    assert refusal is not None
    assert refusal.reason is Reason.NAME_CONFLICT
    assert cluster.applied == []
