"""What the measurements of a whole cluster share: an installed checkout, a namespace, a load, memory."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from builders.load import access_client
from fixtures import installed
from fixtures.installed import Space
from tidegate_localcluster.cluster import Cluster
from tidegate_localcluster.demo.load import Batch, Load, LoadReport

PAUSE_S = 0.01
"""Between two requests of one client: the machine is to be busy with the change, not with the clients."""
TIMEOUT_S = 30.0
"""Longer than the routes' own: what is lost is lost in the cluster."""


@contextmanager
def a_space(state_dir: Path, name: str) -> Iterator[Space]:
    """This checkout on the cluster of `state_dir` (started when it does not run), and a namespace of one's own."""
    with (
        installed.an_installation(Cluster(state_dir), lambda line: print(line, file=sys.stderr)) as there,
        installed.a_space(there, f"bench-{name}") as space,
    ):
        yield space


def gateway_load(
    space: Space,
    batches: Sequence[Batch],
    *,
    threads: int,
    pause_s: float = PAUSE_S,
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
) -> Load:
    """Return a load on the ModelAccess `probe` of a space, without an end of its own; `say` hears of each request that is lost."""
    gateway, access = space.installed.endpoints.gateway, f"{space.namespace}/probe"
    # Each client has a connection of its own, and repeats nothing: that would hide that a request was lost.
    options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
    return Load(
        lambda: access_client(gateway, access, timeout_s=TIMEOUT_S, channel_args=options),
        batches,
        threads=threads,
        max_seconds=inf,
        pause_s=pause_s,
        say=say,
    )


def lost(report: LoadReport) -> dict[str, int]:
    """Return requests without a right answer: those that failed, and those whose answer is not exactly the named version's."""
    return {"failed": report.failed, "wrong": report.wrong}


def answered_by_servers(space: Space, version: int) -> dict[str, float]:
    """Requests that each replica's own Triton has answered with `version`, by pod."""
    counts: dict[str, float] = {}
    for pod in space.installed.pods(space.namespace, "tidegate.io/inference=probe"):
        name = pod["metadata"]["name"]
        page = space.installed.metrics(space.namespace, name, 8002)
        counts[name] = sum(
            metric.value
            for metric in page
            if metric.name == "nv_inference_request_success" and metric.labels.get("version") == str(version)
        )
    return counts


def resident_bytes(space: Space) -> dict[str, int]:
    """Anonymous memory of the model pods' containers by the kubelet's account, which is about ten seconds old."""
    found: dict[str, int] = {}
    page = space.kubectl.run("get", "--raw", "/api/v1/nodes/node-0/proxy/stats/summary")
    for pod in json.loads(page)["pods"]:
        if pod["podRef"]["namespace"] == space.namespace:
            for container in pod["containers"]:
                name = container["name"]
                found[name] = found.get(name, 0) + int((container.get("memory") or {}).get("rssBytes", 0))
    return found


def growth(values: Sequence[float]) -> float:
    """The median of the last third over that of the first, less one; a tenth at the start is left out."""
    settled = values[len(values) // 10 :]
    third = max(len(settled) // 3, 1)
    first = statistics.median(settled[:third])
    return statistics.median(settled[-third:]) / first - 1 if first else 0.0
