"""A batch in a queue of Kueue: what Kueue says of its Job, and what the status says of that."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidegate.api.reasons import Reason
from tidegate.planning.jobs import JobView
from tidegate.planning.serving_status import Verdict

_DEACTIVATED: Final = "Deactivated"
"""What Kueue's reason begins with where it does not let a Workload wait any more."""


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """Kueue's account of one Job."""

    name: str
    admitted: bool = False
    cluster_queue: str = ""
    """The ClusterQueue whose quota it has; empty while it has none."""
    waits: str = ""
    """Why it is not admitted, in Kueue's words."""
    evicted: str = ""
    """Why it was stopped, in Kueue's reason; empty where it was not since it was admitted last."""
    said: str = ""
    """And in its words."""


@dataclass(frozen=True, slots=True)
class Queueing:
    """What is known of Kueue for one Inference."""

    installed: bool
    """Whether the API server knows Kueue's kinds, and the controllers may read them."""
    workloads: Mapping[str, WorkloadView]
    """By the uid of the Job."""


def workload_view(body: Mapping[str, Any]) -> WorkloadView:
    """Reads a Workload as the API server gives it."""
    status = body.get("status") or {}
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    holds = {kind for kind, one in conditions.items() if one.get("status") == "True"}
    evicted = conditions["Evicted"] if "Evicted" in holds else {}
    waits = next((kind for kind in ("QuotaReserved", "Admitted") if kind not in holds), "")
    return WorkloadView(
        name=body["metadata"]["name"],
        admitted="Admitted" in holds,
        cluster_queue=(status.get("admission") or {}).get("clusterQueue", ""),
        waits=_sentence(conditions.get(waits, {}).get("message", "")),
        evicted=evicted.get("reason", ""),
        said=_sentence(evicted.get("message", "")),
    )


def queue_verdict(queue: str, namespace: str, queueing: Queueing, job: JobView | None) -> Verdict | None:
    """Why the Job does not run; None when Kueue lets it."""
    if job is not None and not job.suspended:
        return None
    if not queueing.installed:
        message = (
            "the cluster has no Workloads of kueue.x-k8s.io/v1beta2, so nobody would let a Job begin: install Kueue 0.15 or "
            "newer, or remove spec.batch.queueName"
        )
        return Verdict(False, Reason.KUEUE_MISSING, message, stalled=True)
    if job is None:
        return Verdict(False, Reason.QUEUED, f"its Job is not yet in LocalQueue {queue}")
    workload = queueing.workloads.get(job.uid)
    if workload is None:
        message = (
            f"Kueue has made no Workload of Job {job.key.name} yet; if it makes none, see whether it runs, manages namespace "
            f"{namespace} (managedJobsNamespaceSelector) and has the integration batch/job"
        )
        return Verdict(False, Reason.QUEUED, message)
    if workload.evicted:
        words = f"Kueue has stopped its Job ({workload.evicted}): {workload.said}"
        if workload.waits and workload.waits != workload.said:
            words = f"{words}; it waits in LocalQueue {queue}: {workload.waits}"
        if not workload.evicted.startswith(_DEACTIVATED):
            return Verdict(False, Reason.EVICTED, words)
        way_out = f"set spec.active of Workload {workload.name} to true to let it wait again"
        return Verdict(False, Reason.EVICTED, f"{words}; {way_out}", stalled=True)
    if workload.admitted:
        message = (
            f"Kueue has admitted its Job to ClusterQueue {workload.cluster_queue} and is about to start it"
        )
        return Verdict(False, Reason.QUEUED, message)
    words = workload.waits or "Kueue has not looked at it yet"
    return Verdict(False, Reason.QUEUED, f"its Job waits in LocalQueue {queue}: {words}")


def _sentence(message: str) -> str:
    return message.rstrip(". ")
