"""What near-line work asks for: messages that come, and those that wait, from what a broker counts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.planning.signals import Reading
from tidegate_dataplane.contract import AgentReport, StreamCount

CATCH_UP_S: Final = 60.0
"""What waits is to be dealt with in this time, beside what comes meanwhile."""
STALE_S: Final = 30.0
"""A pod asks its broker every two seconds; an older count is that of a broker that it has lost."""
_LEAST_S: Final = 0.5
"""Two counts closer than this say nothing about a rate."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What a broker had counted at `at_s`, by a clock that never goes back; `per_s` are the messages that came since the count before."""

    at_s: float
    unsettled: int
    arrived: int
    per_s: float | None = None


Counts = Mapping[ObjectKey, Counted]


def newest(reports: Iterable[AgentReport]) -> StreamCount | None:
    """The youngest count of the pods of one Inference, which all count the same; None where none has one of now."""
    found = (each.stream.count for each in reports if each.stream is not None)
    young = (each for each in found if each is not None and each.age_s <= STALE_S)
    return min(young, key=lambda each: each.age_s, default=None)


def follow(before: Counted | None, count: StreamCount, now_s: float) -> Counted:
    """One count more. After a consumer that was made anew, and after the first one, no rate is known yet."""
    at_s = now_s - count.age_s
    if before is not None and at_s - before.at_s < _LEAST_S:
        return before
    per_s = None
    if before is not None and count.arrived >= before.arrived:
        per_s = (count.arrived - before.arrived) / (at_s - before.at_s)
    return Counted(at_s, count.unsettled, count.arrived, per_s)


def reading(counted: Counted) -> Reading | None:
    """Messages per second to be answered so that none waits for longer than CATCH_UP_S; None while no rate is known."""
    if counted.per_s is None:
        return None
    return Reading(offered_per_s=counted.per_s + counted.unsettled / CATCH_UP_S)
