"""What one change costs a gateway with so many accesses: bytes on the wire and processor time.

    python bench/xds_change.py [--accesses 1000] [--changes 20]

One xDS server in this process, and one real Envoy with one worker thread.
A change is one weight of one access; the next comes when Envoy has accepted it.
Prints one JSON document: the bytes that Envoy received per change, its processor time, and what it took to start.
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
from builders.waiting import eventually
from fixtures.envoy import ControlPlane, Envoy
from tidegate.api.model_access import ModelAccess
from tidegate.routing.hosts import HostKey, HostKind

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def make_access(number: int, weight: int, accesses: int) -> Any:
    """Return one access with two targets."""
    targets = [
        {"inference": f"m{number}", "weight": weight},
        {"inference": f"m{(number + 1) % accesses}", "weight": 100},
    ]
    return a_model_access(
        f"a{number}", routes=[a_route("default", targets=targets)], metadata={"generation": weight}
    )


def make_backends(accesses: int) -> list[Any]:
    """Return one Inference with one pod for each access."""
    return [a_backend(f"m{n}", f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}") for n in range(accesses)]


def read_cpu_s(envoy: Envoy) -> float:
    """Return the processor time of the whole process so far."""
    fields = Path(f"/proc/{envoy.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def envoy_memory_mib(envoy: Envoy) -> float:
    """Return the resident memory."""
    return int(Path(f"/proc/{envoy.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def wait_programmed(control_plane: ControlPlane, access: ModelAccess) -> None:
    """Wait until the gateway runs the access."""
    host = HostKey(HostKind.ACCESS, access.key)

    async def runs_it() -> bool:
        return control_plane.ledger.is_programmed(host, access.metadata.generation)

    await eventually(runs_it, f"the gateway runs {access.key}")


async def received_bytes(envoy: Envoy) -> int:
    """Return the bytes from the xDS server so far."""
    name = "cluster.tidegate-xds.upstream_cx_rx_bytes_total"
    return int((await envoy.get_admin(f"/stats?filter=^{name}$")).rsplit(":", 1)[1])


async def run_gateway(accesses: int, changes: int) -> dict[str, Any]:
    """Start one gateway with all accesses, and change one after the other."""
    control_plane = ControlPlane()
    fleet = [*(make_access(n, 1, accesses) for n in range(accesses)), *make_backends(accesses)]
    snapshot = control_plane.set(*fleet)
    port = await control_plane.start()
    with tempfile.TemporaryDirectory() as folder:
        envoy = Envoy(Path(folder))
        try:
            started = time.monotonic()
            await envoy.start(port)
            await control_plane.accepted(snapshot)
            start = {
                "start_s": time.monotonic() - started,
                "start_cpu_s": read_cpu_s(envoy),
                "start_bytes": await received_bytes(envoy),
                "memory_mib": envoy_memory_mib(envoy),
            }
            # Reading its statistics costs Envoy more than a change does: once before all changes, and once after.
            before_bytes, before_cpu_s = await received_bytes(envoy), read_cpu_s(envoy)
            own_cpu_s, times = time.process_time(), []
            for change in range(changes):
                access = make_access(change, 2, accesses)
                started = time.monotonic()
                control_plane.routing.put_access(access.key, access)
                control_plane.cache.set(
                    control_plane.builder.apply_change(control_plane.routing.take_change())
                )
                await wait_programmed(control_plane, access)
                times.append(time.monotonic() - started)
            own_cpu_s = time.process_time() - own_cpu_s
            envoy_cpu_s = read_cpu_s(envoy) - before_cpu_s
            return {
                "accesses": accesses,
                "changes": changes,
                "accepted_median_s": statistics.median(times),
                "server_cpu_s_per_change": own_cpu_s / changes,
                **start,
                "cpu_s_per_change": envoy_cpu_s / changes,
                "bytes_per_change": (await received_bytes(envoy) - before_bytes) / changes,
            }
        finally:
            envoy.stop()
            await control_plane.server.stop(at_once=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure once for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accesses", type=int, nargs="+", default=[1000])
    parser.add_argument("--changes", type=int, default=20)
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    runs = [asyncio.run(run_gateway(accesses, options.changes)) for accesses in options.accesses]
    print(json.dumps(runs, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
