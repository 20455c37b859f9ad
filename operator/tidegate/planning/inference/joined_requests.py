"""Report which requests share executions, while the spec asks for Adaptive batching."""

from collections.abc import Sequence

from tidegate.api.inference import DynamicBatchingMode, Inference
from tidegate.api.reasons import Reason
from tidegate.planning.inference.serving_status import Verdict
from tidegate.planning.inference.swap_failures import ObservedReplica
from tidegate_dataplane.contract import JoinLimit


def judge_joins(inference: Inference, replicas: Sequence[ObservedReplica]) -> Verdict | None:
    """Return what the replica with the strictest limit reports; None unless the mode is Adaptive."""
    if inference.spec.batching.mode is not DynamicBatchingMode.ADAPTIVE:
        return None
    if inference.spec.replicas == 0:
        return Verdict(False, Reason.SCALED_TO_ZERO, "spec.replicas is 0, no request is answered")
    reports = [
        replica.report.batching
        for replica in replicas
        if replica.report is not None and replica.report.batching is not None
    ]
    if not reports:
        return Verdict(
            False, Reason.WAITING_FOR_REPLICAS, "no replica has reported yet which requests it joins"
        )
    strictest = next(report for limit in reversed(JoinLimit) for report in reports if report.limit is limit)
    if strictest.limit is JoinLimit.ALONE:
        return Verdict(
            False,
            Reason.REQUESTS_ALONE,
            f"requests of version {strictest.version} are executed alone: {strictest.message}",
        )
    exception = f": {strictest.message}" if strictest.message else ""
    return Verdict(
        True,
        Reason.REQUESTS_JOINED,
        f"requests of version {strictest.version} that arrive together share executions{exception}",
    )
