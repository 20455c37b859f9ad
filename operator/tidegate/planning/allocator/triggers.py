"""Decide before the interval is over: what changed that cannot wait, such as an override or a lost node."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tidegate.api.allocation_decision import DecisionTrigger
from tidegate.api.compute_pool import PolicyMode
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.observed_pool import AllocationObserved


@dataclass(frozen=True, slots=True)
class DecisionInputs:
    """The inputs of a decision besides demand: generations of objects, the nodes that take pods, and events that are near."""

    pool_generation: int
    mode: PolicyMode
    overrides: frozenset[tuple[str, int]]
    scaled_inferences: frozenset[tuple[ObjectKey, int]]
    healthy_nodes: frozenset[str]
    near_events: frozenset[tuple[str, datetime]]

    @classmethod
    def from_observed(cls, observed: AllocationObserved) -> DecisionInputs:
        """Return the inputs of a pool now."""
        return cls(
            observed.pool.metadata.generation,
            observed.effective_mode,
            frozenset(
                (override.metadata.uid, override.metadata.generation)
                for override in observed.active_overrides
            ),
            frozenset(
                (member.key, member.inference.metadata.generation) for member in observed.scaled_members
            ),
            frozenset(observed.slices.healthy_nodes),
            frozenset((item.event.name, item.begins) for item in observed.calendar.find_near(observed.now)),
        )


def find_trigger(before: DecisionInputs, now: DecisionInputs) -> DecisionTrigger | None:
    """Return why to decide at once; None if nothing changed that cannot wait. A new node can wait."""
    if before.overrides != now.overrides:
        return DecisionTrigger.OVERRIDE_CHANGED
    if (before.pool_generation, before.mode, before.near_events) != (
        now.pool_generation,
        now.mode,
        now.near_events,
    ):
        return DecisionTrigger.POOL_CHANGED
    if before.scaled_inferences != now.scaled_inferences:
        return DecisionTrigger.INFERENCE_CHANGED
    return DecisionTrigger.NODE_LOST if before.healthy_nodes - now.healthy_nodes else None


def resolve_trigger(
    due: DecisionTrigger, before: DecisionInputs | None, now: DecisionInputs
) -> DecisionTrigger:
    """Return the trigger to record for a decision that was `due`, with the inputs that it is made from.

    What changed while demand was read is part of the decision, and no later tick would find it new. The first decision
    (`before` is None) keeps its trigger, whatever changed since.
    """
    return due if before is None else find_trigger(before, now) or due
