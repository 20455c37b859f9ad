"""Work of the local cluster's set-up that runs beside other work."""

import threading
from collections.abc import Callable

import pytest

from tidegate_localcluster.background import BackgroundWorkStoppedError, run_beside
from tidegate_localcluster.errors import LocalClusterError


def test_both_run_at_once_and_the_result_is_there_after_the_block() -> None:
    reached = threading.Event()
    lines: list[str] = []

    def work(report: Callable[[str], None]) -> int:
        report("begins")
        assert reached.wait(10.0)
        return 3

    with run_beside(work, lines.append) as future:
        reached.set()
    assert (future.result(), lines) == (3, ["begins"])


def test_a_failure_in_the_background_is_raised_at_the_end_of_the_block() -> None:
    def fail(report: Callable[[str], None]) -> None:
        raise LocalClusterError("no network")

    with pytest.raises(LocalClusterError, match="no network"), run_beside(fail, lambda line: None):
        pass


def test_a_failure_in_the_block_stops_the_background_at_its_next_line() -> None:
    failing, stopped = threading.Event(), []

    def report_for_ever(report: Callable[[str], None]) -> None:
        assert failing.wait(10.0)
        try:
            while True:
                report("still building")
        except BackgroundWorkStoppedError as error:
            stopped.append(error)
            raise

    def fail_in_the_block() -> None:
        with run_beside(report_for_ever, lambda line: None):
            failing.set()
            raise LocalClusterError("the programs failed")

    with pytest.raises(LocalClusterError, match="the programs failed"):
        fail_in_the_block()
    assert len(stopped) == 1
