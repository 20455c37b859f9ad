"""Report on Inferences and pools from the caches, in the same form as the command line."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.reports.decision import select_decisions
from tidegate.reports.explanation import (
    ExplanationInputs,
    InferenceReport,
    PoolReport,
    explain_inference,
    explain_pool,
)
from tidegate.web.app_state import AppState


def find_pool(app: AppState, inference: Inference) -> ComputePool | None:
    """Return the pool of an Inference, if any; of several the first."""
    placement = inference.spec.placement
    return None if placement is None else app.fleet.pools.get(ObjectKey("", placement.first_pool))


def list_recent_decisions(
    app: AppState, pool: str | None = None, inference: str | None = None
) -> Sequence[AllocationDecision]:
    """Return the decisions about a pool, those that move an Inference, or all; the newest first."""
    return select_decisions(app.fleet.decisions.list_all(), pool=pool, inference=inference)


def list_overrides(app: AppState) -> Sequence[ComputeOverride]:
    """Return all overrides, the first to end first."""
    return sorted(app.fleet.overrides.list_all(), key=lambda override: override.end_time)


def report_inference(
    app: AppState, inference: Inference, overrides: Sequence[ComputeOverride]
) -> InferenceReport:
    """Explain the replicas of an Inference like `tidegate why`; `overrides` are those that the user may see."""
    return explain_inference(inference, _read_observation(app, find_pool(app, inference), overrides))


def report_pool(app: AppState, pool: ComputePool, overrides: Sequence[ComputeOverride]) -> PoolReport:
    """Explain the assignment of a pool like `tidegate why`; `overrides` are those that the user may see."""
    return explain_pool(pool, _read_observation(app, pool, overrides))


def _read_observation(
    app: AppState, pool: ComputePool | None, overrides: Sequence[ComputeOverride]
) -> ExplanationInputs:
    decisions = list_recent_decisions(app, pool.metadata.name) if pool is not None else ()
    return ExplanationInputs(pool, decisions, overrides, app.now())
