"""Versions changed many times in a row under load: does memory grow, or latency?

    python bench/swap_soak.py [--state-dir DIR] [--swaps 1000] [--window 10] [--output build/swap_soak]

Every swap is to a version that no replica has seen. Writes OUTPUT.csv, one row for each window, and OUTPUT.json;
exits 1 when a request failed or was answered wrongly, or when memory, p50 or p99 grew by more than 5 % from the first third of the windows
to the last.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

from harness import count_lost, gateway_load, open_space, read_resident_bytes, relative_growth

from builders.load import probe_batches
from tidegate_localcluster.binaries import default_home

LIMIT = 0.05
JUDGED = ("triton_rss_mib", "agent_rss_mib", "p50_ms", "p99_ms")


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state-dir", type=Path, default=default_home() / "clusters" / "default")
    parser.add_argument("--swaps", type=int, default=1000)
    parser.add_argument("--window", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("build/swap_soak"))
    options = parser.parse_args()
    rows: list[dict[str, float]] = []
    losses: Counter[str] = Counter()
    with open_space(options.state_dir, "soak") as space:
        space.publish("probe", 1)
        space.inference()
        space.access()
        space.ready()
        with gateway_load(space, probe_batches(range(1, options.swaps + 2)), threads=1) as load:
            started, before = time.monotonic(), load.report()
            for swap in range(1, options.swaps + 1):
                version = swap + 1
                space.publish("probe", version)
                space.swap_version("probe", version)
                shutil.rmtree(space.folder("probe") / str(swap))
                if swap % options.window:
                    continue
                window_end, report = time.monotonic(), load.report()
                window, before = report.since_report(before), report
                memory = read_resident_bytes(space)
                losses.update(count_lost(window))
                rows.append(
                    {
                        "swaps": swap,
                        "swap_s": round((window_end - started) / options.window, 3),
                        "triton_rss_mib": round(memory["triton"] / 2**20, 2),
                        "agent_rss_mib": round(memory["agent"] / 2**20, 2),
                        "p50_ms": round(window.quantile_ms(0.5), 3),
                        "p99_ms": round(window.quantile_ms(0.99), 3),
                        "requests": window.sent,
                    }
                )
                print(json.dumps(rows[-1]), file=sys.stderr)
                started = window_end
    growths = {name: round(relative_growth([row[name] for row in rows]), 4) for name in JUDGED}
    result = {"swaps": options.swaps, **losses, "growth": growths, "limit": LIMIT, "windows": len(rows)}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.with_suffix(".json").write_text(json.dumps({**result, "rows": rows}, indent=2) + "\n")
    with options.output.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    print(json.dumps(result, indent=2))
    return 1 if losses.total() or any(share > LIMIT for share in growths.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
