"""Which failures `make test` clears by a second run, and which stand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fixtures.sharing import STATE_DIR_VARIABLE
from run import STAGES, Pytest, Runner, Stage, full_run, run_again, run_stages
from stages.cluster import SharedCluster, shared_cluster
from stages.flakes import Flake, known_flakes, record
from stages.report import Outcome, failures_block, flaky_block
from stages.rerun import Failed, plan_reruns
from stages.results import End, Failure, FailureKind, Phase, Results, read, shorten
from stages.slow import FullRun, age_line, choose_slice, read_last_full_run, write_full_run

TESTS = Path(__file__).resolve().parents[1]


def a_failure(
    test: str,
    *,
    when: str = "call",
    message: str = "",
    no_rerun: str | None = None,
    kind: FailureKind = FailureKind.WRONG,
) -> Phase:
    return Phase(test, when, "failed", 1.0, 0.5, failure=Failure(kind, message, no_rerun))


def a_promise(*, when: str = "call", kind: FailureKind = FailureKind.WRONG) -> Phase:
    """The failure of a test marked `no_rerun`."""
    return a_failure(
        "a.py::one", when=when, message="assert 3 == 4\n +  where", no_rerun="a request is lost", kind=kind
    )


def a_run(phases: list[Phase]) -> Results:
    return Results(phases, end=End(collected=len({phase.test for phase in phases})))


@pytest.mark.parametrize(
    ("failures", "exit_code", "allowed", "expected"),
    [
        ([], 0, True, []),
        ([], 5, True, []),
        ([], 1, True, "without a failed test"),
        ([a_failure("a.py::one")], 3, True, "exit code 3"),
        ([a_failure("a.py::one")], 1, True, [["a.py::one"]]),
        ([a_failure("a.py::one"), a_failure("a.py::one", when="teardown")], 1, True, [["a.py::one"]]),
        ([a_failure("a.py::one")], 1, False, "never run again"),
        ([a_failure("a.py", when="collect"), a_failure("a.py::one")], 1, True, "a.py could not be collected"),
        ([a_failure("a.py::one", when="???")], 1, True, "crashed"),
        ([a_promise()], 1, True, "(a request is lost): assert 3 == 4"),
        ([a_promise(kind=FailureKind.LATE)], 1, True, "(a request is lost): assert 3 == 4"),
        ([a_promise(when="teardown")], 1, True, "(a request is lost): assert 3 == 4"),
        # Before its scenario, a test has shown nothing about its promise.
        ([a_promise(kind=FailureKind.NOT_REACHED)], 1, True, [["a.py::one"]]),
        ([a_promise(when="setup")], 1, True, [["a.py::one"]]),
        (
            [a_promise(kind=FailureKind.NOT_REACHED), a_promise(when="teardown")],
            1,
            True,
            "(a request is lost)",
        ),
        ([a_promise(kind=FailureKind.NOT_REACHED)], 1, False, "never run again"),
        ([a_failure(f"a.py::{n}") for n in range(4)], 1, True, "4 causes of failure"),
        (
            [a_failure(f"a.py::{n}", when="setup", message="no server") for n in range(9)],
            1,
            True,
            [[f"a.py::{n}" for n in range(9)]],
        ),
    ],
)
def test_few_failures_are_run_again_and_defects_are_not(
    failures: list[Phase], exit_code: int, allowed: bool, expected: list[list[str]] | str
) -> None:
    planned = plan_reruns(a_run(failures), exit_code, allowed=allowed)
    if isinstance(planned, Failed):
        assert isinstance(expected, str)
        assert expected in planned.reason
    else:
        assert [[phase.test for phase in group] for group in planned] == expected


def test_a_run_that_stopped_early_is_not_completed_by_a_second_one() -> None:
    stopped = Results([a_failure("a.py::one")], end=End(collected=2))
    assert plan_reruns(stopped, 1, allowed=True) == Failed("1 of 2 tests were run")
    assert plan_reruns(Results([a_failure("a.py::one")]), 1, allowed=True) == Failed(
        "pytest ended with exit code 1"
    )


def an_outcome(stage: str, *failed: str, allowed: bool = True) -> Outcome:
    results = a_run([a_failure(test) for test in failed])
    code = 1 if failed else 0
    return Outcome(stage, code, results, 1.0, plan_reruns(results, code, allowed=allowed))


def a_second_run(outcome: str, code: int) -> Pytest:
    """pytest, of which each test has this outcome."""
    return lambda name, tests: (code, a_run([Phase(test, "call", outcome, 1.0, 0.5) for test in tests]))


@pytest.mark.parametrize(
    ("outcome", "code", "failed"),
    [("passed", 0, False), ("skipped", 0, True), ("failed", 1, True), ("passed", 1, True)],
)
def test_only_what_passes_alone_clears_a_stage(outcome: str, code: int, failed: bool) -> None:
    stage = an_outcome("servers", "a.py::one")
    flakes = run_again([an_outcome("unit"), stage], a_second_run(outcome, code))
    assert (stage.failed, [flake.test for flake in flakes]) == (failed, [] if failed else ["a.py::one"])


def test_nothing_is_run_again_once_another_stage_has_failed() -> None:
    unit, servers = an_outcome("unit", "u.py::one", allowed=False), an_outcome("servers", "a.py::one")
    assert run_again([unit, servers], a_second_run("passed", 0)) == []
    assert servers.failed
    assert "a.py::one; not run again, since unit has failed" in servers.verdict


def test_every_slow_test_has_its_turn_and_a_turn_takes_a_minute() -> None:
    seconds = {f"t{number}": 25.0 for number in range(10)} | {"long": 200.0}
    slices = [choose_slice(seconds, f"commit-{number}", seconds) for number in range(200)]
    assert frozenset().union(*slices) == set(seconds)
    assert all(chosen == {"long"} or sum(map(seconds.__getitem__, chosen)) <= 60 for chosen in slices)
    assert choose_slice(seconds, "commit-1", seconds) == slices[1]


def test_where_the_cluster_does_not_start_nothing_runs_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def a_cluster(_: Path) -> nullcontext[SharedCluster]:
        return nullcontext(SharedCluster(lambda: (False, "why")))

    def passes(stage: Stage, *_: object) -> Outcome:
        return an_outcome(stage.name)

    monkeypatch.setattr("run.shared_cluster", a_cluster)
    monkeypatch.setattr("run.run_stage", passes)
    outcomes = run_stages(STAGES, (), Runner())
    assert {outcome.stage: outcome.failed for outcome in outcomes} == {
        "unit": False,
        "servers": False,
        "cluster": True,
        "alone": True,
    }


def test_a_cluster_that_ends_by_itself_fails_the_stage_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = iter(["Traceback\nFileNotFoundError: pvc-1"])
    cluster = SharedCluster(find_end=lambda: next(ends))
    monkeypatch.setattr("run.shared_cluster", lambda _: nullcontext(cluster))
    monkeypatch.setattr("run.run_stage", lambda stage, *_: an_outcome(stage.name))
    outcomes = {outcome.stage: outcome for outcome in run_stages(STAGES, (), Runner())}
    assert [name for name, outcome in outcomes.items() if outcome.failed] == ["cluster"]
    assert "ended by itself: Traceback; FileNotFoundError: pvc-1" in outcomes["cluster"].verdict
    assert "alone" not in outcomes, "what it could find on another cluster would mislead"


@pytest.mark.parametrize(
    ("codes", "may_run", "end"),
    [
        ({"up": 3}, True, ""),  # none on this machine: its tests are skipped with the reason
        ({"up": 1}, False, ""),
        ({"up": 0, "check": 0}, True, ""),
        ({"up": 0, "check": 1}, True, "check says why"),
    ],
)
def test_only_a_cluster_that_was_up_can_have_ended_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codes: dict[str, int], may_run: bool, end: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import sys; print(sys.argv[1], 'says why'); sys.exit({codes}.get(sys.argv[1], 0))")
    monkeypatch.setattr("stages.cluster._PROGRAM", program)
    monkeypatch.delenv(STATE_DIR_VARIABLE, raising=False)
    with shared_cluster(tmp_path / "cluster.log") as cluster:
        assert cluster.wait_until_up()[0] is may_run
        assert cluster.find_end() == end
        cluster.end()
        cluster.end()
        assert STATE_DIR_VARIABLE in os.environ
    assert STATE_DIR_VARIABLE not in os.environ
    assert (tmp_path / "cluster.log").read_text().count("down says why") == 1


def test_durations_of_what_was_skipped_stay_recorded() -> None:
    def a_test(test: str, outcome: str, *, slow: bool = False) -> Phase:
        return Phase(test, "call", outcome, 20.0, 0.5, slow=slow)

    phases = [a_test("a.py::1", "passed"), a_test("a.py::2", "passed", slow=True)]
    phases += [a_test("e.py::1", "skipped"), a_test("e.py::2", "skipped", slow=True)]
    before = FullRun("abc", "", slow={"e.py::2": 33.0, "gone.py::1": 9.0}, files={"e.py": 70, "gone.py": 50})
    run = full_run("def", [Outcome("all", 0, a_run(phases), 1.0, [])], before)
    assert run.slow == {"a.py::2": 20.0, "e.py::2": 33.0}
    assert run.files == {"a.py": 20, "e.py": 70}


def test_failed_tests_are_listed_with_their_reasons_and_many_are_counted() -> None:
    failed = an_outcome("servers", "a.py::one")
    failed.results = a_run([a_failure(f"a.py::{n}", message=f"why {n}\n more") for n in range(12)])
    lines = failures_block([an_outcome("unit"), failed]).splitlines()
    assert "a.py::0: why 0" in lines[1]
    assert "and 4 more" in lines[-1]
    failed.passed_again = {f"a.py::{n}" for n in range(12)}
    assert failures_block([failed]) == ""


def test_a_flake_is_recorded_and_shown_in_red_with_its_entry_until_it_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.delenv("NO_COLOR", raising=False)
    failure = Failure(FailureKind.LATE, 'not within 60 s: "x"\n more', None)
    flake = Flake("a.py::one", "servers", "abc", "2026-11-28T08:00:00+00:00", failure)
    for _ in range(2):
        record(tmp_path / "results" / "flaky.jsonl", [flake])
    lines = (tmp_path / "results" / "flaky.jsonl").read_text().splitlines()
    assert [json.loads(line)["test"] for line in lines] == ["a.py::one", "a.py::one"]

    block = flaky_block([flake], [])
    assert block.startswith("\x1b[31m")
    listing = tmp_path / "flaky.toml"
    plain = re.sub("\x1b\\[[0-9]+m", "", block)
    listing.write_text(plain[plain.index("[[flaky]]") :])
    (known,) = known_flakes(listing)
    assert (known.id, known.kind, known.message) == ("a.py::one", FailureKind.LATE, 'not within 60 s: "x"')
    listed = flaky_block([flake], [known])
    assert "listed in tests/flaky.toml since 2026-11-28" in listed
    assert "[[flaky]]" not in listed


def test_a_full_run_is_read_back_and_an_old_one_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "last.json"
    assert age_line(read_last_full_run(path)).startswith("WARNING: no run of all tests is recorded")
    now = datetime.now(UTC)
    write_full_run(FullRun("abc", (now - timedelta(days=6)).isoformat(), failed=["a.py::one"]), path)
    assert age_line(read_last_full_run(path)) == "all tests last ran at abc, 6 days ago, 1 failed"
    write_full_run(FullRun("abc", (now - timedelta(days=8)).isoformat()), path)
    assert age_line(read_last_full_run(path)).startswith("WARNING: all tests last ran at abc, 8 days ago")


SUITE = """
import gc
import socket

import pytest

from builders.scenario import NotReachedError, require_scenario


class Caller:
    def __init__(self):
        self.connection, self.itself = socket.socket(), self


def test_leaks():
    Caller()
    gc.collect()


@pytest.mark.no_rerun("a promise")
def test_is_a_promise():
    assert False


@pytest.mark.no_rerun("a promise")
def test_is_not_in_its_scenario():
    require_scenario(True, "work is under way")
    require_scenario(False, "work is under way when it is killed")


@pytest.mark.no_rerun("a promise")
def test_is_a_promise_too():
    try:
        require_scenario(False, "work is under way when it is killed")
    except NotReachedError as error:
        raise AssertionError("a row is lost") from error


@pytest.mark.parametrize("way", ["a b"])
def test_is_late(way):
    raise TimeoutError


def test_is_a_group():
    raise ExceptionGroup("two parts", [ValueError("one"), ValueError("other")])
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What the plugin records of a small suite on two workers, with this project's settings."""
    folder = tmp_path_factory.mktemp("suite")
    suite = folder / "test_small.py"
    suite.write_text(SUITE)
    path = folder / "results.jsonl"
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-n", "2", "-p", "stages.plugin"]
    ended = subprocess.run(
        [*command, f"--results={path}", suite],
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    return read(path)


def name(test: str) -> str:
    """The name of a test without its file."""
    return test.partition("::")[2]


def test_reasons_and_kinds_of_failures_come_back_from_workers(results: Results) -> None:
    failures = {name(phase.test): phase.failure for phase in results.failures if phase.failure is not None}
    kinds = {test: (failure.kind, failure.no_rerun) for test, failure in failures.items()}
    assert kinds == {
        "test_is_a_promise": (FailureKind.WRONG, "a promise"),
        "test_is_a_promise_too": (FailureKind.WRONG, "a promise"),
        "test_is_not_in_its_scenario": (FailureKind.NOT_REACHED, "a promise"),
        "test_is_late[a b]": (FailureKind.LATE, None),
        "test_is_a_group": (FailureKind.WRONG, None),
    }
    assert "work is under way when it is killed" in str(failures["test_is_not_in_its_scenario"])
    for test, failed in {
        "test_is_a_promise": "assert False",
        "test_is_a_promise_too": 'raise AssertionError("a row is lost") from error',
        "test_is_not_in_its_scenario": 'require_scenario(False, "work is under way when it is killed")',
        "test_is_late[a b]": "raise TimeoutError",
        "test_is_a_group": "raise ExceptionGroup",
    }.items():
        place = re.match(r"line (\d+): ", failures[test].message)
        assert place is not None, test
        assert failed in SUITE.split("\n")[int(place[1]) - 1]


def test_both_ends_of_a_long_message_are_kept() -> None:
    message = "not within 60 s: it serves. It is: " + "." * 5000 + "; version 1 serves"
    short = shorten(message)
    assert short.startswith("not within 60 s: it serves")
    assert short.endswith("version 1 serves")
    assert len(short) < 2100
    assert shorten("not within 60 s") == "not within 60 s"


def test_a_socket_that_is_not_closed_is_listed_and_fails_no_test(results: Results) -> None:
    assert [name(test) for test in results.passed] == ["test_leaks"]
    assert [(name(leak.after), leak.category) for leak in results.leaks] == [
        ("test_leaks", "ResourceWarning")
    ]


def test_a_results_file_that_was_cut_off_counts_until_then(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(
        json.dumps({"leak": {"after": "a", "category": "b", "message": "c"}}) + '\n{"phase": {"te'
    )
    assert [leak.after for leak in read(path).leaks] == ["a"]
