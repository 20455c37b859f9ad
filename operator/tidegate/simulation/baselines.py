"""What others do with the same pool: fixed shares, autoscalers, priorities and quotas.

Each is the idea of a system and not its code; none of them knows what a request is worth, but for the order of tiers and of
Inferences. All keep the floors, ceilings and warm spares of the pool. Sources: the Kubernetes documentation of the HorizontalPodAutoscaler (target, tolerance, stabilization); Kueue's
documentation of cohorts (nominal quota, borrowing, reclaim); KAI-Scheduler's documentation of queues (quota, over-quota weight);
max-min fairness by progressive filling (Bertsekas and Gallager, Data Networks, 1992).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Final

from tidegate.api.inference import Tier
from tidegate.simulation.engine import PolicyView
from tidegate.simulation.scenario import Scenario, SimulatedModel

_TARGET_UTILIZATION: Final = 0.7
_TOLERANCE: Final = 0.1
_STABILIZATION_S: Final = 300.0
_ROUNDING: Final = 1e-9


class StaticSplit:
    """Each Inference always has what its peak takes; offline work has the rest.

    The peak is that of the history; without a history it is that of the day itself, which is not known in practice.
    """

    name = "static"

    def __init__(self, scenario: Scenario) -> None:
        rates = {
            model.key: max(scenario.history.get(model.key) or scenario.demand[model.key])
            for model in scenario.models
        }
        self._replicas = fill_by_priority(scenario, rates)

    def choose_replicas(self, view: PolicyView) -> Mapping[str, int]:
        """Return the same replicas every time."""
        return self._replicas

    def count_slices(self, scenario: Scenario, tier: Tier) -> int:
        """Return the slices of a tier."""
        return sum(self._replicas[model.key] * model.slices for model in scenario.select_tier(tier))


class UtilizationScaling:
    """An autoscaler for each Inference, by utilization, which knows nothing of the others: free slices go to the first."""

    name = "hpa"

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._static = StaticSplit(scenario)
        self._wanted: dict[str, list[tuple[float, int]]] = {model.key: [] for model in scenario.models}

    def choose_replicas(self, view: PolicyView) -> Mapping[str, int]:
        """Return what the utilization of each asks for, at least the most that it asked for in the last five minutes."""
        if view.step == 0:
            return self._static.choose_replicas(view)
        replicas = {model.key: self._scale_model(model, view) for model in self._scenario.models}
        return keep_tier_limits(self._scenario, replicas)

    def _scale_model(self, model: SimulatedModel, view: PolicyView) -> int:
        counts = view.replicas[model.key]
        if model.tier is Tier.OFFLINE:
            # Batch work is a fixed number of pods.
            return self._static.choose_replicas(view)[model.key]
        capacity = model.capacity_curve.rate_at(counts.ready)
        pending = view.rates[model.key] + view.backlog.get(model.key, 0.0) / _STABILIZATION_S
        ratio = min(pending / capacity, 1.0) / _TARGET_UTILIZATION if capacity > 0 else 1.0
        needs = counts.current if abs(ratio - 1) <= _TOLERANCE else ceil(counts.ready * ratio - _ROUNDING)
        if counts.ready == 0:
            needs = max(counts.current, 1 if pending > 0 else 0)
        recent = [item for item in self._wanted[model.key] if view.now_s - item[0] < _STABILIZATION_S]
        self._wanted[model.key] = [*recent, (view.now_s, needs)]
        return model.limit_replicas(max(count for _, count in self._wanted[model.key]))


class StrictPriority:
    """Real-time Inferences take what their present rate takes, then near-line ones, then offline work."""

    name = "priority"

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    def choose_replicas(self, view: PolicyView) -> Mapping[str, int]:
        """Return the replicas by priority."""
        return fill_by_priority(self._scenario, view.demand_rates)


class MaxMinFairness:
    """Every Inference gets an equal share of the slices, as far as its present rate can use it."""

    name = "max-min"

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    def choose_replicas(self, view: PolicyView) -> Mapping[str, int]:
        """Return the replicas of equal shares."""
        rates = view.demand_rates
        needs = {
            model.key: model.count_needed(rates[model.key]) * model.slices for model in self._scenario.models
        }
        shares = fill_equally(needs, self._scenario.assignable_slices)
        replicas = {model.key: shares[model.key] // model.slices for model in self._scenario.models}
        return keep_tier_limits(self._scenario, replicas)


class QuotaBorrowing:
    """Each tier has the slices of the fixed split as its quota; what it does not need, others borrow until it does (Kueue)."""

    name = "borrowing"

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        static = StaticSplit(scenario)
        self._quota = {tier: static.count_slices(scenario, tier) for tier in Tier}

    def choose_replicas(self, view: PolicyView) -> Mapping[str, int]:
        """Return the replicas of each tier within its quota and what it borrows."""
        needs = count_wanted(self._scenario, view.demand_rates)
        granted = {tier: min(needs[tier], self._quota[tier]) for tier in Tier}
        free = self._scenario.assignable_slices - sum(granted.values())
        for tier in Tier:
            borrowed = min(needs[tier] - granted[tier], free)
            granted[tier] += borrowed
            free -= borrowed
        return fill_tiers(self._scenario, view.demand_rates, granted)


class OverQuotaWeights(QuotaBorrowing):
    """As borrowing, but what is free is divided in proportion to the quotas (KAI-Scheduler)."""

    name = "over-quota"

    def choose_replicas(self, view: PolicyView) -> Mapping[str, int]:
        """Return the replicas of each tier within its quota and its share of the rest."""
        rates = view.demand_rates
        needs = count_wanted(self._scenario, rates)
        granted = {tier: min(needs[tier], self._quota[tier]) for tier in Tier}
        free = self._scenario.assignable_slices - sum(granted.values())
        while free > 0 and (hungry := [tier for tier in Tier if granted[tier] < needs[tier]]):
            weights = sum(max(self._quota[tier], 1) for tier in hungry)
            shares = {tier: max(free * max(self._quota[tier], 1) // weights, 1) for tier in hungry}
            for tier in hungry:
                share = min(shares[tier], needs[tier] - granted[tier], free)
                granted[tier] += share
                free -= share
        return fill_tiers(self._scenario, rates, granted)


def count_wanted(scenario: Scenario, rates: Mapping[str, float]) -> Mapping[Tier, int]:
    """Return the slices that each tier can use within its limits."""
    return {
        tier: min(
            sum(model.count_needed(rates[model.key]) * model.slices for model in scenario.select_tier(tier)),
            scenario.tier_limits[tier],
        )
        for tier in Tier
    }


def fill_by_priority(scenario: Scenario, rates: Mapping[str, float]) -> dict[str, int]:
    """Return the replicas that each model needs, tier by tier, until the pool is full; later tiers keep their minimums."""
    free = scenario.assignable_slices
    reserved = sum(model.floor * model.slices for model in scenario.models)
    replicas: dict[str, int] = {}
    for tier in Tier:
        models = scenario.select_tier(tier)
        reserved -= sum(model.floor * model.slices for model in models)
        replicas |= _fill_models(models, rates, min(scenario.tier_limits[tier], max(free - reserved, 0)))
        free -= sum(replicas[model.key] * model.slices for model in models)
    return replicas


def keep_tier_limits(scenario: Scenario, replicas: Mapping[str, int]) -> dict[str, int]:
    """Return the replicas without those beyond the limits of their tier, from the Inferences whose slices earn least."""
    limited = dict(replicas)
    for tier in Tier:
        models = scenario.select_tier(tier)
        excess = sum(limited[model.key] * model.slices for model in models) - scenario.tier_limits[tier]
        for model in reversed(models):
            if excess > 0:
                count = min(-(-excess // model.slices), limited[model.key])
                limited[model.key] -= count
                excess -= count * model.slices
    return limited


def fill_tiers(
    scenario: Scenario, rates: Mapping[str, float], granted: Mapping[Tier, int]
) -> Mapping[str, int]:
    """Return the replicas within the slices of each tier, those first whose slices earn most."""
    replicas: dict[str, int] = {}
    for tier in Tier:
        replicas |= _fill_models(scenario.select_tier(tier), rates, granted[tier])
    return replicas


def fill_equally(needs: Mapping[str, int], slices: int) -> Mapping[str, int]:
    """Divide slices by progressive filling: equal shares, and what one cannot use goes to the others."""
    shares = dict.fromkeys(needs, 0)
    free = slices
    hungry = [key for key in needs if needs[key] > 0]
    while free > 0 and hungry:
        share = max(free // len(hungry), 1)
        for key in hungry:
            given = min(share, needs[key] - shares[key], free)
            shares[key] += given
            free -= given
        hungry = [key for key in hungry if shares[key] < needs[key]]
    return shares


def _fill_models(models: Sequence[SimulatedModel], rates: Mapping[str, float], slices: int) -> dict[str, int]:
    replicas: dict[str, int] = {}
    free = slices
    for model in models:
        replicas[model.key] = min(model.floor, free // model.slices)
        free -= replicas[model.key] * model.slices
    for model in models:
        added = min(model.count_needed(rates[model.key]) - replicas[model.key], free // model.slices)
        if added > 0:
            replicas[model.key] += added
            free -= added * model.slices
    return replicas
