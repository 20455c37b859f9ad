"""Shared parts of the measurements of a whole cluster: an installed checkout, a namespace, a load, memory."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "movielens"))

from builders.load import access_client
from fixtures import installed
from fixtures.installed import Space
from tidegate_localcluster.cluster import LocalCluster
from tidegate_localcluster.demo.load import CheckedLoad, LoadReport, ScoringBatch

PAUSE_S = 0.01
"""Between two requests of one client, so that the change uses the machine and not the clients."""
TIMEOUT_S = 30.0
"""Longer than the timeouts of the routes, so that only the cluster can lose a request."""


@contextmanager
def open_space(state_dir: Path, name: str) -> Iterator[Space]:
    """Install this checkout on the cluster of `state_dir`, and yield a namespace of its own.

    Starts the cluster if it does not run.
    """
    with (
        installed.an_installation(
            LocalCluster(state_dir), lambda line: print(line, file=sys.stderr)
        ) as installation,
        installed.a_space(installation, f"bench-{name}") as space,
    ):
        yield space


def gateway_load(
    space: Space,
    batches: Sequence[ScoringBatch],
    *,
    threads: int,
    pause_s: float = PAUSE_S,
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
) -> CheckedLoad:
    """Return an endless load on the ModelAccess `probe` of a space; `say` gets a line for each lost request."""
    gateway, access = space.installed.endpoints.gateway, f"{space.namespace}/probe"
    # Each client has its own connection, and no retries, which would hide a lost request.
    options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
    return CheckedLoad(
        lambda: access_client(gateway, access, timeout_s=TIMEOUT_S, channel_args=options),
        batches,
        threads=threads,
        max_seconds=inf,
        pause_s=pause_s,
        say=say,
    )


def count_lost(report: LoadReport) -> dict[str, int]:
    """Return the numbers of requests that failed, and of answers that are not exactly the named version's."""
    return {"failed": report.failed, "wrong": report.wrong}


def read_resident_bytes(space: Space) -> dict[str, int]:
    """Return the anonymous memory of the model pods' containers by the kubelet's account, some ten seconds old."""
    bytes_by_container: dict[str, int] = {}
    page = space.kubectl.run("get", "--raw", "/api/v1/nodes/node-0/proxy/stats/summary")
    for pod in json.loads(page)["pods"]:
        if pod["podRef"]["namespace"] == space.namespace:
            for container in pod["containers"]:
                name = container["name"]
                bytes_by_container[name] = bytes_by_container.get(name, 0) + int(
                    (container.get("memory") or {}).get("rssBytes", 0)
                )
    return bytes_by_container


def relative_growth(values: Sequence[float]) -> float:
    """Return the median of the last third over that of the first, less one, without the first tenth."""
    steady = values[len(values) // 10 :]
    third = max(len(steady) // 3, 1)
    first = statistics.median(steady[:third])
    return statistics.median(steady[-third:]) / first - 1 if first else 0.0
