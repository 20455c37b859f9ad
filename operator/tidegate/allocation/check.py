"""Whether an assignment that came from elsewhere may be carried out at all: it answers this snapshot and exceeds nothing."""

from __future__ import annotations

from tidegate.allocation.assignment import Assignment
from tidegate.allocation.snapshot import Snapshot


def wrong_with(snapshot: Snapshot, assignment: Assignment) -> str:
    """What is wrong with it, in words; empty when nothing is."""
    if assignment.inputs_hash != snapshot.inputs_hash:
        return "it answers other inputs"
    slices = {
        (each.key, placement.pool): placement.slices
        for each in snapshot.inferences
        for placement in each.placements
    }
    if {(each.inference, each.pool) for each in assignment.replicas} != set(slices):
        return "it does not place exactly the Inferences that were asked about"
    given = {pool.name: 0 for pool in snapshot.pools}
    for each in assignment.replicas:
        if each.replicas < 0:
            return f"it gives {each.inference} {each.replicas} replicas in {each.pool}"
        given[each.pool] += each.replicas * slices[each.inference, each.pool]
    for pool in snapshot.pools:
        if given[pool.name] > pool.slices and assignment.postponed == ():
            return f"it gives {given[pool.name]} slices of {pool.name}, which has {pool.slices}"
    return ""
