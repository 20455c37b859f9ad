"""What Kueue says of our Jobs: its Workloads, watched from the first Inference on that names a queue."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.kube import kinds
from tidegate.kube.client import KubeClient
from tidegate.kube.port import Manifest
from tidegate.kube.store import ObjectStore
from tidegate.kube.watch import reflectors
from tidegate.planning.queueing import Queueing, WorkloadView, workload_view
from tidegate.resources.names import INFERENCE_LABEL

_METADATA: Final = ("name", "namespace", "uid", "resourceVersion", "ownerReferences")


class Workloads:
    """Kueue's Workloads as planners see them, and a call to the Inference whose Job they are about.

    Clusters without Kueue, or where nobody names a queue, are spared the watch of all Workloads: it begins with `begin`.
    """

    def __init__(self, client: KubeClient, jobs: ObjectStore, namespaces: Collection[str] = ()) -> None:
        """`jobs` is the cache of the Jobs that we made; without `namespaces` those of all are watched."""
        self._jobs = jobs
        self.store = ObjectStore(kinds.WORKLOAD, transform=_facts)
        self._reflectors = reflectors(client, self.store, namespaces)
        self._job_of: dict[ObjectKey, ObjectKey] = {}
        self._wakes: list[Callable[[ObjectKey], None]] = []
        self._begun = asyncio.Event()
        self.store.subscribe(self._changed)

    def known(self, inference: Inference) -> bool:
        """Whether everything has been listed that decides about it; listing begins with the first who asks."""
        if not _names_queue(inference):
            return True
        self._begun.set()
        return all(each.settled.is_set() for each in self._reflectors)

    def of(self, inference: Inference) -> Queueing | None:
        """What Kueue says of the Jobs of an Inference; None where its spec names no queue."""
        if not _names_queue(inference):
            return None
        installed = self.store.synced.is_set() and not any(each.absent for each in self._reflectors)
        return Queueing(installed, dict(self._of(inference)) if installed else {})

    def subscribe(self, wake: Callable[[ObjectKey], None]) -> None:
        """Calls `wake` with the key of each Inference of whose Job Kueue says something else."""
        self._wakes.append(wake)

    async def run(self) -> None:
        """Watches, once that has begun, until cancelled."""
        await self._begun.wait()
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run(), name="watch-workloads")

    def _of(self, inference: Inference) -> Mapping[str, WorkloadView]:
        jobs = self._jobs.by_owner(inference.metadata.uid)
        uids = (job["metadata"]["uid"] for job in jobs)
        found = {uid: self.store.by_owner(uid) for uid in uids}
        return {uid: workload_view(bodies[-1]) for uid, bodies in found.items() if bodies}

    def _changed(self, key: ObjectKey) -> None:
        body = self.store.get(key)
        job = self._job_of.pop(key, None) if body is None else _job(body)
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


def _job(workload: Manifest) -> ObjectKey | None:
    """The Job that a Workload is about, if it is about one."""
    metadata = workload["metadata"]
    owners = metadata.get("ownerReferences") or ()
    names = (owner["name"] for owner in owners if owner["kind"] == kinds.JOB.kind and owner.get("controller"))
    name = next(names, None)
    return ObjectKey(metadata["namespace"], name) if name is not None else None


def _facts(body: Manifest) -> Manifest:
    """What is read of a Workload: the rest of it is mostly the template of its pods."""
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
