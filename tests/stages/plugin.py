"""pytest plugin: prints each failure at once, and records phases, failures and leaks for `tests/run.py`."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import warnings
from pathlib import Path
from typing import Final

import httpx
import pytest

from builders.scenario import NotReachedError
from stages.accounts import Account, enter_own_account, read_own_seconds
from stages.machine import lower_priority, pressure
from stages.results import End, Failure, FailureKind, Leak, Phase, append, shorten
from stages.slow import choose_slice, read_last_full_run
from tidegate_localcluster.errors import NotReadyError

_LEAKS: Final = (ResourceWarning, pytest.PytestUnraisableExceptionWarning)
_LATE: Final = (TimeoutError, subprocess.TimeoutExpired, httpx.TimeoutException, NotReadyError)
_LATE_MESSAGE: Final = re.compile(
    r"not (with)?in \d|waited \d|does not rest within|Timeout \(>|[Dd]eadline.exceeded", re.IGNORECASE
)
"""How helpers that wait, pytest-timeout and gRPC begin to say that time ran out."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare --results."""
    group = parser.getgroup("stages", "records for tests/run.py")
    group.addoption(
        "--results", type=Path, metavar="FILE", help="append phases, failures and leaks to FILE as JSON lines"
    )
    group.addoption(
        "--low-priority",
        action="store_true",
        help="let other processes run first: for tests that compute all the time, beside those that wait for servers",
    )
    group.addoption(
        "--slow-seed",
        metavar="SEED",
        help="of the tests marked slow, run the minute that SEED chooses, such as a commit; without it they all run",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out slow tests that the seed does not choose."""
    seed = config.getoption("slow_seed")
    slow = {item.nodeid for item in items if item.get_closest_marker("slow") is not None}
    if seed is None or not slow:
        return
    last = read_last_full_run()
    seconds = last.slow if last is not None else {}
    # Of the slow tests of all stages, as each of them sees them: their minute is one.
    left_out = slow - choose_slice(slow | seconds.keys(), seed, seconds)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = [item for item in items if item.nodeid not in left_out]


def pytest_configure(config: pytest.Config) -> None:
    """Measure in each process; print and record in the one that collects the reports of xdist's workers."""
    if config.getoption("low_priority"):
        lower_priority()
    is_recorded = config.getoption("results") is not None
    account = enter_own_account() if is_recorded else None
    config.pluginmanager.register(_Measure(account))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Record(config, account))


class _Measure:
    """Adds to each report what only the process that ran the test knows."""

    def __init__(self, account: Account | None) -> None:
        self._account = account
        self._spent = self._read_seconds()

    def pytest_runtest_logstart(self) -> None:
        self._spent = self._read_seconds()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        gc.collect()  # what the last tests have left is recorded too

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> object:
        report = yield
        before, self._spent = self._spent, self._read_seconds()
        report.processor_seconds = self._spent - before
        report.slow = item.get_closest_marker("slow") is not None
        if report.failed and call.excinfo is not None:
            marker = item.get_closest_marker("no_rerun")
            report.no_rerun = " ".join(marker.args) if marker is not None else None
            report.failure_kind = _classify(call.excinfo.value).value  # workers send plain values alone
            report.line = _find_line(item, call.excinfo)
        return report

    def pytest_unconfigure(self) -> None:
        if self._account is not None:
            self._account.close()

    def _read_seconds(self) -> float:
        return self._account.seconds if self._account is not None else read_own_seconds()


class _Record:
    def __init__(self, config: pytest.Config, account: Account | None) -> None:
        self._config, self._account = config, account
        self._path: Path | None = config.getoption("results")
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        failure = _failure(report) if report.failed else None
        if failure is not None:
            self._print(report, failure)
        if self._path is not None:
            phase = Phase(
                report.nodeid,
                report.when,
                report.outcome,
                report.duration,
                processor_seconds=getattr(report, "processor_seconds", 0.0),
                slow=getattr(report, "slow", False),
                failure=failure,
            )
            append(self._path, phase)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self._path is not None:
            failure = Failure(FailureKind.WRONG, shorten(str(report.longrepr)))
            append(self._path, Phase(report.nodeid, "collect", "failed", 0.0, 0.0, failure=failure))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._path is not None:
            spent = self._account.seconds if self._account is not None else 0.0
            append(self._path, End(session.testscollected, spent))

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, nodeid: str) -> None:
        if self._path is not None and issubclass(warning_message.category, _LEAKS):
            append(
                self._path,
                Leak(
                    nodeid or "the last test",
                    warning_message.category.__name__,
                    shorten(str(warning_message.message)),
                ),
            )

    def _print(self, report: pytest.TestReport, failure: Failure) -> None:
        """Print a failure at once: a run that is cut off prints no summary."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line("")
            reporter.write_line(
                f"FAILED in {report.when} after {report.duration:.0f} s: {report.nodeid}", red=True
            )
            reporter.write_line(failure.message)


def _failure(report: pytest.TestReport) -> Failure:
    crash = getattr(report.longrepr, "reprcrash", None)
    message = str(crash.message if crash is not None else report.longrepr)
    line = getattr(report, "line", None)
    return Failure(
        kind=FailureKind(getattr(report, "failure_kind", FailureKind.WRONG)),
        message=shorten(message if line is None else f"line {line}: {message}"),
        no_rerun=getattr(report, "no_rerun", None),
        load=os.getloadavg()[0],
        pressure=pressure(),
    )


def _find_line(item: pytest.Item, error: pytest.ExceptionInfo[BaseException]) -> int | None:
    """Return the line of the innermost call in the test's own file; None where the failure has not passed through it."""
    lines = [entry.lineno + 1 for entry in error.traceback if Path(entry.path) == item.path]
    return lines[-1] if lines else None


def _classify(error: BaseException) -> FailureKind:
    """Return the kind of a failure; what is raised beside or instead of NotReachedError counts as what it is."""
    if isinstance(error, NotReachedError):
        return FailureKind.NOT_REACHED
    return FailureKind.LATE if _is_late(error) else FailureKind.WRONG


def _is_late(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_late, error.exceptions))
    if isinstance(error, _LATE) or _LATE_MESSAGE.search(str(error)[:200]):
        return True
    return error.__cause__ is not None and _is_late(error.__cause__)
