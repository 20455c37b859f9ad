"""How one object is: what every kind's status has, conditions, events and pods among it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Self

from tidegate.api.conditions import timestamp
from tidegate.api.meta import ApiModel
from tidegate.planning.pods import pod_view
from tidegate.reports.report import Report, columns, named
from tidegate.reports.standing import ConditionReport, conditions_of
from tidegate.reports.state import ObjectReport, Served, State

EVENTS: Final = 10
"""How many events are shown, the newest first."""
PODS: Final = 50
"""How many pods are listed, those that are not ready first; the others are counted."""


class RouteRole(StrEnum):
    """What an Inference is to a route."""

    TARGET = "Target"
    MIRROR = "Mirror"
    FALLBACK = "Fallback"
    PIPELINE = "Pipeline"


class EventReport(ApiModel):
    """One thing that happened to the object."""

    at: datetime | None
    warning: bool
    reason: str
    message: str
    count: int

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Self:
        """Reads a v1 Event."""
        at = body.get("lastTimestamp") or body.get("eventTime") or body["metadata"].get("creationTimestamp")
        return cls(
            at=datetime.fromisoformat(at) if at else None,
            warning=body.get("type") == "Warning",
            reason=body.get("reason") or "",
            message=body.get("message") or "",
            count=body.get("count") or 1,
        )


class PodReport(ApiModel):
    """One pod of the object."""

    name: str
    phase: str
    """As Kubernetes has it; Terminating where it is on its way out."""
    ready: bool
    restarts: int
    node: str | None
    made: datetime | None
    trouble: str
    """Why it does not run; empty where it does, or nobody says."""

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Self:
        """Reads a Pod."""
        metadata, status = body["metadata"], body.get("status") or {}
        view = pod_view(body)
        made = metadata.get("creationTimestamp")
        trouble = view.trouble.message if view.trouble is not None else view.unschedulable
        leaving = "deletionTimestamp" in metadata
        return cls(
            name=view.key.name,
            phase="Terminating" if leaving else status.get("phase") or "Pending",
            ready=view.ready and not leaving,
            restarts=sum(each.get("restartCount", 0) for each in status.get("containerStatuses") or ()),
            node=(body.get("spec") or {}).get("nodeName"),
            made=datetime.fromisoformat(made) if made else None,
            trouble=trouble,
        )


@dataclass(frozen=True, slots=True)
class Beside:
    """What was read beside an object: JSON of its events and pods, and what could not be."""

    now: datetime
    events: Sequence[Mapping[str, Any]] = ()
    pods: Sequence[Mapping[str, Any]] = ()
    skipped: Sequence[str] = ()


class StatusReport(Report):
    """One object, and what belongs to it."""

    object: ObjectReport
    at: datetime
    """When it was looked at; ages are counted to then."""
    conditions: tuple[ConditionReport, ...]
    pods: tuple[PodReport, ...]
    """Those that are not ready first; at most fifty, `podCount` has all."""
    pod_count: int
    events: tuple[EventReport, ...]
    """The newest first, at most ten."""
    skipped: tuple[str, ...]
    """What could not be looked at, and why."""

    @property
    def as_it_should_be(self) -> bool:
        """Whether nobody needs to look."""
        return self.object.state.as_it_should_be

    @property
    def settled(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self.object.state is State.READY

    @property
    def hopeless(self) -> bool:
        """Whether waiting alone changes nothing."""
        return self.object.state is State.STALLED

    def headline(self) -> str:
        """Where it stands, in a line."""
        one = self.object
        return f"{one.kind} {one.name} {one.state}: {one.says()}"

    def lines(self, *, wide: bool) -> Iterator[str]:
        """`wide` has the conditions that are as they should be, and whole names and ages of pods besides."""
        one = self.object
        since = f" since {timestamp(one.since)}" if one.since is not None else ""
        yield f"{one.kind} {one.name}: {one.state}{since}"
        if one.state is not State.READY:
            yield field("why", one.says())
        yield from self.summary(wide=wide)
        for each in self.conditions:
            if wide or not each.as_it_should_be:
                yield field("well" if each.as_it_should_be else "look", each.line())
        if self.pods:
            yield from _titled("PODS", self._pod_rows(wide=wide))
            if self.pod_count > len(self.pods):
                yield f"and {self.pod_count - len(self.pods)} more pods"
        yield from self.related()
        if self.events:
            rows = [[_ago(each.at, self.at), _said(each), each.message] for each in self.events]
            yield from _titled("EVENTS", [["AGO", "WHAT", "MESSAGE"], *rows])
        for skipped in self.skipped:
            yield field("left out", skipped)

    @abstractmethod
    def summary(self, *, wide: bool) -> Iterator[str]:
        """What is particular to its kind."""

    def related(self) -> Iterator[str]:
        """Other objects that have to do with it."""
        return iter(())

    def names(self) -> Iterator[str]:
        """Its own."""
        yield named(self.object.kind, self.object.name.rpartition("/")[2])

    def _pod_rows(self, *, wide: bool) -> list[list[str]]:
        head = ["NAME", "READY", "PHASE", "RESTARTS", "AGE", "NODE", "TROUBLE"]
        rows = [
            [
                each.name,
                "yes" if each.ready else "no",
                each.phase,
                str(each.restarts),
                _ago(each.made, self.at),
                each.node or "-",
                each.trouble if wide else _short(each.trouble),
            ]
            for each in self.pods
        ]
        return [head, *rows]


def parts(one: Served, beside: Beside) -> dict[str, Any]:
    """The fields that every StatusReport has."""
    pods = sorted(map(PodReport.of, beside.pods), key=lambda each: (each.ready, each.name))
    oldest = datetime.min.replace(tzinfo=beside.now.tzinfo)
    events = sorted(map(EventReport.of, beside.events), key=lambda each: each.at or oldest, reverse=True)
    return {
        "object": ObjectReport.of(one),
        "at": beside.now,
        "conditions": conditions_of(one.status.conditions),
        "pods": tuple(pods[:PODS]),
        "pod_count": len(pods),
        "events": tuple(events[:EVENTS]),
        "skipped": tuple(beside.skipped),
    }


def field(what: str, said: str) -> str:
    """A line of a summary."""
    return f"  {what:12}{said}"


def table(title: str, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table under a title; nothing where it has no row but its head."""
    if len(rows) > 1:
        yield from _titled(title, rows)


def age(of: timedelta) -> str:
    """As kubectl writes ages: 42s, 5m, 3h, 2d."""
    seconds = max(int(of.total_seconds()), 0)
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _titled(title: str, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield ""
    yield title
    yield from columns(rows)


def _ago(then: datetime | None, now: datetime) -> str:
    return "-" if then is None else age(now - then)


def _said(event: EventReport) -> str:
    times = f" x{event.count}" if event.count > 1 else ""
    return f"{'! ' if event.warning else ''}{event.reason}{times}"


def _short(text: str, longest: int = 100) -> str:
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
