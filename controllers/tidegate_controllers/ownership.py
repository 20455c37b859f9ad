"""Finds the pods and workloads of an Inference by owner references; labels alone prove nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Inference
from tidegate.api.meta import GROUP, ObjectKey
from tidegate.kube.kinds import DEPLOYMENT, JOB, Kind
from tidegate.kube.port import Manifest
from tidegate.kube.store import ObjectStore, key_of, labels_of, uid_of
from tidegate.resources.names import (
    INFERENCE_LABEL,
    POOL_LABEL,
    SPARE_LABEL,
    make_child_name,
    make_pool_deployment_name,
    parse_slices,
    to_label_value,
)
from tidegate.resources.shared_spare import make_spare_name
from tidegate_controllers.stores import OwnerIndex, Stores

_REPLICA_SET: Final = "ReplicaSet"
_TEMPLATE_HASH: Final = "pod-template-hash"

Subscriber = Callable[[ObjectKey], None]
"""Takes the key of a pod."""


@dataclass(frozen=True, slots=True)
class _SliceLabels:
    """The pool and the number of slices that labels name."""

    pool: str
    slices: int


class Ownership:
    """Decides whether pods and workloads belong to the Inference, or to the pool of shared spares, that their labels name.

    Anyone who may create a pod may set its labels and its owner references. So each object on the
    way from the pod to the Inference must exist and agree with the pod's labels.

    ReplicaSets are not watched: there are three for each Deployment, and their statuses change with every pod.
    The name of a ReplicaSet is its Deployment's with the hash that its pods carry, and Kubernetes removes pods whose
    owner does not exist.

    A pod that belonged to an Inference belongs to it until it is deleted: pods outlive their workload, and keep their slices.
    """

    def __init__(self, stores: Stores) -> None:
        self._inferences = stores.inferences
        self._pools = stores.pools
        self._workloads: Mapping[Kind, ObjectStore] = {DEPLOYMENT: stores.deployments, JOB: stores.jobs}
        self._pods = stores.pods
        self._owned_pods: dict[ObjectKey, tuple[str, _SliceLabels | None]] = {}
        self._owned_workloads: dict[tuple[Kind, ObjectKey], str] = {}
        self._refused: set[ObjectKey] = set()
        self._refused_spares: set[ObjectKey] = set()
        """Deployments that claim to be a pool's shared spares."""
        self._subscribers: list[Subscriber] = []
        for kind, store in self._workloads.items():
            store.subscribe(self._forget_workload(kind, store))
            OwnerIndex(store, INFERENCE_LABEL, self._recheck_refused)
        self._pods.subscribe(self._forget_pod)
        self._inferences.subscribe(self._recheck_refused)
        stores.deployments.subscribe(self._spare_changed)
        self._pools.subscribe(self._recheck_spares)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber` with each pod that belongs to an Inference although `owns_pod` has returned False for it before."""
        self._subscribers.append(subscriber)

    def owns_pod(self, body: Manifest) -> bool:
        """Return whether a cached pod belongs to the Inference that it names, with the slices that it was assigned."""
        key, identity = key_of(body), (uid_of(body), _parse_slice_labels(labels_of(body)))
        if self._owned_pods.get(key) == identity:
            return True
        if self._is_owned_pod(body, identity[1]):
            self._owned_pods[key] = identity
            if key in self._refused:
                self._refused.discard(key)
                self._refused_spares.discard(key)
                for subscriber in self._subscribers:
                    subscriber(key)
            return True
        self._refused.add(key)
        if SPARE_LABEL in labels_of(body):
            self._refused_spares.add(key)
        return False

    def owns_workload(self, kind: Kind, body: Manifest) -> bool:
        """Return whether a cached Deployment or Job belongs to the Inference that it names."""
        key, uid = (kind, key_of(body)), uid_of(body)
        if self._owned_workloads.get(key) == uid:
            return True
        owned = self._find_inference(kind, body) is not None
        if owned:
            self._owned_workloads[key] = uid
        return owned

    def owns_spare(self, deployment: Manifest) -> bool:
        """Return whether a cached Deployment is that of a shared spare of the pool that controls it."""
        owner, labels = _find_controller(deployment), labels_of(deployment)
        number = labels.get(SPARE_LABEL, "")
        if (
            owner is None
            or owner["kind"] != ComputePool.KIND
            or not owner["apiVersion"].startswith(f"{GROUP}/")
            or not number.isdecimal()
        ):
            return False
        pool = self._pools.get(ObjectKey("", owner["name"]))
        return (
            pool is not None
            and uid_of(pool) == owner["uid"]
            and labels.get(POOL_LABEL) == to_label_value(owner["name"])
            and deployment["metadata"]["name"] == make_spare_name(owner["name"], int(number))
        )

    def _is_owned_pod(self, pod: Manifest, claimed: _SliceLabels | None) -> bool:
        workload = self._find_workload(pod)
        if workload is None:
            return False
        kind, body = workload
        template = labels_of(body["spec"]["template"])
        if SPARE_LABEL in labels_of(pod):
            granted = _parse_slice_labels(template)
            return kind is DEPLOYMENT and claimed is not None and claimed == granted and self.owns_spare(body)
        name = template.get(INFERENCE_LABEL)
        if labels_of(pod).get(INFERENCE_LABEL) != name or not self.owns_workload(kind, body):
            return False
        return claimed is None or self._grants_slices(
            claimed, _parse_slice_labels(template), self._find_inference(kind, body)
        )

    def _grants_slices(
        self, claimed: _SliceLabels, template: _SliceLabels | None, inference: Manifest | None
    ) -> bool:
        """Return whether the workload's template grants the slices that a pod claims.

        The Inference's spec must grant them as well, if it names the same pool.
        """
        if template is None or claimed.pool != template.pool or claimed.slices > template.slices:
            return False
        placement: Mapping[str, Any] = ((inference or {}).get("spec") or {}).get("placement") or {}
        pools = placement.get("pools") or ({"name": placement.get("pool", "")},)
        granted = [
            pool.get("slices", placement.get("slices", 1))
            for pool in pools
            if to_label_value(pool["name"]) == claimed.pool
        ]
        return not granted or claimed.slices <= granted[0]

    def _find_workload(self, pod: Manifest) -> tuple[Kind, Manifest] | None:
        """Return the Deployment or the Job behind a pod, if it is cached."""
        owner, namespace = _find_controller(pod), pod["metadata"].get("namespace", "")
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

    def _find_inference(self, kind: Kind, workload: Manifest) -> Manifest | None:
        """Return the Inference that controls a workload and that the workload names."""
        owner, namespace = _find_controller(workload), workload["metadata"].get("namespace", "")
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
        is_labelled = labels_of(workload).get(INFERENCE_LABEL) == to_label_value(name)
        return (
            inference if is_labelled and (kind is not DEPLOYMENT or _has_our_name(workload, name)) else None
        )

    def _forget_workload(self, kind: Kind, store: ObjectStore) -> Subscriber:
        def changed(key: ObjectKey) -> None:
            if store.get(key) is None:
                self._owned_workloads.pop((kind, key), None)

        return changed

    def _forget_pod(self, key: ObjectKey) -> None:
        if self._pods.get(key) is None:
            self._owned_pods.pop(key, None)
            self._refused.discard(key)
            self._refused_spares.discard(key)

    def _spare_changed(self, key: ObjectKey) -> None:
        """Check refused pods of shared spares again after the Deployment of one was added or changed."""
        body = self._workloads[DEPLOYMENT].get(key)
        if body is not None and SPARE_LABEL in labels_of(body):
            self._recheck_spares(key)

    def _recheck_spares(self, _key: ObjectKey) -> None:
        """Check refused pods of shared spares again."""
        for key in tuple(self._refused_spares):
            body = self._pods.get(key)
            if body is not None:
                self.owns_pod(body)

    def _recheck_refused(self, inference: ObjectKey) -> None:
        """Check refused pods again after their Inference, or one of its workloads, was added or changed."""
        if not self._refused:
            return
        name = to_label_value(inference.name)
        for body in self._pods.by_label(INFERENCE_LABEL, name, namespace=inference.namespace):
            if key_of(body) in self._refused:
                self.owns_pod(body)


def _has_our_name(deployment: Manifest, inference: str) -> bool:
    """Return whether a Deployment has the name of an Inference's only Deployment, or of its Deployment in a pool."""
    pool = labels_of(deployment["spec"]["template"]).get(POOL_LABEL, "")
    names = (make_child_name("inf", inference), make_pool_deployment_name(inference, pool))
    return deployment["metadata"]["name"] in names


def _find_controller(body: Manifest) -> Mapping[str, str] | None:
    owners = body["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def _parse_slice_labels(labels: Mapping[str, str]) -> _SliceLabels | None:
    """Return the slices that labels name; None if they name no pool."""
    return _SliceLabels(labels[POOL_LABEL], parse_slices(labels)) if POOL_LABEL in labels else None
