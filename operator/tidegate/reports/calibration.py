"""Report how much one replica of an Inference answers within its SLO, and how to record that in the Inference."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.api.meta import ApiModel, ObjectKey
from tidegate.planning.diagnosis.calibration import ConcurrencyResult, JointResult, find_best_result
from tidegate.reports.report import Report, format_name

_MS = 1_000


@dataclass(frozen=True, slots=True)
class ReplicaTarget:
    """The replica under test: its model, its address, and its latency objective."""

    inference: ObjectKey
    model: str
    pod: str
    address: str
    slo_s: float | None


class StepReport(ApiModel):
    """The replica's figures at one concurrency."""

    concurrency: int
    requests_per_second: float
    latency_p50_ms: float
    latency_p99_ms: float
    errors: int


class JointReport(ApiModel):
    """The best figures of several replicas at the same time."""

    replicas: int
    concurrency: int
    """Requests at once to each of them."""
    requests_per_second: float
    """Of all together."""
    latency_p99_ms: float


class CalibrationReport(Report):
    """One replica, measured, and several at the same time, if that was asked for."""

    inference: str
    model: str
    replica: str
    slo_ms: float | None
    requests_per_second: float | None
    """The highest rate within the SLO; absent if even one request at a time missed it."""
    concurrency: int | None
    ended_by: str
    way_ms: float
    """The round trip of an empty request, which is part of every latency."""
    measured: tuple[StepReport, ...]
    together: tuple[JointReport, ...] | None = None
    """Absent if several replicas were not to be measured."""
    note: str = ""
    """Why more replicas were not measured, or what to do about an earlier measurement of several; empty if there is nothing."""

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield the result and the command that records it; the steps were printed during the test."""
        del wide
        within = "" if self.slo_ms is None else f" within {self.slo_ms:g} ms"
        yield f"ended: {self.ended_by}"
        if self.requests_per_second is None:
            yield f"no request was answered{within}, even one at a time: raise the SLO, or give the replica more"
            return
        yield f"one replica answers {self.requests_per_second:.1f} requests/s{within}, {self.concurrency} at once"
        for joint in self.together or ():
            share = joint.requests_per_second / (joint.replicas * self.requests_per_second)
            yield (
                f"{joint.replicas} replicas answer {joint.requests_per_second:.1f} requests/s{within} at the same time, "
                f"{joint.concurrency} at once each: {share:.0%} of {joint.replicas} times one"
            )
        if self.note:
            yield self.note
        if self.slo_ms is None:
            yield "no SLO is given: set spec.slo.latencyP99 or --slo to measure within one"
        key = ObjectKey.parse(self.inference)
        patch = json.dumps({"spec": {"capacity": self._make_capacity(self.requests_per_second)}})
        yield f"kubectl patch inference {key.name} -n {key.namespace} --type=merge -p '{patch}'"

    def _make_capacity(self, alone: float) -> dict[str, Any]:
        """Return what spec.capacity is to be."""
        capacity: dict[str, Any] = {"requestsPerSecond": f"{alone:.1f}"}
        if self.together is not None:
            capacity["together"] = [
                {"replicas": joint.replicas, "requestsPerSecond": f"{joint.requests_per_second:.1f}"}
                for joint in self.together
            ]
        return capacity

    def object_names(self) -> Iterator[str]:
        """Yield the Inference."""
        yield format_name("Inference", ObjectKey.parse(self.inference).name)


def report_calibration(
    replica: ReplicaTarget, measured: Sequence[ConcurrencyResult], round_trip_s: float, ended_by: str
) -> CalibrationReport:
    """Report all steps of one ramp."""
    best = find_best_result(tuple(measured), replica.slo_s)
    return CalibrationReport(
        inference=str(replica.inference),
        model=replica.model,
        replica=replica.pod,
        slo_ms=None if replica.slo_s is None else replica.slo_s * _MS,
        requests_per_second=None if best is None else round(best.requests_per_s, 1),
        concurrency=None if best is None else best.concurrency,
        ended_by=ended_by,
        way_ms=round(round_trip_s * _MS, 3),
        measured=tuple(
            StepReport(
                concurrency=step.concurrency,
                requests_per_second=round(step.requests_per_s, 1),
                latency_p50_ms=round(step.latency_p50_s * _MS, 3),
                latency_p99_ms=round(step.latency_p99_s * _MS, 3),
                errors=step.errors,
            )
            for step in measured
        ),
    )


def add_joint(report: CalibrationReport, together: Sequence[JointResult], note: str) -> CalibrationReport:
    """Return the report with the best results of several replicas at the same time, and a note on what is missing."""
    joint = tuple(
        JointReport(
            replicas=best.replicas,
            concurrency=best.result.concurrency,
            requests_per_second=round(best.result.requests_per_s, 1),
            latency_p99_ms=round(best.result.latency_p99_s * _MS, 3),
        )
        for best in together
    )
    return report.model_copy(update={"together": joint, "note": note})
