"""Predict what an assignment serves, by the demand and the curves that it was made from."""

from __future__ import annotations

from tidegate.allocation.assignment import Assignment
from tidegate.allocation.snapshot import AllocationSnapshot, ModelInput
from tidegate.api.allocation_decision import PredictedOutcome


def predict_outcome(snapshot: AllocationSnapshot, assignment: Assignment) -> PredictedOutcome:
    """Predict the value served and lost, and missed SLOs, in the horizon's first step; unknown demand counts as none."""
    replicas = {(assigned.inference, assigned.pool): assigned.replicas for assigned in assignment.replicas}
    value = missed = lost_value = 0.0
    for inference in snapshot.inferences:
        if inference.load is None:
            continue
        demand, capacity = inference.load.rates[0], _compute_capacity(inference, replicas)
        served = inference.value_of_served(demand, capacity)
        value += served
        if inference.tier.traits.has_slo:
            missed += max(demand - capacity, 0.0)
            lost_value += max(inference.value_of_served(demand, demand) - served, 0.0)
    return PredictedOutcome(value=round(value, 6), slo_misses=round(missed, 6), lost=round(lost_value, 6))


def _compute_capacity(inference: ModelInput, replicas: dict[tuple[str, str], int]) -> float:
    """Return the requests per second that the Inference's replicas can answer within its SLO."""
    return sum(
        placement.curve.rate_at(replicas.get((inference.key, placement.pool), placement.replicas.current))
        for placement in inference.placements
    )
