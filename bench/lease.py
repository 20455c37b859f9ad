"""How soon the next candidate for the controllers' Lease may write: after an orderly end of the leader, and after its death.

    python bench/lease.py [--rounds 3]

Starts a control plane of its own (no root). Two candidates compete in this process, each with its own client.
Prints one JSON document; exits 1 where a median is above 2 s (orderly) or 15 s (killed).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from builders.candidates import two_candidates
from builders.waiting import eventually
from tidegate_localcluster.binaries import Binaries
from tidegate_localcluster.control_plane import ControlPlane
from tidegate_localcluster.pki import Pki
from tidegate_localcluster.programs import CONTROL_PLANE

TARGETS_S = {"orderly": 2.0, "killed": 15.0}


async def measure_handover(kubeconfig: Path, end: str) -> float:
    """Return the seconds from the end of one leader until the next may write."""
    async with two_candidates(kubeconfig, "default") as (first, second):
        await (first.stop() if end == "orderly" else first.kill())
        began = time.monotonic()
        await eventually(lambda: second.writes, what="the second candidate leads")
        return time.monotonic() - began


def main() -> int:
    """Measure, and print the document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    rounds: int = parser.parse_args().rounds
    binaries = Binaries().ensure(CONTROL_PLANE, lambda line: print(line, file=sys.stderr))
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        with ControlPlane(state, binaries, Pki(state / "pki")) as control_plane:
            seconds_by_end = {
                end: [asyncio.run(measure_handover(control_plane.kubeconfig, end)) for _ in range(rounds)]
                for end in TARGETS_S
            }
    missed = [end for end, target_s in TARGETS_S.items() if median(seconds_by_end[end]) > target_s]
    document = {
        end: {
            "median_s": round(median(seconds), 2),
            "max_s": round(max(seconds), 2),
            "target_s": TARGETS_S[end],
        }
        for end, seconds in seconds_by_end.items()
    }
    print(json.dumps({"handover": document, "missed": missed}, indent=2))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
