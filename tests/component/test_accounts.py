"""What a run says about processor time: all that the processes of a test have spent, wherever they are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stages.accounts import Account, enter_own_account, read_programs
from stages.cluster import SPENT
from stages.report import Outcome, cluster_line, costs_block
from stages.results import End, Phase, Results

TESTS = Path(__file__).resolve().parents[1]
BURNT_S = 0.5
SPENDER = f"""
import os, subprocess, sys, time
from stages.accounts import enter_own_account, read_own_seconds

account = enter_own_account()
if account is None:
    print("no cgroup")
    sys.exit()
burn = "import time\\nwhile time.process_time() < {BURNT_S}: pass\\nprint('burnt', flush=True)\\ntime.sleep(600)"
before, own = account.seconds, read_own_seconds()
# It still runs when the time is read, as an API server does.
child = subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE)
child.stdout.readline()
print(account.seconds - before, read_own_seconds() - own, account.folder.exists())
child.kill()
child.wait()
account.close()
print(account.folder.exists())
"""


def test_what_a_child_spends_that_still_runs_is_counted() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SPENDER],
        env={"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=True,
    )
    if done.stdout == "no cgroup\n":
        pytest.skip("no cgroup can be made on this machine")
    counted, own, existed, exists = done.stdout.split()
    assert float(counted) >= BURNT_S
    assert float(own) < BURNT_S
    assert (existed, exists) == ("True", "False")


def test_an_account_of_a_killed_process_is_removed_by_the_next() -> None:
    killed = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os; from stages.accounts import enter_own_account; print(enter_own_account().folder, flush=True); os._exit(1)",
        ],
        env={"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    folder = Path(killed.stdout.strip() or "/none")
    if not folder.exists():
        pytest.skip("no cgroup can be made on this machine")
    own = enter_own_account()
    assert own is not None
    own.close()
    assert not folder.exists()


def test_only_the_hierarchy_that_counts_is_read(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("nr_periods 0\n")
    assert not Account(tmp_path).counts
    (tmp_path / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    assert (Account(tmp_path).counts, Account(tmp_path).seconds) == (True, 1.5)


def test_time_of_a_program_is_that_of_all_its_processes_without_their_children() -> None:
    # A process that takes over the containers of past pods would count them twice.
    burn = f"import time\nwhile time.process_time() < {BURNT_S}: pass"
    parent = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {burn!r}]); print(flush=True); time.sleep(600)"
    with (
        subprocess.Popen(["sleep", "600"]) as one,
        subprocess.Popen(["sleep", "600"]) as two,
        subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as three,
    ):
        assert three.stdout is not None
        three.stdout.readline()
        spent = read_programs((one.pid, two.pid, three.pid, 2**22 + 1))
        for process in (one, two, three):
            process.kill()
    assert len(spent) == 2
    assert "sleep" in spent
    assert sum(spent.values()) < BURNT_S


def test_files_are_listed_by_processor_time_and_a_stage_counts_more_than_its_tests() -> None:
    phases = [
        Phase("slow.py::one", "call", "passed", 60.0, 2.0),
        Phase("costly.py::one", "setup", "passed", 1.0, 9.0),
        Phase("costly.py::two", "call", "passed", 1.0, 30.5),
        Phase("cheap.py::one", "call", "passed", 0.5, 0.1),
    ]
    outcome = Outcome("servers", 0, Results(phases, end=End(4, 55.0)), 70.0, ())
    files = costs_block([outcome]).split("files of servers")[1].splitlines()[1:]
    assert [line.split() for line in files] == [
        ["39.5", "s", "2.0", "s", "costly.py"],
        ["2.0", "s", "60.0", "s", "slow.py"],
    ]
    assert outcome.processor_seconds == 55.0
    without = Outcome("servers", 0, Results(phases, end=End(4)), 70.0, ())
    assert without.processor_seconds == pytest.approx(41.6)


def test_a_cluster_is_listed_by_program(tmp_path: Path) -> None:
    assert cluster_line(tmp_path) == ""
    (tmp_path / SPENT).write_text(json.dumps({"etcd": 9.6, "pods": 300.0, "kube-proxy": 0.4}))
    assert cluster_line(tmp_path) == "processor time of the shared cluster: 310 s: pods 300 s, etcd 10 s"
