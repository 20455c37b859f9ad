"""P3: the time from a changed snapshot to its arrival at the last of N proxies, for N of 100 and 1,000.

    python bench/xds_fanout.py [--proxies 100 1000] [--runs 5] [--changes 5]

The xDS server runs in this process; the proxies are streams with a connection each in one other process, which accept all they get.
A change is one more weight in one route: every proxy gets the routes of that access anew, and says that it has them.
Prints one JSON document with every measurement; exits 1 when the medians miss the target.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import structlog

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from harness.discovery import discover

from builders.fleet import a_backend
from builders.model_access import a_model_access, a_route
from builders.waiting import eventually
from fixtures.envoy import ControlPlane
from tidegate.xds.resources import TypeUrl

RATIO_LIMIT = 12.0
LIMIT_S = 0.2


class VersionArrivals:
    """Counts the proxies that have each version of the routes, with times of a clock that all processes share."""

    def __init__(self, proxies: int) -> None:
        self._proxies = proxies
        self._counts: dict[str, int] = {}
        self.last: asyncio.Queue[tuple[str, float]] = asyncio.Queue()

    def count_proxy(self, version: str) -> None:
        """Count one proxy that has this version."""
        self._counts[version] = self._counts.get(version, 0) + 1
        if self._counts[version] == self._proxies:
            self.last.put_nowait((version, time.monotonic()))


async def run_proxy(number: int, port: int, arrivals: VersionArrivals) -> None:
    """Run one proxy, which counts the routes that it gets."""

    def count_routes(response: Any) -> None:
        if response.type_url == TypeUrl.SCOPE:
            arrivals.count_proxy(response.system_version_info)

    await discover(f"gateway-{number}", port, count_routes)


def run_proxies(count: int, port: int, parent: Connection) -> None:
    """Run all proxies in this process; send `parent` each version and the time when the last proxy has it."""

    async def run() -> None:
        arrivals = VersionArrivals(count)
        async with asyncio.TaskGroup() as tasks:
            for number in range(count):
                tasks.create_task(run_proxy(number, port, arrivals))
            while True:
                parent.send(await arrivals.last.get())

    _raise_file_limit()
    asyncio.run(run())


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))


@asynccontextmanager
async def connect_proxies(count: int, port: int) -> AsyncIterator[Connection]:
    """Run the process of all proxies while the block lasts."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=run_proxies, args=(count, port, theirs))
    process.start()
    try:
        yield ours
    finally:
        process.kill()
        process.join(10)


async def wait_arrival(pipe: Connection, version: str) -> float:
    """Return when the last proxy got `version`."""
    while True:
        arrived, arrived_at = await asyncio.wait_for(asyncio.to_thread(pipe.recv), 60)
        if arrived == version:
            return float(arrived_at)


def make_fleet(weight: int) -> list[Any]:
    """Return ten accesses; one of them has this weight on its target."""
    targets = [{"inference": "m0", "weight": weight}, {"inference": "m1", "weight": 100}]
    changing = a_model_access("changing", routes=[a_route("default", targets=targets)])
    unchanged = [
        a_model_access(f"a{number}", routes=[a_route("default", f"m{number}")]) for number in range(9)
    ]
    return [changing, *unchanged, *(a_backend(f"m{number}", f"10.0.0.{number + 1}") for number in range(10))]


async def run_changes(count: int, changes: int) -> list[float]:
    """Return the time of each change, in seconds."""
    control_plane = ControlPlane()
    snapshot = control_plane.set(*make_fleet(1))
    port = await control_plane.start()
    times: list[float] = []
    async with connect_proxies(count, port) as pipe:
        await wait_arrival(pipe, snapshot.resources[TypeUrl.SCOPE].version)
        for weight in range(2, changes + 2):
            await wait_programmed(control_plane, count)
            started = time.monotonic()
            snapshot = control_plane.set(*make_fleet(weight))
            times.append(await wait_arrival(pipe, snapshot.resources[TypeUrl.SCOPE].version) - started)
    await control_plane.server.stop(at_once=True)
    return times


async def wait_programmed(control_plane: ControlPlane, count: int) -> None:
    """Wait until every proxy runs the newest snapshot."""

    async def all_run_it() -> bool:
        report = control_plane.ledger.build_report()
        return sum(proxy.revision == report.revision for proxy in report.proxies) == count

    await eventually(all_run_it, f"{count} proxies run it", timeout_s=60)


async def measure_fanout(options: argparse.Namespace) -> int:
    """Measure all runs, the sizes in turn."""
    runs: dict[int, list[list[float]]] = {count: [] for count in options.proxies}
    for _ in range(options.runs):
        for count in options.proxies:
            runs[count].append(await run_changes(count, options.changes))
    medians = {count: statistics.median(t for times in runs[count] for t in times) for count in runs}
    small, large = min(medians), max(medians)
    ratio = medians[large] / medians[small]
    met = ratio <= RATIO_LIMIT and medians[large] <= LIMIT_S
    document = {
        "met": met,
        "limits": {"ratio": RATIO_LIMIT, "seconds": LIMIT_S},
        "ratio": ratio,
        "median_s": medians,
        "spread_s": {count: [min(map(min, times)), max(map(max, times))] for count, times in runs.items()},
        "runs_s": runs,
    }
    print(json.dumps(document, indent=2))
    return 0 if met else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure `--runs` times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--proxies", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--changes", type=int, default=5)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    _raise_file_limit()
    return asyncio.run(measure_fanout(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
