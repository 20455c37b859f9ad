"""Which pods and workloads are an Inference's: those that owner references lead from to one that exists, whatever labels say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidegate.api.inference import Inference
from tidegate.api.meta import GROUP, ObjectKey
from tidegate.kube.kinds import DEPLOYMENT, JOB, Kind
from tidegate.kube.port import Manifest
from tidegate.kube.store import ObjectStore, key_of, labels_of, uid_of
from tidegate.resources.names import INFERENCE_LABEL, POOL_LABEL, child_name, label_value, parse_slices
from tidegate_controllers.stores import Owners, Stores

_REPLICA_SET: Final = "ReplicaSet"
_TEMPLATE_HASH: Final = "pod-template-hash"

Subscriber = Callable[[ObjectKey], None]
"""Takes the key of a pod."""


@dataclass(frozen=True, slots=True)
class _Seat:
    """What labels say of where a pod runs."""

    pool: str
    slices: int


class Ownership:
    """Labels are claims, which anyone may write who may make a pod; owner references to an object of ours are not enough
    either, since they are written as easily, so that each object on the way has to be there and to say the same.

    ReplicaSets are not watched: there are three for each Deployment, and their statuses change with every pod. A ReplicaSet's name
    is its Deployment's with the hash that its pods carry, and Kubernetes removes pods that name an owner which does not exist.

    What was an Inference's stays its own until it is gone: pods outlive the objects that they came from, and keep their slices.
    """

    def __init__(self, stores: Stores) -> None:
        self._inferences = stores.inferences
        self._workloads: Mapping[Kind, ObjectStore] = {DEPLOYMENT: stores.deployments, JOB: stores.jobs}
        self._pods = stores.pods
        self._owned_pods: dict[ObjectKey, tuple[str, _Seat | None]] = {}
        self._owned_workloads: dict[tuple[Kind, ObjectKey], str] = {}
        self._refused: set[ObjectKey] = set()
        self._subscribers: list[Subscriber] = []
        for kind, store in self._workloads.items():
            store.subscribe(self._forget_workload(kind, store))
            Owners(store, INFERENCE_LABEL, self._look_again)
        self._pods.subscribe(self._forget_pod)
        self._inferences.subscribe(self._look_again)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Calls `subscriber` with each pod that is found to be an Inference's after it was asked about and was not."""
        self._subscribers.append(subscriber)

    def owns_pod(self, body: Manifest) -> bool:
        """Whether a pod of the cache is the Inference's that it names, on as many slices of a pool as it was given there."""
        key, identity = key_of(body), (uid_of(body), _seat(labels_of(body)))
        if self._owned_pods.get(key) == identity:
            return True
        if self._leads_to_inference(body, identity[1]):
            self._owned_pods[key] = identity
            if key in self._refused:
                self._refused.discard(key)
                for subscriber in self._subscribers:
                    subscriber(key)
            return True
        self._refused.add(key)
        return False

    def owns_workload(self, kind: Kind, body: Manifest) -> bool:
        """Whether a Deployment or a Job of the cache is the Inference's that it names."""
        key, uid = (kind, key_of(body)), uid_of(body)
        if self._owned_workloads.get(key) == uid:
            return True
        owned = self._inference_of(kind, body) is not None
        if owned:
            self._owned_workloads[key] = uid
        return owned

    def _leads_to_inference(self, pod: Manifest, seat: _Seat | None) -> bool:
        workload = self._workload_of(pod)
        if workload is None:
            return False
        kind, body = workload
        template = labels_of(body["spec"]["template"])
        name = template.get(INFERENCE_LABEL)
        if labels_of(pod).get(INFERENCE_LABEL) != name or not self.owns_workload(kind, body):
            return False
        return seat is None or self._gives(seat, _seat(template), self._inference_of(kind, body))

    def _gives(self, seat: _Seat, given: _Seat | None, inference: Manifest | None) -> bool:
        """Whether the workload says as much, and the spec, where it is about the same pool."""
        if given is None or seat.pool != given.pool or seat.slices > given.slices:
            return False
        placement: Mapping[str, Any] = ((inference or {}).get("spec") or {}).get("placement") or {}
        here = label_value(placement.get("pool", "")) == seat.pool
        return not here or seat.slices <= placement.get("slices", 1)

    def _workload_of(self, pod: Manifest) -> tuple[Kind, Manifest] | None:
        """The Deployment or the Job behind a pod, where it is in the caches."""
        owner, namespace = _controller(pod), pod["metadata"].get("namespace", "")
        if owner is None:
            return None
        if owner["kind"] == JOB.kind and owner["apiVersion"] == JOB.api_version:
            job = self._workloads[JOB].get(ObjectKey(namespace, owner["name"]))
            return (JOB, job) if job is not None and uid_of(job) == owner["uid"] else None
        tail = f"-{labels_of(pod).get(_TEMPLATE_HASH, '')}"
        if (owner["kind"], owner["apiVersion"]) != (_REPLICA_SET, DEPLOYMENT.api_version) or len(tail) == 1:
            return None
        name = owner["name"].removesuffix(tail)
        deployment = self._workloads[DEPLOYMENT].get(ObjectKey(namespace, name))
        return (DEPLOYMENT, deployment) if deployment is not None and name != owner["name"] else None

    def _inference_of(self, kind: Kind, workload: Manifest) -> Manifest | None:
        """The Inference that controls a workload and that it names."""
        owner, namespace = _controller(workload), workload["metadata"].get("namespace", "")
        if (
            owner is None
            or owner["kind"] != Inference.KIND
            or not owner["apiVersion"].startswith(f"{GROUP}/")
        ):
            return None
        name: str = owner["name"]
        inference = self._inferences.get(ObjectKey(namespace, name))
        if inference is None or uid_of(inference) != owner["uid"]:
            return None
        named = labels_of(workload).get(INFERENCE_LABEL) == label_value(name)
        # Of an Inference there is one Deployment, but a Job for each of its runs.
        ours = kind is not DEPLOYMENT or workload["metadata"]["name"] == child_name("inf", name)
        return inference if named and ours else None

    def _forget_workload(self, kind: Kind, store: ObjectStore) -> Subscriber:
        def changed(key: ObjectKey) -> None:
            if store.get(key) is None:
                self._owned_workloads.pop((kind, key), None)

        return changed

    def _forget_pod(self, key: ObjectKey) -> None:
        if self._pods.get(key) is None:
            self._owned_pods.pop(key, None)
            self._refused.discard(key)

    def _look_again(self, inference: ObjectKey) -> None:
        """The Inference or a workload of it is there, or has changed: so pods may be its own that were not."""
        if not self._refused:
            return
        name = label_value(inference.name)
        for body in self._pods.by_label(INFERENCE_LABEL, name, namespace=inference.namespace):
            if key_of(body) in self._refused:
                self.owns_pod(body)


def _controller(body: Manifest) -> Mapping[str, str] | None:
    owners = body["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def _seat(labels: Mapping[str, str]) -> _Seat | None:
    """None for a pod that is in no pool."""
    return _Seat(labels[POOL_LABEL], parse_slices(labels)) if POOL_LABEL in labels else None
