"""Decides which failed tests are run once more: few, and none where the failure is a defect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from stages.results import Failure, FailureKind, Phase, Results

MOST: Final = 3
"""Causes of failure per stage. With more, something is broken that a second run does not mend."""

NO_TESTS: Final = 5
_TESTS_FAILED: Final = 1
_SAID_CHARACTERS: Final = 300
"""Of a failure's message: the summary is all that some CI keeps."""
_PHASES_OF_TESTS: Final = frozenset({"setup", "call", "teardown"})


@dataclass(frozen=True, slots=True)
class Failed:
    """The stage has failed, and nothing of it is run again."""

    reason: str


Reruns: TypeAlias = Sequence[Sequence[Phase]]
"""Groups of failures with one cause, such as a fixture that several tests share: each group is run by itself."""


def plan_reruns(results: Results, exit_code: int, *, allowed: bool) -> Reruns | Failed:
    """Return the groups of tests to run once more, none when the stage has passed, or why the stage has failed.

    `allowed` is False for stages whose tests use nothing but their own process: there a second run would hide a defect.
    """
    if exit_code in {0, NO_TESTS}:
        return ()
    incomplete = _incomplete(results, exit_code)
    if incomplete is not None:
        return Failed(incomplete)
    if not allowed:
        return Failed("tests of this stage are never run again")
    for phase in results.failures:
        if phase.failure is not None and _breaks_promise(phase, phase.failure):
            said = phase.failure.message.strip().partition("\n")[0][:_SAID_CHARACTERS]
            return Failed(f"{phase.test} is never run again ({phase.failure.no_rerun}): {said}")
    groups = _by_cause(results.failures)
    if len(groups) > MOST:
        return Failed(f"{len(groups)} causes of failure; at most {MOST} of a stage are run again")
    return groups


def _breaks_promise(phase: Phase, failure: Failure) -> bool:
    """Return whether a test marked `no_rerun` has failed at what it is for.

    One that ended before its scenario, in a fixture or by its own word (`builders.scenario`), says nothing about that.
    """
    is_before_scenario = phase.when == "setup" or failure.kind is FailureKind.NOT_REACHED
    return failure.no_rerun is not None and not is_before_scenario


def _incomplete(results: Results, exit_code: int) -> str | None:
    """Return why the run says too little to be completed by a second run of what has failed; None when it is whole."""
    if exit_code != _TESTS_FAILED or results.end is None:
        return f"pytest ended with exit code {exit_code}"
    if not results.failures:
        return "pytest failed without a failed test: see its output above"
    for phase in results.failures:
        if phase.when not in _PHASES_OF_TESTS:
            return f"{phase.test} could not be collected, or the process that ran it crashed"
    if len(results.tests) < results.end.collected:
        return f"{len(results.tests)} of {results.end.collected} tests were run"
    return None


def _by_cause(failures: Sequence[Phase]) -> Reruns:
    """Group errors of one fixture; any other failed test is a group of its own, and no test is in two."""
    causes: dict[str, tuple[str, ...]] = {}
    groups: dict[tuple[str, ...], list[Phase]] = {}
    for phase in failures:
        if phase.test not in causes:
            message = phase.failure.message if phase.failure is not None else ""
            of_fixture = phase.when == "setup"
            causes[phase.test] = (phase.file, message) if of_fixture else (phase.test,)
            groups.setdefault(causes[phase.test], []).append(phase)
    return list(groups.values())
