"""Gets or builds everything that tests start, and says what it is at: `python tests/supplies.py [--all]`.

Tests get what they lack themselves; but the processes that `make test` divides them among cannot say so, and would build beside tests
that need the machine. What cannot be had is named here, and once more by each test that needs it.
"""

from __future__ import annotations

import argparse
import functools
import subprocess
import sys

from fixtures import browser, cluster, go_programs, kafka
from tidegate_localcluster.binaries import Binaries, default_home
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.supplies import find_supplies

say = functools.partial(print, flush=True)


def main() -> int:
    """0 also where something is missing: the tests that need it are not all there are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="also what only slow tests start")
    options = parser.parse_args()
    try:
        find_supplies(default_home(), cluster.OPTIONS, None, say, programs=["helm"])
    except LocalClusterError as error:
        say(f"without a local cluster: {error}", file=sys.stderr)
    for name in ("helm", "promtool", "redis-server"):
        try:
            Binaries().ensure([name], say)
        except LocalClusterError as error:
            say(f"without {name}: {error}", file=sys.stderr)
    for name, program in go_programs.PROGRAMS.items():
        if program.slow and not options.all:
            continue
        try:
            go_programs.go_program(name)
        except (LocalClusterError, OSError, subprocess.SubprocessError) as error:
            say(f"without {name}: {error}", file=sys.stderr)
    try:
        browser.chromium_binary(say)
    except LocalClusterError as error:
        say(f"without a browser: {error}", file=sys.stderr)
    try:
        kafka.jars()
    except (OSError, subprocess.SubprocessError) as error:
        say(f"without Kafka: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
