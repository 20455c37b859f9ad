"""Report in the status what Kueue decided about the Job of a batch in one of its queues."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidegate.api.reasons import Reason
from tidegate.planning.batch.jobs import JobView
from tidegate.planning.inference.serving_status import Verdict

_DEACTIVATED: Final = "Deactivated"
"""Prefix of Kueue's reason when it has deactivated a Workload."""


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """State of one Job in Kueue, from its Workload."""

    name: str
    admitted: bool = False
    cluster_queue: str = ""
    """The ClusterQueue whose quota it has; empty while it has none."""
    pending_message: str = ""
    """Kueue's message why it is not admitted."""
    eviction_reason: str = ""
    """Kueue's reason of the eviction; empty if it was not evicted since its last admission."""
    eviction_message: str = ""
    """Kueue's message about the eviction."""


@dataclass(frozen=True, slots=True)
class KueueState:
    """State of Kueue for one Inference."""

    installed: bool
    """Whether the API server serves Kueue's kinds, and the controllers may read them."""
    workloads: Mapping[str, WorkloadView]
    """Workloads by the uid of the Job."""


def parse_workload(body: Mapping[str, Any]) -> WorkloadView:
    """Parse a Workload as the API server returns it."""
    status = body.get("status") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    true_types = {type_ for type_, condition in conditions.items() if condition.get("status") == "True"}
    evicted = conditions["Evicted"] if "Evicted" in true_types else {}
    pending = next((type_ for type_ in ("QuotaReserved", "Admitted") if type_ not in true_types), "")
    return WorkloadView(
        name=body["metadata"]["name"],
        admitted="Admitted" in true_types,
        cluster_queue=(status.get("admission") or {}).get("clusterQueue", ""),
        pending_message=_strip_period(conditions.get(pending, {}).get("message", "")),
        eviction_reason=evicted.get("reason", ""),
        eviction_message=_strip_period(evicted.get("message", "")),
    )


def judge_queue(queue: str, namespace: str, kueue: KueueState, job: JobView | None) -> Verdict | None:
    """Return why the Job does not run; None if Kueue lets it run."""
    if job is not None and not job.suspended:
        return None
    if not kueue.installed:
        message = (
            "the cluster has no Workloads of kueue.x-k8s.io/v1beta2, so no Job would be admitted: install Kueue 0.15 or "
            "newer, or remove spec.batch.queueName"
        )
        return Verdict(False, Reason.KUEUE_MISSING, message, stalled=True)
    if job is None:
        return Verdict(False, Reason.QUEUED, f"its Job is not yet in LocalQueue {queue}")
    workload = kueue.workloads.get(job.uid)
    if workload is None:
        message = (
            f"Kueue has made no Workload of Job {job.key.name} yet; if it makes none, see whether it runs, manages namespace "
            f"{namespace} (managedJobsNamespaceSelector) and has the integration batch/job"
        )
        return Verdict(False, Reason.QUEUED, message)
    if workload.eviction_reason:
        kueue_message = f"Kueue has stopped its Job ({workload.eviction_reason}): {workload.eviction_message}"
        if workload.pending_message and workload.pending_message != workload.eviction_message:
            kueue_message = f"{kueue_message}; it waits in LocalQueue {queue}: {workload.pending_message}"
        if not workload.eviction_reason.startswith(_DEACTIVATED):
            return Verdict(False, Reason.EVICTED, kueue_message)
        remedy = f"set spec.active of Workload {workload.name} to true to let it wait again"
        return Verdict(False, Reason.EVICTED, f"{kueue_message}; {remedy}", stalled=True)
    if workload.admitted:
        message = (
            f"Kueue has admitted its Job to ClusterQueue {workload.cluster_queue} and is about to start it"
        )
        return Verdict(False, Reason.QUEUED, message)
    kueue_message = workload.pending_message or "Kueue has not processed it yet"
    return Verdict(False, Reason.QUEUED, f"its Job waits in LocalQueue {queue}: {kueue_message}")


def _strip_period(message: str) -> str:
    return message.rstrip(". ")
