"""Builds pods and agents' reports for a test."""

from __future__ import annotations

from typing import Any

from tidegate.api.meta import ObjectKey
from tidegate.planning.pods import PodProblem, PodView
from tidegate.resources.names import INFERENCE_LABEL, SOURCE_LABEL
from tidegate_dataplane.contract import AgentPhase, AgentReport, FailureReason, TensorSpec, VersionFailure


def a_pod(
    name: str = "p0",
    *,
    source: str,
    template: str = "",
    ready: bool = True,
    terminating: bool = False,
    trouble: PodProblem | None = None,
    unschedulable: str = "",
) -> PodView:
    """A pod at 10.0.0.1, unless it is not scheduled."""
    return PodView(
        key=ObjectKey("ads", name),
        uid=name,
        source=source,
        address=None if unschedulable else "10.0.0.1",
        ready=ready,
        terminating=terminating,
        template=template,
        problem=trouble,
        unschedulable=unschedulable,
    )


def a_report(
    version: int | None,
    *,
    target: int | None = None,
    generation: int = 1,
    failure: tuple[int, FailureReason, str] | None = None,
    **fields: Any,
) -> AgentReport:
    """A report of a pod that serves `version` and works towards `target`, by default the same."""
    wanted = target if target is not None else version
    return AgentReport(
        pod="p0",
        epoch=1,
        generation=generation,
        phase=AgentPhase.FAILED if failure else AgentPhase.READY if version == wanted else AgentPhase.LOADING,
        target=wanted,
        serving=version,
        loaded=(version,) if version else (),
        inputs=(TensorSpec(name="user_id", dtype="INT64", shape=(-1, 1)),),
        outputs=(TensorSpec(name="score", dtype="FP32", shape=(-1, 1)),),
        failure=VersionFailure(version=failure[0], reason=failure[1], message=failure[2])
        if failure
        else None,
        **fields,
    )


def a_pod_body(
    name: str = "p0", *, source: str = "abc", status: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A running, ready pod as the API server gives it; `status` lays over its status."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "ads",
            "uid": name,
            "labels": {INFERENCE_LABEL: "ctr", SOURCE_LABEL: source},
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}],
            **(status or {}),
        },
    }
