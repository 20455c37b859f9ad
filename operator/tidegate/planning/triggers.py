"""What makes the allocator decide before its next look is due: what people said, and nodes that were lost."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.api.allocation_decision import Trigger
from tidegate.api.compute_pool import PolicyMode
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocation_view import AllocationObserved


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a decision was made under, but for demand: generations of objects, and the nodes that take pods."""

    pool: int
    mode: PolicyMode
    overrides: frozenset[tuple[str, int]]
    scaled: frozenset[tuple[ObjectKey, int]]
    nodes: frozenset[str]

    @classmethod
    def of(cls, observed: AllocationObserved) -> Circumstances:
        """Those of a pool now."""
        return cls(
            observed.pool.metadata.generation,
            observed.mode,
            frozenset((each.metadata.uid, each.metadata.generation) for each in observed.active),
            frozenset((member.key, member.inference.metadata.generation) for member in observed.scaled),
            frozenset(observed.slices.healthy_nodes),
        )


def trigger(before: Circumstances, now: Circumstances) -> Trigger | None:
    """Why to decide at once; None when nothing changed that cannot wait, a node that came among that."""
    if before.overrides != now.overrides:
        return Trigger.OVERRIDE_CHANGED
    if (before.pool, before.mode) != (now.pool, now.mode):
        return Trigger.POOL_CHANGED
    if before.scaled != now.scaled:
        return Trigger.INFERENCE_CHANGED
    return Trigger.NODE_LOST if before.nodes - now.nodes else None


def cause(due: Trigger, before: Circumstances | None, now: Circumstances) -> Trigger:
    """What a decision is called that was `due`, under the circumstances in which it is made.

    What changed while demand was read is decided about as well, and no later look would find it new. A first look
    (`before` None) stays one, whatever changed since.
    """
    return due if before is None else trigger(before, now) or due
