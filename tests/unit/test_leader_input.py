"""What a command answers if no controllers lead in the namespace that it looks in."""

from __future__ import annotations

from typing import cast

import pytest

from builders.compute_pool import a_compute_pool
from tidegate.api.meta import ObjectKey
from tidegate.cli.leader_input import fetch_leader_input
from tidegate.errors import PermanentError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import LEASE, Kind
from tidegate.kube.port import Manifest
from tidegate.services.traffic import read_demand

ADVICE = (
    "no controllers lead in namespace other: run tidegate doctor --system-namespace other, or name the "
    "installation's namespace with --system-namespace"
)


class FakeCluster:
    """A cluster without a Lease, or with one whose holder is `holder` and whose pod answers with no pool."""

    def __init__(self, holder: str = "") -> None:
        self._holder = holder

    async def get(self, kind: Kind, key: ObjectKey) -> Manifest | None:
        assert (kind, key) == (LEASE, ObjectKey("other", "tidegate-controllers"))
        return {"metadata": {}, "spec": {"holderIdentity": self._holder}} if self._holder else None

    async def read_from_pod(self, pod: ObjectKey, _port: int, _path: str) -> Manifest:
        return {"error": f"pod {pod} has no such pool"}


def a_client(holder: str = "") -> KubeClient:
    return cast(KubeClient, FakeCluster(holder))


async def test_the_top_of_another_namespace_names_the_option_as_a_plan_does() -> None:
    with pytest.raises(PermanentError) as error:
        await fetch_leader_input(a_client(), "cpu-a", "tidegate", "other")
    assert str(error.value) == ADVICE
    found = await read_demand(a_client(), [a_compute_pool("cpu-a")], "tidegate", "other", fetch_leader_input)
    assert found == ({}, [f"the allocator's demand in ComputePool cpu-a is unknown: {ADVICE}"])


async def test_an_answer_of_the_leader_has_no_advice_about_its_namespace() -> None:
    with pytest.raises(PermanentError, match=r"^pod other/pod-0 has no such pool$"):
        await fetch_leader_input(a_client("pod-0_abc"), "cpu-a", "tidegate", "other")
