"""The tail while versions change, against the tail while none does: interleaved in one run.

    python bench/reload_tail.py [--state-dir DIR] [--pairs 5] [--seconds 30] [--every 10] [--cpu 500m]

Each pair is one arm with a change of version every `--every` seconds and one without, the first of them in turn.
Prints one JSON document; exits 1 when a request failed or was answered wrongly, or p99 with changes is more than 10 % above p99 without.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from harness import count_lost, gateway_load, open_space

from builders.load import probe_batches
from fixtures.installed import Space
from tidegate_localcluster.binaries import default_home
from tidegate_localcluster.demo.load import CheckedLoad, LoadReport

LIMIT = 1.10


LOOK_EVERY_S = 0.5
"""The same in both arms, because the clients share a processor and Python's lock with these reads."""


class VersionReloads:
    """One version after the other, each new to the replicas and published before the measurement."""

    def __init__(self, space: Space, count: int) -> None:
        self._space = space
        self.version = 1
        space.publish("probe", *range(1, count + 2))

    @property
    def is_serving(self) -> bool:
        """Return whether the newest version serves."""
        versions = self._space.status("inference", "probe").get("versions", {})
        return bool(versions.get("serving") == str(self.version))

    def request_next(self) -> None:
        """Request the next version."""
        self.version += 1
        self._space.patch("inference", "probe", {"model": {"version": str(self.version)}})


def run_arm(
    load: CheckedLoad, seconds: float, every: float, reloads: VersionReloads, *, changing: bool
) -> LoadReport:
    """Return the results of the requests of one arm."""
    before = load.report()
    started = time.monotonic()
    due = started
    while time.monotonic() < started + seconds:
        is_serving = reloads.is_serving
        if changing and time.monotonic() >= due:
            if not is_serving:
                raise SystemExit(
                    f"version {reloads.version} does not serve {every:g} s after the change of the spec"
                )
            due += every
            reloads.request_next()
        time.sleep(LOOK_EVERY_S)
    return load.report().since_report(before)


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state-dir", type=Path, default=default_home() / "clusters" / "default")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=10.0)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--cpu", default="500m", help="CPU request of a replica")
    options = parser.parse_args()
    arms: dict[bool, list[LoadReport]] = {True: [], False: []}
    reload_count = options.pairs * (int(options.seconds / options.every) + 1) + 1
    with open_space(options.state_dir, "tail") as space:
        reloads = VersionReloads(space, reload_count)
        # The CPU share of a model that answers in milliseconds; the tests' models request almost none.
        space.inference(replicas=options.replicas, cpu=options.cpu)
        space.access()
        space.ready()
        reloads.request_next()
        space.serves("probe", reloads.version)
        with gateway_load(space, probe_batches(range(1, reload_count + 2)), threads=2) as load:
            for pair in range(options.pairs):
                for changing in (pair % 2 == 0, pair % 2 == 1):
                    report = run_arm(load, options.seconds, options.every, reloads, changing=changing)
                    arms[changing].append(report)
        losses = count_lost(load.finish())
    figures = {
        name: {
            "p50_ms": [round(report.quantile_ms(0.5), 3) for report in arms[changing]],
            "p99_ms": [round(report.quantile_ms(0.99), 3) for report in arms[changing]],
            "requests": [report.sent for report in arms[changing]],
        }
        for name, changing in (("reloads", True), ("none", False))
    }
    ratios = [
        round(with_reloads / without, 3)
        for with_reloads, without in zip(figures["reloads"]["p99_ms"], figures["none"]["p99_ms"], strict=True)
    ]
    ratio = round(statistics.median(ratios), 3)
    print(
        json.dumps({**losses, "p99_ratio": ratio, "p99_ratios": ratios, "limit": LIMIT, **figures}, indent=2)
    )
    return 1 if any(losses.values()) or ratio > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
