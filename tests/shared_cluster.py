"""Start, check or end the cluster that stages of `tests/run.py` share, with the chart in it: `python tests/shared_cluster.py up|check|down FOLDER`."""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from fixtures.cluster import OPTIONS, start
from fixtures.installed import install_for_tests
from stages.accounts import Account, enter_account_of, find_account_of, read_programs
from stages.cluster import NOT_HERE, SPENT
from tidegate_localcluster.binaries import default_home
from tidegate_localcluster.cgroups import CgroupTree
from tidegate_localcluster.checks import check_machine
from tidegate_localcluster.cluster import LocalCluster
from tidegate_localcluster.demo.errors import DemoError
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.supplies import find_supplies

RESULTS: Final = Path(__file__).resolve().parents[1] / "build" / "test-results"
LOGS: Final = RESULTS / "cluster-logs"
"""Those of the last cluster: a failed test may leave questions."""
LAST_LINES: Final = 3

say = functools.partial(print, flush=True)


def main() -> int:
    """Return 0 when it is up, runs, or has left nothing."""
    actions = {"up": start_cluster, "check": check_cluster, "down": end_cluster}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=tuple(actions))
    parser.add_argument("folder", type=Path, help="state folder of the cluster; its path must be short")
    options = parser.parse_args()
    try:
        return actions[options.action](LocalCluster(options.folder))
    except (LocalClusterError, DemoError) as error:
        say(error, file=sys.stderr)
        return 1


def start_cluster(cluster: LocalCluster) -> int:
    """Start it, and install the chart. Raises LocalClusterError and DemoError."""
    try:
        check_machine(default_home())
        supplies = find_supplies(default_home(), OPTIONS, None, say)
    except LocalClusterError as error:
        say(error, file=sys.stderr)
        return 1 if os.environ.get("CI") else NOT_HERE
    # Under the id of tests/run.py, which also ends the cluster.
    enter_account_of(os.getppid())
    started = time.monotonic()
    start(cluster, supplies, say)
    with install_for_tests(cluster, say):
        say(f"up after {time.monotonic() - started:.0f} s")
        return 0


def check_cluster(cluster: LocalCluster) -> int:
    """Return 1, and print the end of its supervisor's log, where it does not run any more."""
    if cluster.find_supervisor() is not None:
        return 0
    with suppress(OSError):
        say("\n".join((cluster.files.logs / "supervisor.log").read_text().splitlines()[-LAST_LINES:]))
    return 1


def end_cluster(cluster: LocalCluster) -> int:
    """End it and remove its folder but for the logs; return 1 where something is left on the machine."""
    shutil.rmtree(LOGS, ignore_errors=True)
    for log in cluster.find_log_files().values():
        with suppress(OSError):  # neither a full disk nor a log that is gone keeps the cluster
            LOGS.mkdir(parents=True, exist_ok=True)
            shutil.copy(log, LOGS)
    with suppress(OSError, psutil.Error):  # a cluster that died says less
        (RESULTS / SPENT).write_text(json.dumps(read_spent(cluster)))
    remains = cluster.tear_down(say)
    if account := find_account_of(os.getppid()):
        account.close()
    shutil.rmtree(cluster.files.path, ignore_errors=True)
    if remains:
        say(f"the shared cluster has left: {remains}", file=sys.stderr)
    return 1 if remains else 0


def read_spent(cluster: LocalCluster) -> dict[str, float]:
    """Return processor seconds by program of a cluster that runs.

    Pods, past ones too, are `pods`; other processes that have ended, its start included, are `ended`. Those are not
    what living processes count as their children's: process 1 inherits the containers of past pods.
    """
    supervisor, tree = cluster.find_supervisor(), CgroupTree.detect()
    if supervisor is None or tree is None:
        return {}
    cgroup = cluster.read_plan().cgroup
    family = psutil.Process(supervisor)
    in_pods = frozenset(tree.list_processes(cgroup))
    pids = {supervisor, *(child.pid for child in family.children(recursive=True))} - in_pods
    programs = read_programs(sorted(pids))
    counts = [Account(folder) for folder in tree.list_existing_folders(cgroup)]
    pods = max((account.seconds for account in counts if account.counts), default=0.0)
    all_others = find_account_of(os.getppid())
    ended = all_others.seconds - sum(programs.values()) if all_others is not None else 0.0
    return {**programs, "ended": max(ended, 0.0), "pods": pods}


if __name__ == "__main__":
    sys.exit(main())
