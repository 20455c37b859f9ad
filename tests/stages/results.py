"""What one pytest run leaves for `tests/run.py`: a line of JSON per phase of a test, and per leak."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

_FIRST_CHARACTERS: Final = 500
_LAST_CHARACTERS: Final = 1500


class FailureKind(StrEnum):
    """What a first failure looks like, before anybody has looked into it."""

    LATE = "late"
    """A wait or a request ran out of time."""
    NOT_REACHED = "not-reached"
    """The test says that its scenario has not come about (`builders.scenario`)."""
    WRONG = "wrong"
    """An assertion failed, or an unexpected exception was raised."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one phase of a test failed."""

    kind: FailureKind
    message: str
    no_rerun: str | None = None
    """Reason of the test's `no_rerun` marker."""
    load: float = 0.0
    """Load average of the last minute."""
    pressure: float = 0.0
    """Share of the last ten seconds in which some process waited for a core, 0 to 100."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Setup, call or teardown of one test; or the collection of a file, or the crash of a worker, where that failed."""

    test: str
    when: str
    """`setup`, `call` or `teardown`; `collect`, and `???` for a worker that crashed."""
    outcome: str
    seconds: float
    processor_seconds: float
    """Of the process that ran it and of all that this has started, for this test or for earlier ones and still running.

    The processes of the shared cluster are not in it. Where no cgroup can be made, only the process itself and the
    children that it waited for are counted.
    """
    slow: bool = False
    failure: Failure | None = None

    @property
    def file(self) -> str:
        """The file of the test."""
        return self.test.split("::", 1)[0]


@dataclass(frozen=True, slots=True)
class Leak:
    """Something that was collected without having been closed, or an exception that could not be raised."""

    after: str
    """The test that ran when it was collected, which need not be the one that made it."""
    category: str
    message: str


@dataclass(frozen=True, slots=True)
class End:
    """Written when pytest ends by itself; one that is killed writes none."""

    collected: int
    """Tests that were to run."""
    processor_seconds: float = 0.0
    """Of pytest, its workers and all that they have started; 0 where no cgroup can be made."""


@dataclass(frozen=True, slots=True)
class Results:
    """Everything that one pytest run has recorded."""

    phases: Sequence[Phase] = ()
    leaks: Sequence[Leak] = ()
    end: End | None = None

    @property
    def failures(self) -> Sequence[Phase]:
        """The phases that failed; a test whose call and teardown failed is in it twice."""
        return [phase for phase in self.phases if phase.failure is not None]

    @property
    def passed(self) -> frozenset[str]:
        """Tests that ran and did not fail in any phase; skipped ones are not among them."""
        called = {phase.test for phase in self.phases if (phase.when, phase.outcome) == ("call", "passed")}
        return frozenset(called - {phase.test for phase in self.failures})

    @property
    def skipped(self) -> frozenset[str]:
        """Tests that were skipped."""
        return frozenset(phase.test for phase in self.phases if phase.outcome == "skipped")

    @property
    def tests(self) -> Sequence[Phase]:
        """One entry per test that ran, slowest first: its phases added up."""
        seconds: dict[str, tuple[float, float]] = {}
        slow = {phase.test for phase in self.phases if phase.slow}
        for phase in self.phases:
            wall, processor = seconds.get(phase.test, (0.0, 0.0))
            seconds[phase.test] = (wall + phase.seconds, processor + phase.processor_seconds)
        whole = [Phase(test, "all", "", *spent, slow=test in slow) for test, spent in seconds.items()]
        return sorted(whole, key=lambda test: -test.seconds)


def append(path: Path, *entries: Phase | Leak | End) -> None:
    """Add lines to a results file."""
    with path.open("a") as file:
        for entry in entries:
            file.write(json.dumps({type(entry).__name__.lower(): asdict(entry)}) + "\n")


def read(path: Path) -> Results:
    """Return what a results file holds; an absent file and a last line that was cut off count as nothing."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    entries = [json.loads(line) for line in lines]
    ends = [End(**entry["end"]) for entry in entries if "end" in entry]
    return Results(
        phases=[_phase(entry["phase"]) for entry in entries if "phase" in entry],
        leaks=[Leak(**entry["leak"]) for entry in entries if "leak" in entry],
        end=ends[0] if ends else None,
    )


def shorten(message: str) -> str:
    """Return both ends of a message: a wait says first what it is for, and pytest and kubectl say last what was wrong."""
    if len(message) <= _FIRST_CHARACTERS + _LAST_CHARACTERS:
        return message
    return f"{message[:_FIRST_CHARACTERS]} ... {message[-_LAST_CHARACTERS:]}"


def distinct(leaks: Iterable[Leak]) -> Sequence[Leak]:
    """Return one leak of each kind, the first one seen; addresses and file descriptors differ and do not count."""
    first: dict[tuple[str, str], Leak] = {}
    for leak in leaks:
        summary = leak.message.split("\n", 1)[0].split(" fd=", 1)[0].split(" at 0x", 1)[0]
        first.setdefault((leak.after.split("::", 1)[0], f"{leak.category} {summary}"), leak)
    return list(first.values())


def _phase(entry: dict[str, object]) -> Phase:
    failure = entry.pop("failure", None)
    if isinstance(failure, dict):
        failure = Failure(**{**failure, "kind": FailureKind(failure["kind"])})
    return Phase(**entry, failure=failure)  # type: ignore[arg-type]
