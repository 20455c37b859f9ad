"""How an Inference or a pool stands, from the caches: the same reports as the command line's."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.reports.decision import those_about
from tidegate.reports.why import InferenceReport, PoolReport, Seen, why_inference, why_pool
from tidegate.web.parts import Parts


def pool_of(parts: Parts, inference: Inference) -> ComputePool | None:
    """Where an Inference is placed."""
    placement = inference.spec.placement
    return None if placement is None else parts.fleet.pools.get(ObjectKey("", placement.pool))


def decisions_of(
    parts: Parts, pool: str | None = None, inference: str | None = None
) -> Sequence[AllocationDecision]:
    """Those about a pool, those that move an Inference, or all; the newest first."""
    return those_about(parts.fleet.decisions.all(), pool=pool, inference=inference)


def overrides_of(parts: Parts) -> Sequence[ComputeOverride]:
    """All, the first to end first."""
    return sorted(parts.fleet.overrides.all(), key=lambda each: each.ends)


def why_of_inference(
    parts: Parts, inference: Inference, overrides: Sequence[ComputeOverride]
) -> InferenceReport:
    """As `tidegate why` has it; `overrides` are those that may be seen."""
    return why_inference(inference, _seen(parts, pool_of(parts, inference), overrides))


def why_of_pool(parts: Parts, pool: ComputePool, overrides: Sequence[ComputeOverride]) -> PoolReport:
    """As `tidegate why` has it; `overrides` are those that may be seen."""
    return why_pool(pool, _seen(parts, pool, overrides))


def _seen(parts: Parts, pool: ComputePool | None, overrides: Sequence[ComputeOverride]) -> Seen:
    decisions = decisions_of(parts, pool.metadata.name) if pool is not None else ()
    return Seen(pool, decisions, overrides, parts.now())
