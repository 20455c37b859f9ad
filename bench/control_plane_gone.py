"""Traffic while no process of the control plane runs: nothing may fail (P6).

    python bench/control_plane_gone.py [--state-dir DIR] [--seconds 60]

Controllers, xDS servers and dashboard are scaled to none for that long; afterwards a version is swapped.
Prints one JSON document; exits 1 when a request failed or was answered wrongly, or when that swap is not carried out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from harness import count_lost, gateway_load, open_space

from builders.load import probe_batches
from builders.waiting import wait_until
from tidegate_localcluster.binaries import default_home
from tidegate_localcluster.demo import helm

DEPLOYMENTS = {"tidegate-controllers": 2, "tidegate-xds": 2, "tidegate-web": 1}


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state-dir", type=Path, default=default_home() / "clusters" / "default")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with open_space(options.state_dir, "gone") as space:
        space.publish("probe", 1, 2)
        space.inference(replicas=2)
        space.access()
        space.ready()
        kubectl = space.kubectl

        def scale(replicas: dict[str, int]) -> None:
            for name, count in replicas.items():
                kubectl.run("scale", f"deployment/{name}", f"--replicas={count}", "-n", helm.NAMESPACE)

        with gateway_load(space, probe_batches([1, 2]), threads=2) as load:
            time.sleep(options.seconds / 4)
            report_before = load.report()
            scale(dict.fromkeys(DEPLOYMENTS, 0))
            wait_until(
                lambda: not any(space.installed.component(name) for name in ("controllers", "xds", "web")),
                "no process of the control plane runs",
            )
            before = load.report()
            time.sleep(options.seconds)
            report_without = load.report().since_report(before)
            scale(DEPLOYMENTS)
            space.swap_version("probe", 2)
        losses = count_lost(load.finish())
    figures = {
        name: {"requests": report.sent, **count_lost(report), "p99_ms": round(report.quantile_ms(0.99), 3)}
        for name, report in (("there", report_before), ("gone", report_without))
    }
    print(json.dumps({"seconds_gone": options.seconds, **losses, **figures}, indent=2))
    return 1 if any(losses.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
