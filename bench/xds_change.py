"""What one change costs a gateway with so many accesses: bytes on the wire and processor time, in both dialects of the xDS protocol.

    python bench/xds_change.py [--accesses 1000] [--changes 20]

One xDS server in this process, two real Envoys (one worker thread each) that run the same fleet, one in each dialect.
A change is one weight of one access; the next comes when both Envoys have accepted it.
Prints one JSON document: for each dialect the median bytes that Envoy received per change, its processor time, and what it took to start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from builders.fleet import a_backend
from builders.model_access import a_model_access, a_route
from fixtures.envoy import ControlPlane, Envoy
from tidegate.routing.bootstrap import Dialect

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def an_access(number: int, weight: int, accesses: int) -> Any:
    """One access with two targets."""
    targets = [
        {"inference": f"m{number}", "weight": weight},
        {"inference": f"m{(number + 1) % accesses}", "weight": 100},
    ]
    return a_model_access(
        f"a{number}", routes=[a_route("default", targets=targets)], metadata={"generation": weight}
    )


def backends(accesses: int) -> list[Any]:
    """One Inference with one pod for each access."""
    return [a_backend(f"m{n}", f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}") for n in range(accesses)]


def cpu_s(envoy: Envoy) -> float:
    """Processor time of the whole process so far."""
    fields = Path(f"/proc/{envoy.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def memory_mib(envoy: Envoy) -> float:
    """Resident memory."""
    return int(Path(f"/proc/{envoy.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def received(envoy: Envoy) -> int:
    """Bytes from the xDS server so far."""
    name = "cluster.tidegate-xds.upstream_cx_rx_bytes_total"
    return int((await envoy.get_admin(f"/stats?filter=^{name}$")).rsplit(":", 1)[1])


async def run(accesses: int, changes: int) -> dict[str, Any]:
    """Both gateways side by side."""
    control_plane = ControlPlane()
    fleet = [*(an_access(n, 1, accesses) for n in range(accesses)), *backends(accesses)]
    control_plane.set(*fleet)
    port = await control_plane.start()
    result: dict[str, Any] = {}
    envoys: dict[Dialect, Envoy] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for dialect in Dialect:
                place = Path(folder) / dialect.name
                place.mkdir()
                envoy = Envoy(place, dialect.name.lower())
                envoy.dialect = dialect
                started = time.monotonic()
                await envoy.start(port)
                envoys[dialect] = envoy
                snapshot = control_plane.cache.snapshot
                assert snapshot is not None
                await control_plane.accepted(snapshot)
                result[dialect.name.lower()] = {
                    "start_s": time.monotonic() - started,
                    "start_cpu_s": cpu_s(envoy),
                    "start_bytes": await received(envoy),
                    "memory_mib": memory_mib(envoy),
                    "bytes": [],
                    "cpu_s": [],
                }
            times = []
            for change in range(changes):
                before = {dialect: (await received(envoy), cpu_s(envoy)) for dialect, envoy in envoys.items()}
                access = an_access(change, 2, accesses)
                started = time.monotonic()
                control_plane.routing.put_access(access.key, access)
                snapshot = control_plane.builder.apply(control_plane.routing.take_change())
                control_plane.cache.set(snapshot)
                await control_plane.accepted(snapshot)
                times.append(time.monotonic() - started)
                for dialect, envoy in envoys.items():
                    figures = result[dialect.name.lower()]
                    figures["bytes"].append(await received(envoy) - before[dialect][0])
                    figures["cpu_s"].append(cpu_s(envoy) - before[dialect][1])
        finally:
            for envoy in envoys.values():
                envoy.stop()
            await control_plane.server.stop(at_once=True)
    for figures in result.values():
        figures["bytes_per_change"] = statistics.median(figures.pop("bytes"))
        # The clock of a process has ticks of 10 ms, so only the sum over all changes says something.
        figures["cpu_s_per_change"] = sum(figures.pop("cpu_s")) / changes
    return {
        "accesses": accesses,
        "changes": changes,
        "both_accepted_median_s": statistics.median(times),
        **result,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures once for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accesses", type=int, nargs="+", default=[1000])
    parser.add_argument("--changes", type=int, default=20)
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    runs = [asyncio.run(run(accesses, options.changes)) for accesses in options.accesses]
    print(json.dumps(runs, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
