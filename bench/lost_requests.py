"""Requests that are lost while traffic moves and the control plane is killed: none may be (P1).

    python bench/lost_requests.py [--state-dir DIR] [--flips 100] [--targets 100] [--swaps 20]

Two Inferences behind one ModelAccess, under load all the time: weights flipped from one to the other, targets
exchanged, versions swapped and rolled back.
Before every tenth change controllers and xDS servers are killed with SIGKILL, so that it is carried out by their
successors.
Each change counts as done when an answer has come of the side that it leads to.
Prints one JSON document; exits 1 when a request failed or was answered wrongly.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from harness import count_lost, gateway_load, open_space

from builders.load import probe_batches
from builders.waiting import wait_until
from fixtures.installed import Space
from tidegate_localcluster.binaries import default_home
from tidegate_localcluster.demo import helm
from tidegate_localcluster.demo.load import CheckedLoad

LEFT, RIGHT = 1, 2
"""Versions that the two Inferences serve, so that an answer shows its origin."""
KILL_EVERY = 10


class ProvenChanges:
    """Makes changes one after the other, and waits for the answers that prove each."""

    def __init__(self, space: Space, load: CheckedLoad) -> None:
        self._space = space
        self._load = load
        self.killed = 0

    def run_changes(self, count: int, change: Callable[[int], int]) -> dict[str, object]:
        """Make `count` changes; `change` takes the number and returns the version that answers afterwards."""
        seconds: list[float] = []
        before = self._load.report()
        for number in range(count):
            if number % KILL_EVERY == 0:
                self._kill_processes()
            started = time.monotonic()
            version = change(number)
            wait_until(
                lambda: self._load.last_sent_at(str(version)) > started,  # noqa: B023
                f"version {version} answers",
                timeout_s=90,
            )
            seconds.append(time.monotonic() - started)
        report = self._load.report().since_report(before)
        return {
            "changes": count,
            "requests": report.sent,
            **count_lost(report),
            "median_s": round(statistics.median(seconds), 3),
            "most_s": round(max(seconds), 3),
        }

    def _kill_processes(self) -> None:
        for name in ("controllers", "xds"):
            self.killed += self._space.installed.kill(f"tidegate {name}")
            # New pods at once: the kubelet lets a container that ends often wait for minutes.
            label = f"app.kubernetes.io/component={name}"
            arguments = ("-n", helm.NAMESPACE, "-l", label, "--force", "--grace-period=0", "--wait=false")
            self._space.kubectl.run("delete", "pods", *arguments)


def set_weights(space: Space, left_weight: int, right_weight: int) -> None:
    """Set the weights of the access's two targets."""
    targets = [{"inference": "left", "weight": left_weight}, {"inference": "right", "weight": right_weight}]
    space.patch("modelaccess", "probe", {"routes": [make_route(targets)]})


def make_route(targets: list[dict[str, object]]) -> dict[str, object]:
    """Return the one route of the access."""
    return {"name": "default", "targets": targets, "timeout": "10s"}


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state-dir", type=Path, default=default_home() / "clusters" / "default")
    parser.add_argument("--flips", type=int, default=100)
    parser.add_argument("--targets", type=int, default=100)
    parser.add_argument("--swaps", type=int, default=20)
    options = parser.parse_args()
    with open_space(options.state_dir, "lost") as space:
        for name, version in (("left", LEFT), ("right", RIGHT)):
            space.publish(name, LEFT, RIGHT)
            # Both serve under one name, as the targets of one access have to.
            space.inference(name, version=version)
        space.access(("left", 100), ("right", 0))
        space.ready("inference/left", "inference/right", "modelaccess/probe")
        with gateway_load(space, probe_batches([LEFT, RIGHT]), threads=2) as load:
            changes = ProvenChanges(space, load)

            def flip(number: int) -> int:
                to_right = number % 2 == 0
                set_weights(space, 0 if to_right else 100, 100 if to_right else 0)
                return RIGHT if to_right else LEFT

            def exchange(number: int) -> int:
                name, version = (("right", RIGHT), ("left", LEFT))[number % 2]
                space.patch(
                    "modelaccess", "probe", {"routes": [make_route([{"inference": name, "weight": 100}])]}
                )
                return version

            def swap(number: int) -> int:
                version = (RIGHT, LEFT)[number % 2]
                space.patch("inference", "left", {"model": {"version": str(version)}})
                return version

            figures = {
                "weight_flips": changes.run_changes(options.flips, flip),
                "target_swaps": changes.run_changes(options.targets, exchange),
                "version_swaps_and_rollbacks": changes.run_changes(2 * options.swaps, swap),
            }
        losses = count_lost(load.finish())
    print(json.dumps({**losses, "killed_processes": changes.killed, **figures}, indent=2))
    return 1 if any(losses.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
