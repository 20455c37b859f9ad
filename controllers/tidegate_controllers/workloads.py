"""Caches Kueue's Workloads of our Jobs, from the first Inference on that names a queue."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.kube import kinds
from tidegate.kube.client import KubeClient
from tidegate.kube.port import Manifest
from tidegate.kube.store import ObjectStore
from tidegate.kube.watch import make_reflectors
from tidegate.planning.batch.kueue import KueueState, WorkloadView, parse_workload
from tidegate.resources.names import INFERENCE_LABEL

_METADATA: Final = ("name", "namespace", "uid", "resourceVersion", "ownerReferences")


class KueueWorkloads:
    """Kueue's Workloads as planners see them, with notifications for the Inferences of their Jobs.

    The watch starts with the first Inference that names a queue: clusters without one, or without Kueue, do not pay
    for it.
    """

    def __init__(self, client: KubeClient, jobs: ObjectStore, namespaces: Collection[str] = ()) -> None:
        """Read our Jobs from `jobs`; without `namespaces`, watch all."""
        self._jobs = jobs
        self.store = ObjectStore(kinds.WORKLOAD, transform=_trim_workload)
        self._reflectors = make_reflectors(client, self.store, namespaces)
        self._job_of: dict[ObjectKey, ObjectKey] = {}
        self._wakes: list[Callable[[ObjectKey], None]] = []
        self._started = asyncio.Event()
        self.store.subscribe(self._workload_changed)

    def has_synced(self, inference: Inference) -> bool:
        """Return whether all Workloads that decide about an Inference are listed; the first call starts the listing."""
        if not _names_queue(inference):
            return True
        self._started.set()
        return all(reflector.settled.is_set() for reflector in self._reflectors)

    def get_queueing(self, inference: Inference) -> KueueState | None:
        """Return Kueue's state of an Inference's Jobs; None if its spec names no queue."""
        if not _names_queue(inference):
            return None
        installed = self.store.synced.is_set() and not any(
            reflector.kind_missing for reflector in self._reflectors
        )
        return KueueState(installed, dict(self._find_views(inference)) if installed else {})

    def subscribe(self, wake: Callable[[ObjectKey], None]) -> None:
        """Call `wake` with the key of each Inference whose Job's Workload changes."""
        self._wakes.append(wake)

    async def run(self) -> None:
        """Wait until a Workload is needed, then watch until cancelled."""
        await self._started.wait()
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run(), name="watch-workloads")

    def _find_views(self, inference: Inference) -> Mapping[str, WorkloadView]:
        jobs = self._jobs.by_owner(inference.metadata.uid)
        uids = (job["metadata"]["uid"] for job in jobs)
        workloads = {uid: self.store.by_owner(uid) for uid in uids}
        return {uid: parse_workload(bodies[-1]) for uid, bodies in workloads.items() if bodies}

    def _workload_changed(self, key: ObjectKey) -> None:
        body = self.store.get(key)
        job = self._job_of.pop(key, None) if body is None else _find_job(body)
        if job is None:
            return
        if body is not None:
            self._job_of[key] = job
        labels: Mapping[str, str] = (self._jobs.get(job) or {}).get("metadata", {}).get("labels") or {}
        if INFERENCE_LABEL in labels:
            for wake in self._wakes:
                wake(ObjectKey(job.namespace, labels[INFERENCE_LABEL]))


def _names_queue(inference: Inference) -> bool:
    return inference.spec.batch is not None and inference.spec.batch.queue_name is not None


def _find_job(workload: Manifest) -> ObjectKey | None:
    """Return the Job of a Workload; None if the Workload is of another kind of object."""
    metadata = workload["metadata"]
    owners = metadata.get("ownerReferences") or ()
    names = (owner["name"] for owner in owners if owner["kind"] == kinds.JOB.kind and owner.get("controller"))
    name = next(names, None)
    return ObjectKey(metadata["namespace"], name) if name is not None else None


def _trim_workload(body: Manifest) -> Manifest:
    """Return what is read of a Workload; most of the rest is its pod templates."""
    metadata: Mapping[str, Any] = {name: body["metadata"].get(name) for name in _METADATA}
    status: Mapping[str, Any] = body.get("status") or {}
    admission: Mapping[str, Any] = status.get("admission") or {}
    return {
        "metadata": metadata,
        "status": {
            "conditions": status.get("conditions") or (),
            "admission": {"clusterQueue": admission.get("clusterQueue", "")},
        },
    }
