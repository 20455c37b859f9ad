"""How many source files one change walks through: the files of the product whose functions are executed because of it.

    python bench/walks.py [--output build/walks.json]

Real controllers and a real xDS server on a real API server; kubelets, agents and the gateway are simulated. Two changes are
made once all is settled: the weights of a ModelAccess, until the gateway has them and the status shows them; and the version
of an Inference, until the agents have the order and the status shows the swap, since simulated agents load nothing. `files` are those whose functions ran between the change and its end, in the controllers, in
the xDS server, and in either; `idle` are those that run in the seconds before, without any change, and `because` the difference.
Prints one JSON document; exits 1 when a walk is longer than its target.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from harness.discovery import discover
from harness.simulated_cluster import (
    SimulatedCluster,
    create_system_pods,
    make_namespace,
    make_object,
    simulated_cluster,
    wait_leading,
    wait_listening,
)

from tidegate.kube import kinds
from tidegate_localcluster.control_plane import LOOPBACK
from tidegate_localcluster.ports import find_unused_port
from tidegate_localcluster.process import ChildProcess

Body = dict[str, Any]
Counts = dict[str, int]
"""Executed functions by file."""

SPACE: Final = "ads"
NODES: Final = 2
GATEWAY: Final = "gateway-0"
TARGETS: Final = {"weights": 30, "version": 35}
SETTLE_S: Final = 5.0
"""What has not changed for so long is settled."""
IDLE_S: Final = 2.0
WITHIN_S: Final = 60.0
_REPOSITORY: Final = Path(__file__).resolve().parents[1]
ROOTS: Final = ("operator/tidegate", "controllers/tidegate_controllers", "dataplane/tidegate_dataplane")


def make_inference_spec(version: int) -> Body:
    """Return the spec of an Inference."""
    return {"model": {"name": "ctr", "uri": "file:///models/ctr", "version": str(version)}}


def make_access_spec(weight: int) -> Body:
    """Return the spec of a ModelAccess in which one of two targets has this weight in percent."""
    targets = [{"inference": "a", "weight": weight}, {"inference": "b", "weight": 100 - weight}]
    return {"hosts": ["ctr.example.com"], "routes": [{"name": "default", "targets": targets}]}


@dataclass(frozen=True, slots=True)
class RecordedProcess:
    """A process of the product whose executed functions are recorded."""

    process: ChildProcess
    record: Path

    def begin(self) -> None:
        """Record from now on."""
        self.record.unlink(missing_ok=True)
        self._send(signal.SIGUSR1)

    async def end(self) -> Counts:
        """Return what was executed since."""
        self._send(signal.SIGUSR2)
        while not self.record.exists():  # noqa: ASYNC110  another process writes it
            await asyncio.sleep(0.05)
        counts: Counts = json.loads(self.record.read_text())
        return {str(Path(path).relative_to(_REPOSITORY)): count for path, count in counts.items()}

    def _send(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)


class Walks:
    """Settled objects, and the changes of them."""

    def __init__(self, cluster: SimulatedCluster, processes: Mapping[str, RecordedProcess]) -> None:
        self._cluster, self._api, self._processes = cluster, cluster.api, processes
        self.received = 0
        """Responses of the xDS server to the gateway."""

    async def create_objects(self) -> None:
        """Create two Inferences and a ModelAccess, and wait until they are settled."""
        await make_namespace(self._api, SPACE)
        for name in ("a", "b"):
            body = make_object("Inference", name, make_inference_spec(1), SPACE)
            await self._api.create(kinds.INFERENCE.url_path(SPACE), body)
        body = make_object("ModelAccess", "ctr", make_access_spec(90), SPACE)
        await self._api.create(kinds.MODEL_ACCESS.url_path(SPACE), body)
        await self.wait_ready()

    async def change_weights(self) -> None:
        """Change the weights, until the gateway has them and the status says so."""
        before = self.received
        path = kinds.MODEL_ACCESS.url_path(SPACE, "ctr")
        await self._api.call("PATCH", path, {"spec": make_access_spec(50)})
        await wait_until(lambda: self._is_new(before))
        await self.wait_ready()

    async def change_version(self) -> None:
        """Change a version, until its swap is reported."""
        await self._api.call("PATCH", kinds.INFERENCE.url_path(SPACE, "a"), {"spec": make_inference_spec(2)})
        await wait_until(self._is_swapping)

    async def wait_ready(self) -> None:
        """Wait until all objects are Ready in their present generation."""
        try:
            await wait_until(self._are_ready)
        except TimeoutError:
            for kind in (kinds.INFERENCE, kinds.MODEL_ACCESS):
                for body in await self._api.list_objects(kind.url_path(SPACE)):
                    print(body["metadata"]["name"], json.dumps(body.get("status")), file=sys.stderr)
            raise

    async def _is_swapping(self) -> bool:
        body = await self._api.get(kinds.INFERENCE.url_path(SPACE, "a")) or {}
        return bool(body.get("status", {}).get("swap"))

    async def _is_new(self, before: int) -> bool:
        return self.received > before

    async def _are_ready(self) -> bool:
        for kind, count in ((kinds.INFERENCE, 2), (kinds.MODEL_ACCESS, 1)):
            bodies = await self._api.list_objects(kind.url_path(SPACE))
            if len(bodies) != count or not all(map(is_ready, bodies)):
                return False
        return True

    async def record(self, change: Callable[[], Awaitable[None]]) -> tuple[dict[str, Counts], float]:
        """Return what each process executes during a change, and how long that takes."""
        await asyncio.sleep(SETTLE_S)
        for process in self._processes.values():
            process.begin()
        started = time.monotonic()
        await change()
        seconds = time.monotonic() - started
        return {name: await process.end() for name, process in self._processes.items()}, seconds


def is_ready(body: Mapping[str, Any]) -> bool:
    """Return whether an object is Ready in its present generation."""
    status = body.get("status") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    ready = conditions.get("Ready", {})
    generation = body["metadata"]["generation"]
    return ready.get("status") == "True" and ready.get("observedGeneration") == generation


async def wait_until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(WITHIN_S):
        while not await condition():  # noqa: ASYNC110  other processes bring it about
            await asyncio.sleep(0.05)


async def measure_walks(files: Path) -> dict[str, Any]:
    """Record both changes."""
    recorder = str(Path(__file__).parent / "harness" / "function_recorder")
    async with simulated_cluster(files, NODES) as cluster:
        port = find_unused_port(LOOPBACK)

        def make_environment(name: str, **further: str) -> dict[str, str]:
            return {
                "PYTHONPATH": os.pathsep.join((recorder, os.environ.get("PYTHONPATH", ""))),
                "TIDEGATE_RECORD_TO": str(files / f"{name}.record"),
                "TIDEGATE_RECORD_ROOTS": ":".join(str(_REPOSITORY / root) for root in ROOTS),
                "TIDEGATE_REPORT_PORT": str(reports),
                **further,
            }

        reports = find_unused_port(LOOPBACK)
        await create_system_pods(cluster.api, 1)
        with ExitStack() as stack:
            xds_environment = make_environment("xds", TIDEGATE_XDS_PORT=str(port))
            xds = stack.enter_context(cluster.run_xds(xds_environment))
            controllers = stack.enter_context(cluster.run_controllers(make_environment("controllers")))
            processes = {
                name: RecordedProcess(process, files / f"{name}.record")
                for name, process in (("controllers", controllers), ("xds", xds))
            }
            async with asyncio.timeout(WITHIN_S):
                await wait_leading(cluster, controllers)
                await wait_listening(xds, LOOPBACK, port)
            walks = Walks(cluster, processes)

            def count_response(_response: Any) -> None:
                walks.received += 1

            gateway = asyncio.create_task(discover(GATEWAY, port, count_response))
            await walks.create_objects()
            changes = {"weights": walks.change_weights, "version": walks.change_version}
            figures = {name: await measure_change(walks, change) for name, change in changes.items()}
            gateway.cancel()
            return figures


async def measure_change(walks: Walks, change: Callable[[], Awaitable[None]]) -> dict[str, Any]:
    """Return the walk of one change."""
    # Before and not after: a version that simulated agents do not load stays a swap, which the controllers follow.
    idle, _ = await walks.record(lambda: asyncio.sleep(IDLE_S))
    changed, seconds = await walks.record(change)
    files = {path for counts in changed.values() for path in counts}
    idle_files = {path for counts in idle.values() for path in counts}
    return {
        "seconds": round(seconds, 2),
        "files": len(files),
        **{name: len(counts) for name, counts in changed.items()},
        "idle": len(idle_files),
        "because": len(files - idle_files),
        "paths": {
            name: {path: count for path, count in sorted(counts.items()) if path not in idle_files}
            for name, counts in changed.items()
        },
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-walks-") as folder:
        figures = asyncio.run(measure_walks(Path(folder)))
    missed = {name: limit for name, limit in TARGETS.items() if figures[name]["because"] > limit}
    text = json.dumps({**figures, "missed": missed}, indent=2)
    print(text)
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
