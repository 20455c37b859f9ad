"""Whose a child is that has changed, and whether its owner looks at it at once or a moment later."""

from typing import Any

import pytest

from builders.pods import a_pod_body
from tidegate.api.meta import ObjectKey
from tidegate.kube.kinds import CONFIG_MAP, DEPLOYMENT, POD
from tidegate.resources.names import INFERENCE_LABEL
from tidegate_controllers.stores import OwnerIndex, Stores

CTR, POD_KEY = ObjectKey("ads", "ctr"), ObjectKey("ads", "p0")
NOT_READY = {"conditions": [{"type": "Ready", "status": "False"}]}


class Wakes:
    """Who was woken by pods of a store, at once and soon."""

    def __init__(self) -> None:
        self.stores, self.at_once, self.soon = Stores(), list[ObjectKey](), list[ObjectKey]()
        OwnerIndex(
            self.stores.pods,
            INFERENCE_LABEL,
            self.at_once.append,
            is_transient=lambda key: self.stores.is_starting(POD, key),
            wake_soon=self.soon.append,
        )
        self._version = 0

    def pod(self, kind: str = "MODIFIED", **changes: Any) -> tuple[int, int]:
        """A pod as it is now; how often its owner has been woken at once, and soon."""
        self._version += 1
        body = a_pod_body(status=changes.get("status"))
        metadata = {"resourceVersion": str(self._version), **changes.get("metadata", {})}
        self.stores.pods.observe(kind, {**body, "metadata": {**body["metadata"], **metadata}})
        return len(self.at_once), len(self.soon)


def test_a_pod_that_starts_is_looked_at_soon_and_one_that_is_ready_or_goes_at_once() -> None:
    wakes = Wakes()
    assert wakes.pod("ADDED", status={**NOT_READY, "phase": "Pending"}) == (0, 1)
    assert wakes.pod(status={**NOT_READY, "podIP": "10.0.0.2"}) == (0, 2)
    assert wakes.pod() == (1, 2), "it is ready"
    assert wakes.pod(status=NOT_READY) == (1, 3)
    assert wakes.pod(status=NOT_READY, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}) == (2, 3)
    assert wakes.pod("DELETED", status=NOT_READY) == (3, 3)
    assert set(wakes.at_once + wakes.soon) == {CTR}


@pytest.mark.parametrize(("ready", "starting"), [(0, True), (1, False)])
def test_a_deployment_starts_until_a_pod_of_it_is_ready(ready: int, starting: bool) -> None:
    stores, key = Stores(), ObjectKey("ads", "inf-ctr")
    progress = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}
    body = {
        "metadata": {"name": key.name, "namespace": key.namespace, "uid": "d", "generation": 1},
        "spec": {"template": {"metadata": {}, "spec": {}}},
        "status": {
            "observedGeneration": 1,
            "replicas": 1,
            "updatedReplicas": 1,
            "readyReplicas": ready,
            "conditions": [progress],
        },
    }
    stores.deployments.observe("ADDED", body)
    assert stores.is_starting(DEPLOYMENT, key) is starting


def test_what_is_gone_or_never_starts_is_looked_at_at_once() -> None:
    assert not Stores().is_starting(POD, POD_KEY)
    assert not Stores().is_starting(CONFIG_MAP, POD_KEY)
