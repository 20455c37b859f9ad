"""P17: the time to build a whole snapshot of 10,000 routes, and to build the next after a change of one route.

    python bench/xds_build.py [--routes 10000] [--runs 5]

Each route is a ModelAccess of its own that leads to an Inference of its own with one pod: 20,000 clusters with endpoints.
As the process does, it plans and renders from the parsed objects; reading them from the API server is not in it.
Prints one JSON document, with the time of a fixed piece of work beside each run, since the machine may be busy with other things;
exits 1 when the median of either figure misses its target.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from builders.fleet import a_backend, a_fleet
from builders.model_access import a_model_access, a_route
from tidegate.api.model_access import ModelAccess
from tidegate.publisher.snapshot_publisher import pause_garbage_collection
from tidegate.routing.envoy.listener import ListenerSettings
from tidegate.routing.fleet import Backend
from tidegate.routing.incremental import IncrementalTranslator
from tidegate.xds.resources import Snapshot
from tidegate.xds.snapshot_builder import SnapshotBuilder

FULL_LIMIT_S = 0.4
ONE_LIMIT_S = 0.005


def time_call(work: Callable[[], object]) -> dict[str, float]:
    """Return wall and processor time of `work`, in seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - processor}


def run_yardstick() -> None:
    """Add half a million numbers: some 20 ms on an idle core."""
    total = 0
    for number in range(500_000):
        total += number


def make_objects(routes: int) -> list[ModelAccess | Backend]:
    """Return the objects of the fleet."""
    names = [f"model-{number}" for number in range(routes)]
    addresses = [f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}" for number in range(routes)]
    return [
        *(a_model_access(name, routes=[a_route("default", name)]) for name in names),
        *(a_backend(name, address) for name, address in zip(names, addresses, strict=True)),
    ]


class RoutingServer:
    """The routing state of one xDS server."""

    def __init__(self) -> None:
        self.routing = IncrementalTranslator()
        self.builder = SnapshotBuilder(ListenerSettings())
        self.snapshots: list[Snapshot] = []

    def build_snapshot(self) -> None:
        """Build the next snapshot."""
        self.snapshots = [*self.snapshots[-1:], self.builder.apply_change(self.routing.take_change())]


def measure_builds(objects: list[ModelAccess | Backend], routes: int, number: int) -> dict[str, Any]:
    """Measure one whole build, and a change of one route."""
    fleet = a_fleet(*objects)
    server = RoutingServer()
    changed = a_model_access(
        f"model-{number}", routes=[a_route("default", f"model-{routes - 1}")], metadata={"generation": 2}
    )

    def build_all() -> None:
        with pause_garbage_collection():
            server.routing.replace_fleet(fleet)
            server.build_snapshot()

    def build_change() -> None:
        with pause_garbage_collection():
            server.routing.put_access(changed.key, changed)
            server.build_snapshot()

    result = {
        "yardstick": time_call(run_yardstick),
        "full": time_call(build_all),
        "one": time_call(build_change),
    }
    before, after = server.snapshots
    if before.revision == after.revision:
        raise RuntimeError(f"changing the route of {changed.key} made no new snapshot")
    return result


def main() -> int:
    """Measure `--runs` times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--routes", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    objects = make_objects(options.routes)
    measure_builds(make_objects(10), 10, 0)
    # As the process does once its caches are full: objects that stay are not collected again.
    gc.collect()
    gc.freeze()
    runs = [measure_builds(objects, options.routes, number) for number in range(options.runs)]
    medians = {
        figure: {
            unit: statistics.median(result[figure][unit] for result in runs) for unit in ("wall_s", "cpu_s")
        }
        for figure in ("yardstick", "full", "one")
    }
    limits = {"full_s": FULL_LIMIT_S, "one_s": ONE_LIMIT_S}
    met = medians["full"]["wall_s"] <= FULL_LIMIT_S and medians["one"]["wall_s"] <= ONE_LIMIT_S
    document = {"routes": options.routes, "met": met, "limits": limits, "median": medians, "runs": runs}
    print(json.dumps(document, indent=2))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
