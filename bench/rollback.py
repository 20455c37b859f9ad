"""How long going back to a kept version takes: from the edit of the object to the last request that the other version answers.

    python bench/rollback.py [--state-dir DIR] [--rollbacks 10] [--replicas 2]

The servers' own counters say that every replica has switched. Prints one JSON document; exits 1 when a request
failed or was answered wrongly, a replica did not switch, or the median is more than one second.
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
from builders.waiting import wait_until
from tidegate_localcluster.binaries import default_home

LIMIT_S = 1.0


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state-dir", type=Path, default=default_home() / "clusters" / "default")
    parser.add_argument("--rollbacks", type=int, default=10)
    parser.add_argument("--replicas", type=int, default=2)
    options = parser.parse_args()
    seconds: list[float] = []
    with open_space(options.state_dir, "rollback") as space:
        space.publish("probe", 1, 2)
        space.inference(replicas=options.replicas)
        space.access()
        space.ready()
        with gateway_load(space, probe_batches([1, 2]), threads=4) as load:
            for _ in range(options.rollbacks):
                space.swap_version("probe", 2)
                before = space.count_answers_by_pod(1)
                started = time.monotonic()
                space.patch("inference", "probe", {"model": {"version": "1"}})

                def switched(before: dict[str, float] = before) -> bool:
                    counts = space.count_answers_by_pod(1)
                    return counts.keys() == before.keys() and all(counts[pod] > before[pod] for pod in counts)

                wait_until(switched, "every replica answers with version 1", timeout_s=30)
                space.serves("probe", 1)
                seconds.append(max(load.last_sent_at("2") - started, 0.0))
        losses = count_lost(load.finish())
    median = round(statistics.median(seconds), 3)
    spread = [round(min(seconds), 3), round(max(seconds), 3)]
    result = {"replicas": options.replicas, "rollbacks": len(seconds), **losses}
    print(json.dumps({**result, "median_s": median, "spread_s": spread, "limit_s": LIMIT_S}, indent=2))
    return 1 if any(losses.values()) or median > LIMIT_S else 0


if __name__ == "__main__":
    sys.exit(main())
