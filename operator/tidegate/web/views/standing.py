"""Report on Inferences and pools from the caches, in the same form as the command line."""

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


def pool_of(app: Parts, inference: Inference) -> ComputePool | None:
    """Return the pool of an Inference, if any."""
    placement = inference.spec.placement
    return None if placement is None else app.fleet.pools.get(ObjectKey("", placement.pool))


def decisions_of(
    app: Parts, pool: str | None = None, inference: str | None = None
) -> Sequence[AllocationDecision]:
    """Return the decisions about a pool, those that move an Inference, or all; the newest first."""
    return those_about(app.fleet.decisions.all(), pool=pool, inference=inference)


def overrides_of(app: Parts) -> Sequence[ComputeOverride]:
    """Return all overrides, the first to end first."""
    return sorted(app.fleet.overrides.all(), key=lambda override: override.ends)


def why_of_inference(
    app: Parts, inference: Inference, overrides: Sequence[ComputeOverride]
) -> InferenceReport:
    """Explain the replicas of an Inference like `tidegate why`; `overrides` are those that the user may see."""
    return why_inference(inference, _read_observation(app, pool_of(app, inference), overrides))


def why_of_pool(app: Parts, pool: ComputePool, overrides: Sequence[ComputeOverride]) -> PoolReport:
    """Explain the assignment of a pool like `tidegate why`; `overrides` are those that the user may see."""
    return why_pool(pool, _read_observation(app, pool, overrides))


def _read_observation(app: Parts, pool: ComputePool | None, overrides: Sequence[ComputeOverride]) -> Seen:
    decisions = decisions_of(app, pool.metadata.name) if pool is not None else ()
    return Seen(pool, decisions, overrides, app.now())
