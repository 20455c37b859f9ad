"""Carrying a plan out: whose objects are written, waited for, or left alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from builders.inference import an_inference
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.errors import RetryableError
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import Kind
from tidegate.kube.port import Cluster, Manifest
from tidegate.planning.plan import Plan
from tidegate.resources.names import MANAGED_BY, MANAGER
from tidegate_controllers.carry_out import Writer
from tidegate_controllers.stores import Stores

OWNER = an_inference()
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
    """A cluster that holds `live` under whatever name it is asked for."""

    live: Manifest | None
    applied: list[Manifest] = field(default_factory=list[Manifest])

    async def get(self, kind: Kind, key: ObjectKey) -> Manifest | None:
        del kind, key
        return self.live

    async def apply(self, manifest: Manifest, fence: Fence) -> Manifest:
        del fence
        self.applied.append(manifest)
        return manifest


def a_writer(live: Manifest | None) -> tuple[Writer, OneObject]:
    cluster = OneObject(live)
    return Writer(cast("Cluster", cluster), Stores(), Fence.unlimited()), cluster


def live_with(**metadata: object) -> Manifest:
    return {**CHILD, "metadata": {**CHILD["metadata"], **metadata}}


async def test_child_that_its_owner_left_behind_is_taken_over() -> None:
    writer, cluster = a_writer(live_with(ownerReferences=[]))

    assert await writer.children(OWNER, Plan(status={}, apply=(CHILD,))) is None
    assert cluster.applied == [CHILD]


async def test_child_of_a_deleted_namesake_is_waited_for() -> None:
    writer, cluster = a_writer(live_with(ownerReferences=[{"uid": "predecessor"}]))

    with pytest.raises(RetryableError, match="waiting for it to go"):
        await writer.children(OWNER, Plan(status={}, apply=(CHILD,)))
    assert cluster.applied == []


async def test_object_of_somebody_else_is_left_alone() -> None:
    writer, cluster = a_writer(live_with(ownerReferences=[], labels={"app": "other"}))

    refusal = await writer.children(OWNER, Plan(status={}, apply=(CHILD,)))

    assert refusal is not None
    assert refusal.reason is Reason.NAME_CONFLICT
    assert cluster.applied == []
