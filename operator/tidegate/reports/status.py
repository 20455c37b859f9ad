"""Report the status of one object: the parts that every kind has, such as conditions, events and pods."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Self

from tidegate.api.conditions import format_timestamp
from tidegate.api.meta import ApiModel
from tidegate.planning.pods import parse_pod
from tidegate.reports.report import Report, align_columns, format_name
from tidegate.reports.shared import ConditionReport, report_conditions
from tidegate.reports.state import ObjectReport, ObjectState, StatefulObject

MAX_EVENTS: Final = 10
"""The most events that are shown, the newest first."""
MAX_PODS: Final = 50
"""The most pods that are listed, those that are not ready first; the others are counted."""


class RouteRole(StrEnum):
    """The role of an Inference in a route."""

    TARGET = "Target"
    MIRROR = "Mirror"
    FALLBACK = "Fallback"
    PIPELINE = "Pipeline"


class EventReport(ApiModel):
    """One Event about the object."""

    at: datetime | None
    warning: bool
    reason: str
    message: str
    count: int

    @classmethod
    def from_event(cls, body: Mapping[str, Any]) -> Self:
        """Parse a v1 Event."""
        time = body.get("lastTimestamp") or body.get("eventTime") or body["metadata"].get("creationTimestamp")
        return cls(
            at=datetime.fromisoformat(time) if time else None,
            warning=body.get("type") == "Warning",
            reason=body.get("reason") or "",
            message=body.get("message") or "",
            count=body.get("count") or 1,
        )


class PodReport(ApiModel):
    """One pod of the object."""

    name: str
    phase: str
    """The phase that Kubernetes reports; Terminating if the pod is deleted."""
    ready: bool
    restarts: int
    node: str | None
    made: datetime | None
    trouble: str
    """Why the pod does not run; empty if it runs or the reason is unknown."""

    @classmethod
    def from_pod(cls, body: Mapping[str, Any]) -> Self:
        """Parse a Pod."""
        metadata, status = body["metadata"], body.get("status") or {}
        view = parse_pod(body)
        created = metadata.get("creationTimestamp")
        trouble = view.problem.message if view.problem is not None else view.unschedulable
        terminating = "deletionTimestamp" in metadata
        return cls(
            name=view.key.name,
            phase="Terminating" if terminating else status.get("phase") or "Pending",
            ready=view.ready and not terminating,
            restarts=sum(
                container.get("restartCount", 0) for container in status.get("containerStatuses") or ()
            ),
            node=(body.get("spec") or {}).get("nodeName"),
            made=datetime.fromisoformat(created) if created else None,
            trouble=trouble,
        )


@dataclass(frozen=True, slots=True)
class RelatedObjects:
    """What was read with an object: its events and pods as JSON, and what could not be read."""

    now: datetime
    events: Sequence[Mapping[str, Any]] = ()
    pods: Sequence[Mapping[str, Any]] = ()
    skipped: Sequence[str] = ()


class StatusReport(Report):
    """One object and its related objects."""

    object: ObjectReport
    at: datetime
    """The time of the report, from which ages are counted."""
    conditions: tuple[ConditionReport, ...]
    pods: tuple[PodReport, ...]
    """The pods that are not ready first; at most fifty, `podCount` counts all."""
    pod_count: int
    events: tuple[EventReport, ...]
    """The newest first, at most ten."""
    skipped: tuple[str, ...]
    """What could not be checked or read, and why."""

    @property
    def healthy(self) -> bool:
        """Return whether the object needs no attention."""
        return self.object.state.healthy

    @property
    def settled(self) -> bool:
        """Return whether there is nothing left to wait for."""
        return self.object.state is ObjectState.READY

    @property
    def stalled(self) -> bool:
        """Return whether waiting alone changes nothing."""
        return self.object.state is ObjectState.STALLED

    def headline(self) -> str:
        """Summarise the state in one line."""
        report = self.object
        return f"{report.kind} {report.name} {report.state}: {report.explain_state()}"

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield the report; `wide` adds healthy conditions, and whole names and ages of pods."""
        report = self.object
        since = f" since {format_timestamp(report.since)}" if report.since is not None else ""
        yield f"{report.kind} {report.name}: {report.state}{since}"
        if report.state is not ObjectState.READY:
            yield format_field("why", report.explain_state())
        yield from self.summary_lines(wide=wide)
        for condition in self.conditions:
            if wide or not condition.healthy:
                yield format_field("healthy" if condition.healthy else "unhealthy", condition.format_line())
        if self.pods:
            yield from _render_titled("PODS", self._pod_rows(wide=wide))
            if self.pod_count > len(self.pods):
                yield f"and {self.pod_count - len(self.pods)} more pods"
        yield from self.related_lines()
        if self.events:
            rows = [
                [_format_ago(event.at, self.at), _describe_event(event), event.message]
                for event in self.events
            ]
            yield from _render_titled("EVENTS", [["AGO", "WHAT", "MESSAGE"], *rows])
        for skipped in self.skipped:
            yield format_field("left out", skipped)

    @abstractmethod
    def summary_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield the lines that are particular to the kind."""

    def related_lines(self) -> Iterator[str]:
        """Yield tables of other objects that have to do with it."""
        return iter(())

    def object_names(self) -> Iterator[str]:
        """Yield the object's own name."""
        yield format_name(self.object.kind, self.object.name.rpartition("/")[2])

    def _pod_rows(self, *, wide: bool) -> list[list[str]]:
        head = ["NAME", "READY", "PHASE", "RESTARTS", "AGE", "NODE", "TROUBLE"]
        rows = [
            [
                pod.name,
                "yes" if pod.ready else "no",
                pod.phase,
                str(pod.restarts),
                _format_ago(pod.made, self.at),
                pod.node or "-",
                pod.trouble if wide else _shorten(pod.trouble),
            ]
            for pod in self.pods
        ]
        return [head, *rows]


def common_fields(resource: StatefulObject, related: RelatedObjects) -> dict[str, Any]:
    """Return the fields that every StatusReport has."""
    pods = sorted(map(PodReport.from_pod, related.pods), key=lambda pod: (pod.ready, pod.name))
    oldest = datetime.min.replace(tzinfo=related.now.tzinfo)
    events = sorted(
        map(EventReport.from_event, related.events), key=lambda event: event.at or oldest, reverse=True
    )
    return {
        "object": ObjectReport.from_object(resource),
        "at": related.now,
        "conditions": report_conditions(resource.status.conditions),
        "pods": tuple(pods[:MAX_PODS]),
        "pod_count": len(pods),
        "events": tuple(events[:MAX_EVENTS]),
        "skipped": tuple(related.skipped),
    }


def format_field(label: str, text: str) -> str:
    """Format a line of a summary."""
    return f"  {label:12}{text}"


def render_table(title: str, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table under a title; nothing if it has no row but its head."""
    if len(rows) > 1:
        yield from _render_titled(title, rows)


def format_age(elapsed: timedelta) -> str:
    """Format a duration as kubectl does: 42s, 5m, 3h, 2d."""
    seconds = max(int(elapsed.total_seconds()), 0)
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _render_titled(title: str, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield ""
    yield title
    yield from align_columns(rows)


def _format_ago(then: datetime | None, now: datetime) -> str:
    return "-" if then is None else format_age(now - then)


def _describe_event(event: EventReport) -> str:
    times = f" x{event.count}" if event.count > 1 else ""
    return f"{'! ' if event.warning else ''}{event.reason}{times}"


def _shorten(text: str, longest: int = 100) -> str:
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
