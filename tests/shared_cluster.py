"""Starts or ends the cluster that stages of `tests/run.py` share, with the chart in it: `python tests/shared_cluster.py up|down FOLDER`."""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from fixtures.cluster import OPTIONS, start
from fixtures.installed import install_for_tests
from stages.cluster import NOT_HERE
from tidegate_localcluster.binaries import default_home
from tidegate_localcluster.checks import check_machine
from tidegate_localcluster.cluster import LocalCluster
from tidegate_localcluster.demo.errors import DemoError
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.supplies import find_supplies

LOGS: Final = Path(__file__).resolve().parents[1] / "build" / "test-results" / "cluster-logs"
"""Those of the last cluster: a failed test may leave questions."""

say = functools.partial(print, flush=True)


def main() -> int:
    """Return 0 when it is up, or nothing of it is left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("up", "down"))
    parser.add_argument("folder", type=Path, help="state folder of the cluster; its path must be short")
    options = parser.parse_args()
    cluster = LocalCluster(options.folder)
    try:
        return start_cluster(cluster) if options.action == "up" else end_cluster(cluster)
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
    start(cluster, supplies, say)
    with install_for_tests(cluster, say):
        return 0


def end_cluster(cluster: LocalCluster) -> int:
    """End it and remove its folder but for the logs; return 1 where something is left on the machine."""
    shutil.rmtree(LOGS, ignore_errors=True)
    for log in cluster.find_log_files().values():
        with suppress(OSError):  # neither a full disk nor a log that is gone keeps the cluster
            LOGS.mkdir(parents=True, exist_ok=True)
            shutil.copy(log, LOGS)
    remains = cluster.tear_down(say)
    shutil.rmtree(cluster.files.path, ignore_errors=True)
    if remains:
        say(f"the shared cluster has left: {remains}", file=sys.stderr)
    return 1 if remains else 0


if __name__ == "__main__":
    sys.exit(main())
