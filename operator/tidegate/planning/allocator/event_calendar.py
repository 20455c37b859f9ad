"""The events of a pool: which are near or running, when that changes, and the demand that they are expected to bring."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from tidegate.api.compute_pool import AllocationPolicy
from tidegate.api.conditions import format_timestamp
from tidegate.api.demand_events import DemandEvent
from tidegate.api.durations import parse_duration
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.replica_times import MAX_LEAD
from tidegate.planning.allocator.schedules import CronSchedule, UnreadableScheduleError
from tidegate.planning.allocator.signals import MAX_RATE_PER_S

BASELINE_WINDOW: Final = timedelta(minutes=10)
"""The baseline of an event is the highest rate within this time before the event is near."""
_DEFAULT_LEAD: Final = timedelta(minutes=5)
_MAX_JOINED: Final = 64
"""Events in a row, without a baseline window between them, whose first one is looked for."""
_SHOWN: Final = 3
_MOMENT: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class EventDemand:
    """What an event brings one Inference: `factor` times `baseline_per_s`, the rate before `quiet_until`.

    Without a baseline nothing is multiplied, and the Inference keeps its replicas. `quiet_until` is None if events follow
    each other so closely that no rate is one without an event.
    """

    event: str
    factor: float
    quiet_until: datetime | None
    baseline_per_s: float | None

    @property
    def rate_per_s(self) -> float:
        """Return the rate that is expected; 0 without a baseline."""
        return min(self.factor * (self.baseline_per_s or 0.0), MAX_RATE_PER_S)

    @property
    def expectation_text(self) -> str:
        """Return why that rate is expected."""
        return f"expected for {self.event}: {self.factor:g} x {self.baseline_per_s or 0.0:,.0f}/s"


@dataclass(frozen=True, slots=True)
class Occurrence:
    """An event from `begins` to `ends`, which is near from `opens` on."""

    event: DemandEvent
    opens: datetime
    begins: datetime
    ends: datetime


@dataclass(frozen=True, slots=True)
class EventCalendar:
    """The events of a pool that can be read, each near from `lead` before it begins; `problems` names the others."""

    events: tuple[DemandEvent, ...] = ()
    lead: timedelta = _DEFAULT_LEAD
    problems: tuple[str, ...] = ()

    def find_near(self, now: datetime) -> tuple[Occurrence, ...]:
        """Return the events that are near or running, the largest factor first."""
        last = (self._find_last(event, now) for event in self.events)
        near = (item for item in last if item is not None and now < item.ends)
        return tuple(sorted(near, key=lambda item: (-float(item.event.factor), item.begins)))

    def select_concerning(self, key: ObjectKey) -> tuple[DemandEvent, ...]:
        """Return the events that change the demand for one Inference."""
        return tuple(event for event in self.events if event.concerns_inference(key))

    def find_first(self, events: Sequence[DemandEvent], now: datetime) -> Occurrence | None:
        """Return the first of the consecutive events that lead up to now; None if none is near, or if there are too many.

        Events follow each other if there is no baseline window between them: what is measured there may be their demand.
        """
        reach = now
        first: Occurrence | None = None
        for _ in range(_MAX_JOINED):
            last = (self._find_last(event, reach) for event in events)
            window = timedelta() if first is None else BASELINE_WINDOW
            joined = [item for item in last if item is not None and item.ends > reach - window]
            if not joined:
                return first
            first = min(joined, key=lambda item: item.opens)
            reach = first.opens - _MOMENT
        return None

    def find_next(self, now: datetime) -> Occurrence | None:
        """Return the event that begins next; None if none begins again."""
        following = (self._find_following(event, now) for event in self.events)
        return min((item for item in following if item), key=lambda item: item.begins, default=None)

    def find_next_change(self, now: datetime) -> datetime | None:
        """Return when an event comes near or ends next; None if none will."""
        # An event that is near already begins before now + lead, and is not near again before the next one is.
        coming = (self._find_following(event, now + self.lead) for event in self.events)
        changes = [*(item.opens for item in coming if item), *(item.ends for item in self.find_near(now))]
        return min(changes, default=None)

    def describe_events(self, now: datetime) -> str:
        """Return the message of a condition: the events that are near or running, or else the next one."""
        near = self.find_near(now)
        if near:
            rest = f" and {len(near) - _SHOWN} more" if len(near) > _SHOWN else ""
            return "; ".join(_describe_occurrence(item, now) for item in near[:_SHOWN]) + rest
        following = self.find_next(now)
        if following is None:
            return "no event is near, and none begins again"
        begins = format_timestamp(following.begins)
        return f"no event is near; next is {following.event.name} at {begins}, {following.event.factor} x"

    def _find_last(self, event: DemandEvent, moment: datetime) -> Occurrence | None:
        """Return the last occurrence that is near or past at a moment."""
        return self._make_occurrence(event, _find_last_begin(event, moment + self.lead))

    def _find_following(self, event: DemandEvent, moment: datetime) -> Occurrence | None:
        return self._make_occurrence(event, _find_next_begin(event, moment))

    def _make_occurrence(self, event: DemandEvent, begins: datetime | None) -> Occurrence | None:
        if begins is None:
            return None
        return Occurrence(event, begins - self.lead, begins, begins + parse_duration(event.duration))


def read_calendar(
    policy: AllocationPolicy,
    load_times_s: Iterable[float | None],
    now: datetime,
    last_lead: timedelta = timedelta(),
) -> EventCalendar:
    """Read the events of a policy; `load_times_s` are those that are measured in the pool.

    A measured lead is not shorter than `last_lead`, that of the last read, while an event is near.
    """
    problems = dict(_find_problems(policy.events, now))
    readable = tuple(event for index, event in enumerate(policy.events) if index not in problems)
    calendar = EventCalendar(readable, problems=tuple(problems.values()))
    planned = _DEFAULT_LEAD if policy.forecast is None else parse_duration(policy.forecast.horizon)
    measured = [min(timedelta(seconds=seconds), MAX_LEAD) for seconds in load_times_s if seconds is not None]
    calendar = replace(calendar, lead=max([planned, *measured]))
    longer = replace(calendar, lead=max(calendar.lead, last_lead))
    return longer if longer.find_near(now) else calendar


def _find_problems(events: Iterable[DemandEvent], now: datetime) -> Iterator[tuple[int, str]]:
    for index, event in enumerate(events):
        try:
            _find_last_begin(event, now)
            _find_next_begin(event, now)
            _check_end(event)
        except UnreadableScheduleError as error:
            yield index, f"{event.name} is ignored until it is corrected: spec.policy.events[{index}].{error}"


def _check_end(event: DemandEvent) -> None:
    """Raise UnreadableScheduleError for an event that comes once and ends after the year 9999."""
    if event.starts_at is None:
        return
    begins = datetime.fromisoformat(event.starts_at)
    if datetime.max.replace(tzinfo=UTC) - begins < parse_duration(event.duration):
        message = f"at {event.starts_at!r} with duration {event.duration!r} ends after the year 9999"
        raise UnreadableScheduleError(message)


def _find_last_begin(event: DemandEvent, moment: datetime) -> datetime | None:
    if event.starts_at is not None:
        begins = datetime.fromisoformat(event.starts_at)
        return begins if begins <= moment else None
    return CronSchedule(event.schedule or "", event.time_zone).find_last(moment)


def _find_next_begin(event: DemandEvent, moment: datetime) -> datetime | None:
    if event.starts_at is not None:
        begins = datetime.fromisoformat(event.starts_at)
        return begins if begins > moment else None
    return CronSchedule(event.schedule or "", event.time_zone).find_next(moment)


def _describe_occurrence(item: Occurrence, now: datetime) -> str:
    begin = f"from {format_timestamp(item.begins)} " if now < item.begins else ""
    until = "to" if begin else "until"
    return f"{item.event.name}: {item.event.factor} x {begin}{until} {format_timestamp(item.ends)}"
