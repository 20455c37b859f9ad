"""Faults as values: what happens, at which write or at which event of a watch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class When(StrEnum):
    """On which side of a request a fault strikes: nobody has seen it yet, or nobody hears the answer."""

    BEFORE = "before"
    AFTER = "after"


class WriteDeed(StrEnum):
    """What happens at a write."""

    KILL = "kill"
    """kill -9 of the operator; another one starts."""
    BREAK = "break"
    """The connection breaks; the operator lives."""
    REFUSE = "refuse"
    """503 with Retry-After instead of an answer; with AFTER the write has been carried out all the same."""


@dataclass(frozen=True, slots=True)
class WriteFault:
    """Strikes once, at the write of this number within the run."""

    at: int
    when: When
    deed: WriteDeed = WriteDeed.KILL
    stale_s: float = 0.0
    """The next operator sees, for so long, what there was when the run began (Sieve's stale state)."""

    def __str__(self) -> str:
        stale = f", then stale reads for {self.stale_s:g} s" if self.stale_s else ""
        return f"{self.deed} {self.when} write {self.at}{stale}"


@dataclass(frozen=True, slots=True)
class EveryMove:
    """kill -9 after each write that moves slices: decisions, what is allocated, Deployments. Each successor makes one."""

    def __str__(self) -> str:
        return "kill after every write that moves slices"


class WatchDeed(StrEnum):
    """What happens to a watch from one event on."""

    DROP = "drop"
    """The event is lost; later the API server says 410, as one whose history has a hole."""
    DELAY = "delay"
    """The event and all behind it come late."""
    DUPLICATE = "duplicate"
    """The event comes twice."""
    REORDER = "reorder"
    """The event comes behind the next one."""
    CUT = "cut"
    """Half a line, then the connection ends."""
    GONE = "gone"
    """410 Gone instead of the event."""
    STALL = "stall"
    """Silence on an open connection, which then breaks; what came meanwhile is sent to the next watch."""
    BLIND = "blind"
    """Silence, then 410: the operator sees what has become of it all, and none of the states between (Sieve's
    unobserved state)."""


@dataclass(frozen=True, slots=True)
class WatchFault:
    """Strikes once, at the event of this number that a watch of `resource` brings during the run."""

    deed: WatchDeed
    resource: str
    at: int = 1
    hold_s: float = 1.5

    def __str__(self) -> str:
        return f"{self.deed} {self.resource} event {self.at}"


@dataclass(frozen=True, slots=True)
class NoFault:
    """The reference run."""

    def __str__(self) -> str:
        return "no fault"


Fault: TypeAlias = WriteFault | EveryMove | WatchFault | NoFault
