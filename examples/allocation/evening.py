"""The evening's load arrives, and then a node is lost: two decisions of the allocator, with their reasons.

python examples/allocation/evening.py
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from tidegate.allocation.assignment import Assignment
from tidegate.allocation.curves import fit_curve, linear_curve
from tidegate.allocation.snapshot import (
    AllocationSnapshot,
    DemandInput,
    HorizonStep,
    ModelInput,
    PlacementInput,
    PoolInput,
    ReplicaBounds,
    ReplicaCounts,
    TierRule,
)
from tidegate.allocation.solver import Solver
from tidegate.api.inference import Tier

HORIZON_S = 600.0


def nearline_demand(arrivals: float, backlog: float, deadline_s: float) -> DemandInput:
    """Spread a backlog over the horizon; it is urgent if clearing it in time takes much more than the arrivals."""
    return DemandInput((arrivals + backlog / HORIZON_S,), (1.0 + backlog / deadline_s / arrivals,))


def offline_demand(slice_seconds: float) -> DemandInput:
    """Spread the remaining work over the horizon; with the curve `linear(1.0)` a slice-second is a request."""
    return DemandInput((slice_seconds / HORIZON_S,))


def evening() -> AllocationSnapshot:
    """Sixteen slices on four nodes. Click prediction is asked for more than its seven replicas serve."""
    pool = PoolInput(
        "gpu-a",
        slices=16,
        nodes=4,
        spares=1,
        tiers=(TierRule(Tier.REALTIME, floor=4), TierRule(Tier.OFFLINE, floor=1)),
        price=0.5,
    )
    clicks = ModelInput(
        "ads/ctr-v3",
        Tier.REALTIME,
        (
            PlacementInput(
                "gpu-a", fit_curve([(1, 300.0), (4, 1200.0), (8, 2400.0)]), replicas=ReplicaCounts(ready=7)
            ),
        ),
        DemandInput((2400.0,)),
        ReplicaBounds(floor=4),
        value=1.0,
    )
    ranking = ModelInput(
        "ads/rank-log",
        Tier.NEARLINE,
        (PlacementInput("gpu-a", linear_curve(400.0), replicas=ReplicaCounts(ready=2)),),
        nearline_demand(arrivals=700.0, backlog=6000.0, deadline_s=1800.0),
        value=0.05,
    )
    embeddings = ModelInput(
        "ads/embed-refresh",
        Tier.OFFLINE,
        (PlacementInput("gpu-a", linear_curve(1.0), replicas=ReplicaCounts(ready=6)),),
        offline_demand(slice_seconds=40000.0),
        value=0.01,
    )
    return AllocationSnapshot((pool,), (clicks, ranking, embeddings), steps=(HorizonStep(HORIZON_S),))


def carried_out(snapshot: AllocationSnapshot, assignment: Assignment) -> AllocationSnapshot:
    """The same, with the replicas of the assignment."""
    return replace(
        snapshot,
        inferences=tuple(
            replace(
                each,
                placements=tuple(
                    replace(spot, replicas=ReplicaCounts(ready=assignment.get_replicas(each.key, spot.pool)))
                    for spot in each.placements
                ),
            )
            for each in snapshot.inferences
        ),
    )


def show(title: str, assignment: Assignment) -> None:
    """The decision as people read it."""
    print(title)
    for move in assignment.moves:
        print(f"  {move.wave}. {move.action} {move.replicas}: {move.reason}")
    for each in assignment.relaxed:
        print(f"  not kept: {each.rule} of {each.subject}: {each.message}")
    for binding in assignment.bindings[:4]:
        print(f"  binds: {binding.constraint}, {binding.price * 60:.3g} per minute")
    print(
        f"  value {assignment.objective:.2f} per second by {assignment.method}, gap {assignment.gap or 0:.1%}"
    )


def main() -> int:
    """Decides twice."""
    solver = Solver(time.monotonic)
    before = evening()
    first = solver.solve(before)
    show("The evening's load arrives:", first)
    after = carried_out(before, first)
    lost = replace(after, pools=(replace(after.pools[0], slices=12, nodes=3),))
    show("A node with four slices is lost:", solver.solve(lost))
    return 0


if __name__ == "__main__":
    sys.exit(main())
