"""Decide before the interval is over: what changed that cannot wait, such as an override or a lost node."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.api.allocation_decision import Trigger
from tidegate.api.compute_pool import PolicyMode
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocation_view import AllocationObserved


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The inputs of a decision besides demand: generations of objects, and the nodes that take pods."""

    pool: int
    mode: PolicyMode
    overrides: frozenset[tuple[str, int]]
    scaled: frozenset[tuple[ObjectKey, int]]
    nodes: frozenset[str]

    @classmethod
    def of(cls, observed: AllocationObserved) -> Circumstances:
        """Return the inputs of a pool now."""
        return cls(
            observed.pool.metadata.generation,
            observed.mode,
            frozenset((override.metadata.uid, override.metadata.generation) for override in observed.active),
            frozenset((member.key, member.inference.metadata.generation) for member in observed.scaled),
            frozenset(observed.slices.healthy_nodes),
        )


def trigger(before: Circumstances, now: Circumstances) -> Trigger | None:
    """Return why to decide at once; None if nothing changed that cannot wait. A new node can wait."""
    if before.overrides != now.overrides:
        return Trigger.OVERRIDE_CHANGED
    if (before.pool, before.mode) != (now.pool, now.mode):
        return Trigger.POOL_CHANGED
    if before.scaled != now.scaled:
        return Trigger.INFERENCE_CHANGED
    return Trigger.NODE_LOST if before.nodes - now.nodes else None


def cause(due: Trigger, before: Circumstances | None, now: Circumstances) -> Trigger:
    """Return the trigger to record for a decision that was `due`, with the inputs that it is made from.

    What changed while demand was read is part of the decision, and no later tick would find it new. The first decision
    (`before` is None) keeps its trigger, whatever changed since.
    """
    return due if before is None else trigger(before, now) or due
