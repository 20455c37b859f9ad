"""What `tests/run.py` prints when its stages have ended."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stages.cluster import SPENT
from stages.flakes import Flake, KnownFlake
from stages.rerun import NO_TESTS, Failed, Reruns
from stages.results import Leak, Results, distinct

_SLOWEST: Final = 15
_COSTLIEST: Final = 25
_MESSAGE_CHARACTERS: Final = 400
_SHOWN_FAILURES: Final = 8
_LINE_CHARACTERS: Final = 150


@dataclass(slots=True)
class Outcome:
    """How one stage ended."""

    stage: str
    exit_code: int
    results: Results
    seconds: float
    reruns: Reruns | Failed
    passed_again: set[str] = field(default_factory=set[str])

    @property
    def processor_seconds(self) -> float:
        """Of pytest, its workers and all that they have started, all cores added up."""
        end = self.results.end
        tests = sum(test.processor_seconds for test in self.results.tests)
        return max(tests, end.processor_seconds if end is not None else 0.0)

    @property
    def failed_again(self) -> Sequence[str]:
        """Tests that were to be run once more and did not pass then."""
        groups = () if isinstance(self.reruns, Failed) else self.reruns
        return [phase.test for group in groups for phase in group if phase.test not in self.passed_again]

    @property
    def failed(self) -> bool:
        """Whether the stage fails the run."""
        return isinstance(self.reruns, Failed) or bool(self.failed_again)

    @property
    def verdict(self) -> str:
        """The stage's result as one phrase."""
        if isinstance(self.reruns, Failed):
            return f"FAILED: {self.reruns.reason}"
        if self.failed_again:
            return f"FAILED, and not passed alone: {', '.join(self.failed_again)}"
        if self.passed_again:
            return f"passed, {len(self.passed_again)} only when run again"
        return "no tests" if self.exit_code == NO_TESTS else "passed"


def stages_table(outcomes: Sequence[Outcome]) -> str:
    """Return time, processor time and verdict of each stage."""
    lines = [f"{'stage':10} {'tests':>6} {'time':>8} {'processor':>10}  result"]
    for outcome in outcomes:
        line = (
            f"{outcome.stage:10} {len(outcome.results.tests):6} {outcome.seconds:6.0f} s "
            f"{outcome.processor_seconds:8.0f} s  {outcome.verdict}"
        )
        lines.append(red(line) if outcome.failed else line)
    return "\n".join(lines)


def total_lines(outcomes: Sequence[Outcome], seconds: float, processor_seconds: float) -> str:
    """Return the sum over all stages; its processor time is the whole machine's, a cluster's processes included."""
    cores = os.cpu_count() or 1
    tests = sum(len(outcome.results.tests) for outcome in outcomes)
    failed = {phase.test for outcome in outcomes for phase in outcome.results.failures}
    failed -= {test for outcome in outcomes for test in outcome.passed_again}
    skipped = {test for outcome in outcomes for test in outcome.results.skipped}
    share = processor_seconds / (seconds * cores)
    return (
        f"{'all':10} {tests:6} {seconds:6.0f} s {processor_seconds:8.0f} s  {share:.0%} of {cores} cores\n"
        f"{tests - len(failed) - len(skipped - failed)} passed, {len(failed)} failed, {len(skipped - failed)} skipped"
    )


def failures_block(outcomes: Sequence[Outcome]) -> str:
    """Return the first tests that failed and no rerun has cleared, each with the first line of its message, in red."""
    first: dict[str, str] = {}
    for outcome in outcomes:
        for phase in outcome.results.failures:
            if phase.failure is not None and phase.test not in outcome.passed_again:
                first.setdefault(phase.test, phase.failure.message.strip().split("\n", 1)[0])
    lines = [f"  {test}: {message[:_LINE_CHARACTERS]}" for test, message in first.items()]
    if len(lines) > _SHOWN_FAILURES:
        lines[_SHOWN_FAILURES:] = [f"  and {len(lines) - _SHOWN_FAILURES} more"]
    return red("\n".join(["FAILED:", *lines])) if lines else ""


def costs_block(outcomes: Sequence[Outcome]) -> str:
    """Return the slowest tests of each stage, and the files that cost most processor time."""
    lines: list[str] = []
    for outcome in outcomes:
        tests = outcome.results.tests
        lines.append(f"slowest tests of {outcome.stage}: time, and processor time of all their processes")
        lines += [
            f"  {test.seconds:7.1f} s {test.processor_seconds:7.1f} s  {test.test}"
            for test in tests[:_SLOWEST]
            if test.seconds > 1
        ]
        files: dict[str, tuple[float, float]] = {}
        for test in tests:
            spent, seconds = files.get(test.file, (0.0, 0.0))
            files[test.file] = (spent + test.processor_seconds, seconds + test.seconds)
        costly = sorted(files.items(), key=lambda entry: -entry[1][0])[:_COSTLIEST]
        lines.append(f"files of {outcome.stage} with most processor time: it, and time")
        lines += [
            f"  {spent:7.1f} s {seconds:7.1f} s  {name}" for name, (spent, seconds) in costly if spent > 1
        ]
    return "\n".join(lines)


def cluster_line(results: Path) -> str:
    """Return processor seconds by program of the shared cluster; empty where none has run."""
    path = results / SPENT
    spent: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    programs = sorted(spent.items(), key=lambda entry: -entry[1])
    shown = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in programs if seconds >= 1)
    return f"processor time of the shared cluster: {sum(spent.values()):.0f} s: {shown}" if spent else ""


def leaks_block(leaks: Iterable[Leak]) -> str:
    """Return what was not closed, each kind once per file; empty when there is nothing."""
    lines = [
        f"  after {leak.after or 'collection'}: {leak.category}: {leak.message[:_MESSAGE_CHARACTERS]}"
        for leak in distinct(leaks)
    ]
    return "\n".join(["LEAKS: collected late, possibly made by an earlier test", *lines]) if lines else ""


def flaky_block(flakes: Sequence[Flake], known: Sequence[KnownFlake]) -> str:
    """Return the tests that passed only when run again, in red, with the entry for flaky.toml of those not listed."""
    since = {flake.id: flake.date for flake in known}
    lines: list[str] = []
    for flake in flakes:
        failure = flake.failure
        lines.append(f"FLAKY ({failure.kind}): {flake.test}")
        lines.append(f"  load {failure.load:.1f}, {failure.pressure:.0f} % of the time waiting for a core")
        lines += [f"  {line}" for line in failure.message[:_MESSAGE_CHARACTERS].split("\n")]
        if flake.test in since:
            lines.append(f"  listed in tests/flaky.toml since {since[flake.test]}")
        else:
            lines += ["  look for the race, and add to tests/flaky.toml until it is mended:", *_entry(flake)]
    return red("\n".join(lines))


def _entry(flake: Flake) -> Sequence[str]:
    message = json.dumps(flake.failure.message.split("\n", 1)[0][:_MESSAGE_CHARACTERS])
    date = flake.time.split("T", 1)[0]
    fields = (
        f"id = {json.dumps(flake.test)}",
        f"date = {date}",
        f'kind = "{flake.failure.kind}"',
        'owner = ""',
    )
    return ["[[flaky]]", *fields, f"message = {message}"]


def red(text: str) -> str:
    """Return the text in red where a terminal or CI shows colours."""
    colours = (sys.stdout.isatty() or "CI" in os.environ) and "NO_COLOR" not in os.environ
    return "\n".join(f"\033[31m{line}\033[0m" for line in text.split("\n")) if colours else text
