"""Runs the tests in stages, some side by side: `python tests/run.py [--stage NAME]... [pytest arguments]`.

Failed tests of every stage but `unit` are run once more, alone, when everything else has ended (`stages/rerun.py`).
A test that passes then does not fail the run, but it is printed last, in red, and recorded in build/test-results/flaky.jsonl.
"""

from __future__ import annotations

import argparse
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeAlias

from stages.cluster import SPENT, SharedCluster, shared_cluster
from stages.examples import ALL_TESTS_VARIABLE
from stages.flakes import Flake, known_flakes, record
from stages.machine import busy_seconds
from stages.report import (
    Outcome,
    cluster_line,
    costs_block,
    failures_block,
    flaky_block,
    leaks_block,
    stages_table,
    total_lines,
)
from stages.rerun import NO_TESTS, Failed, plan_reruns
from stages.results import Phase, Results, read
from stages.slow import LONG_FILE_S, FullRun, age_line, read_last_full_run, write_full_run

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "build" / "test-results"
TOOLS: Final = ROOT / "build" / "tools" / "bin"
"""Where `make setup` puts uv on a machine that has none."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Tests of one process of pytest and its workers."""

    name: str
    arguments: tuple[str, ...]
    reruns: bool
    """Whether a failed test is run once more: not where tests use nothing but their own process."""
    on_cluster: bool = False
    """Whether its tests need the cluster that stages share."""


_BY_FILE: Final = ("--dist", "loadfile", "--max-worker-restart", "0")
_BY_FILE_ON_TWO: Final = ("-n", "2", *_BY_FILE)
# Three workers: their tests wait, for pods and for processes, nearly as long as they work.
_LONG_FILES_FIRST_ON_THREE: Final = ("-n", "3", *_BY_FILE, "--no-loadscope-reorder")
_UNIT: Final = ("tests/unit", "tests/golden", "tests/test_layout.py")
STAGES: Final = (
    # They compute all the time: without a low priority, the servers of the other lane would lack processor time.
    Stage("unit", ("--low-priority", *_BY_FILE_ON_TWO, *_UNIT), reruns=False),
    Stage("servers", (*_LONG_FILES_FIRST_ON_THREE, "tests/component", "tests/integration"), reruns=True),
    Stage(
        "cluster",
        ("-v", *_LONG_FILES_FIRST_ON_THREE, "--cluster-tests=shared", "tests/e2e"),
        reruns=True,
        on_cluster=True,
    ),
    Stage("alone", ("-v", "--cluster-tests=alone", "tests/e2e"), reruns=True, on_cluster=True),
)
_LANES: Final = (("servers",), ("cluster", "alone", "unit", "fast"))
"""Names of stages that run one after the other, beside the other lane; both lanes take about as long.

`alone` needs the cluster for itself, not the machine. `unit` comes last, since a cluster that waits for it would take a
third of a processor meanwhile.
"""
_NOTHING_BUILT: Final = ("-m", "not integration and not e2e and not triton")
FAST: Final = Stage("fast", (*_BY_FILE_ON_TWO, *_NOTHING_BUILT, *_UNIT, "tests/component"), reruns=False)
"""Of the first two, what needs nothing that has to be built."""

Pytest: TypeAlias = Callable[[str, Sequence[str]], tuple[int, Results]]
"""Runs pytest with arguments; its exit code, and what it recorded under this name."""


def main(arguments: Sequence[str], pytest: Runner) -> int:
    """Run the stages. Returns 0 when all have passed, 5 when there was no test, 1 otherwise."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    stages = {stage.name: stage for stage in (*STAGES, FAST)}
    parser.add_argument(
        "--stage", action="append", choices=stages, help="run this stage alone; may be repeated"
    )
    parser.add_argument(
        "--all", action="store_true", help="run all slow tests, and write tests/last-full-run.json"
    )
    parser.add_argument(
        "--check-age", action="store_true", help="say how old the last run with --all is, and end"
    )
    chosen, pytest_arguments = parser.parse_known_args(arguments)
    if chosen.check_age:
        print(age_line(read_last_full_run()))
        return 0
    commit = _commit()
    names = chosen.stage or [stage.name for stage in STAGES]
    if chosen.all:
        os.environ[ALL_TESTS_VARIABLE] = "1"
    # API servers and other Go programs live for minutes on a machine with memory to spare: collecting their garbage
    # less often saves a sixth of their processor time.
    os.environ.setdefault("GOGC", "400")
    slow = [] if chosen.all else [f"--slow-seed={commit}"]
    (RESULTS / SPENT).unlink(missing_ok=True)
    started, busy = time.monotonic(), busy_seconds()
    outcomes = run_stages([stages[name] for name in names], [*slow, *pytest_arguments], pytest)
    flakes = run_again(outcomes, pytest)
    seconds, processor_seconds = time.monotonic() - started, busy_seconds() - busy
    print(costs_block(outcomes))
    if spent := cluster_line(RESULTS):
        print(spent)
    leaks = leaks_block([leak for outcome in outcomes for leak in outcome.results.leaks])
    if leaks:
        print(leaks)
    print(stages_table(outcomes))
    print(total_lines(outcomes, seconds, processor_seconds))
    if failures := failures_block(outcomes):
        print(failures)
    if flakes:
        record(RESULTS / "flaky.jsonl", flakes)
        print(flaky_block(flakes, known_flakes()))
    if chosen.all and not chosen.stage and not pytest_arguments:
        write_full_run(full_run(commit, outcomes, read_last_full_run()))
    if any(outcome.failed for outcome in outcomes):
        return 1
    return NO_TESTS if all(outcome.exit_code == NO_TESTS for outcome in outcomes) else 0


def full_run(commit: str, outcomes: Sequence[Outcome], before: FullRun | None) -> FullRun:
    """Return what is committed of a run of all tests; durations of what was skipped are those of the run before."""
    results = [outcome.results for outcome in outcomes]
    cleared = {test for outcome in outcomes for test in outcome.passed_again}
    skipped = {test for run in results for test in run.skipped}
    ran = [test for run in results for test in run.tests if test.test not in skipped]
    slow, files = {test.test: round(test.seconds, 1) for test in ran if test.slow}, sum_long_files(ran)
    if before is not None:
        not_run = {test.file for run in results for test in run.tests} - {test.file for test in ran}
        slow |= {test: seconds for test, seconds in before.slow.items() if test in skipped}
        files |= {file: seconds for file, seconds in before.files.items() if file in not_run}
    return FullRun(
        commit=commit,
        time=_now(),
        seconds={outcome.stage: round(outcome.seconds) for outcome in outcomes},
        failed=sorted({phase.test for run in results for phase in run.failures} - cleared),
        slow=slow,
        files=files,
    )


def sum_long_files(tests: Iterable[Phase]) -> dict[str, int]:
    """Return the seconds of each file that takes long, without its slow tests, which few runs have."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for test in tests:
        if not test.slow:
            seconds[test.file] += test.seconds
    return {file: round(spent) for file, spent in seconds.items() if spent >= LONG_FILE_S}


def run_stages(stages: Sequence[Stage], arguments: Sequence[str], pytest: Runner) -> Sequence[Outcome]:
    """Run the stages in two lanes, and return how each ended; a cluster that they share is started first."""
    on_cluster_names = {stage.name for stage in stages if stage.on_cluster}
    cluster = shared_cluster(RESULTS / "cluster.log") if on_cluster_names else nullcontext(SharedCluster())
    lanes = [[stage for stage in stages if stage.name in names] for names in _LANES]
    with cluster as shared, ThreadPoolExecutor() as side_by_side:

        def run(lane: Sequence[Stage]) -> Sequence[Outcome]:
            on_it = [stage for stage in lane if stage.on_cluster]
            outcomes = run_on_cluster(on_it, shared, arguments, pytest) if on_it else []
            rest = [stage for stage in lane if not stage.on_cluster]
            return [*outcomes, *(run_stage(stage, arguments, pytest) for stage in rest)]

        try:
            outcomes = [outcome for lane in side_by_side.map(run, lanes) for outcome in lane]
        except KeyboardInterrupt:
            shared.give_up()
            pytest.interrupt()
            raise
    if shared.remains:
        last = [outcome for outcome in outcomes if outcome.stage in on_cluster_names][-1]
        last.reruns = Failed(f"the shared cluster has left something on the machine: {shared.remains}")
    return outcomes


def run_on_cluster(
    stages: Sequence[Stage], shared: SharedCluster, arguments: Sequence[str], pytest: Pytest
) -> Sequence[Outcome]:
    """Run the stages one after the other on the shared cluster, end it, and return how each ended."""
    may_run, says = shared.wait_until_up()
    print(says, flush=True)
    if not may_run:
        lost = Failed("the shared cluster did not start: see build/test-results/cluster.log")
        return [Outcome(stage.name, 1, Results(), 0.0, lost) for stage in stages]
    outcomes: list[Outcome] = []
    for stage in stages:
        outcome = run_stage(_completed(stage, outcomes), arguments, pytest)
        outcomes.append(outcome)
        if end := shared.find_end():
            outcome.reruns = Failed(f"the shared cluster ended by itself: {'; '.join(end.splitlines())}")
            break
    shared.end()
    return outcomes


def _completed(stage: Stage, outcomes: Sequence[Outcome]) -> Stage:
    """Return the stage, which is told where it is not the second half of a whole run on the cluster."""
    shared = [outcome for outcome in outcomes if outcome.stage == "cluster"]
    whole = shared and shared[0].exit_code == 0 and not shared[0].results.skipped
    if stage.name != "alone" or whole:
        return stage
    return replace(stage, arguments=(*stage.arguments, "--after-incomplete-run"))


def run_stage(stage: Stage, arguments: Sequence[str], pytest: Pytest) -> Outcome:
    """Run one stage's tests and decide which of them are to be run once more."""
    print(f"== tests: {stage.name}", flush=True)
    started = time.monotonic()
    exit_code, results = pytest(stage.name, [*stage.arguments, *arguments])
    return Outcome(
        stage=stage.name,
        exit_code=exit_code,
        results=results,
        seconds=time.monotonic() - started,
        reruns=plan_reruns(results, exit_code, allowed=stage.reruns),
    )


def run_again(outcomes: Sequence[Outcome], pytest: Pytest) -> Sequence[Flake]:
    """Run failed tests once more, now that nothing else runs, and return those that passed.

    Nothing is run again when a stage has failed for good: the run has failed then.
    """
    lost = [outcome for outcome in outcomes if isinstance(outcome.reruns, Failed)]
    flakes: list[Flake] = []
    for outcome in outcomes:
        if isinstance(outcome.reruns, Failed) or not outcome.reruns:
            continue
        if lost:
            tests = ", ".join(phase.test for group in outcome.reruns for phase in group)
            outcome.reruns = Failed(f"{tests}; not run again, since {lost[0].stage} has failed")
            continue
        for number, group in enumerate(outcome.reruns):
            tests = [phase.test for phase in group]
            print(f"== run again, alone: {' '.join(tests)}", flush=True)
            exit_code, again = pytest(f"{outcome.stage}-again-{number}", tests)
            if exit_code == 0:
                outcome.passed_again |= again.passed & {*tests}
                flakes += [_flake(phase, outcome.stage) for phase in group if phase.test in again.passed]
    return flakes


class Runner:
    """Runs processes of pytest, and ends them early."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._interrupted = False
        self._starts_or_ends = threading.Lock()

    def __call__(self, name: str, arguments: Sequence[str]) -> tuple[int, Results]:
        """Run pytest to its end; its lines are printed as they come, after the stage's name, since others print too."""
        path = RESULTS / f"{name}.jsonl"
        path.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", f"--results={path}", *arguments]
        environment = {**os.environ, "PATH": f"{os.environ['PATH']}:{TOOLS}"}
        # Tests start hundreds of Python processes: each would compile what it imports, for two seconds.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with self._starts_or_ends:
            if self._interrupted:
                raise KeyboardInterrupt
            # A session of its own: Ctrl-C reaches us alone, and it once.
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            self._running.add(process)
        try:
            _print_lines(name, process)
        except KeyboardInterrupt:
            # What is run again is read by the main thread itself; pytest could not end if nobody read what it says.
            process.send_signal(signal.SIGINT)
            _print_lines(name, process)
            raise
        self._running.discard(process)
        return process.wait(), read(path)

    def interrupt(self) -> None:
        """Let each process end what its fixtures have started, and then itself. No other is started after that."""
        with self._starts_or_ends:
            self._interrupted = True
            running = tuple(self._running)
        for process in running:
            process.send_signal(signal.SIGINT)
        for process in running:
            process.wait()
            # Workers of xdist get a few seconds; what their fixtures had no time for ends here.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _print_lines(name: str, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        sys.stdout.write(f"{name:7} | {line}")
        sys.stdout.flush()


def _flake(phase: Phase, stage: str) -> Flake:
    assert phase.failure is not None
    return Flake(phase.test, stage, _commit(), _now(), phase.failure)


@functools.cache
def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    runner = Runner()
    # In the background of a shell it is ignored, and pytest would inherit that and never be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup wants it so
            signal.signal(number, signal.default_int_handler)
    try:
        sys.exit(main(sys.argv[1:], runner))
    except KeyboardInterrupt:
        runner.interrupt()
        sys.exit(130)
