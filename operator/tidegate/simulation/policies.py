"""The policies by name, and the order in which they are listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tidegate.allocation.errors import InvalidInputError
from tidegate.simulation.allocator_policy import (
    AllocatorOptions,
    AllocatorPolicy,
    ClairvoyantPolicy,
    Solve,
)
from tidegate.simulation.baselines import (
    MaxMinFairness,
    OverQuotaWeights,
    QuotaBorrowing,
    StaticSplit,
    StrictPriority,
    UtilizationScaling,
)
from tidegate.simulation.engine import Policy, make_instant
from tidegate.simulation.scenario import Scenario

FORECAST: Final = "forecast"
PRESENT: Final = "present"
FREE_MOVES: Final = "free-moves"
ORACLE: Final = ClairvoyantPolicy.name
_BASELINES: Final = (
    StaticSplit,
    UtilizationScaling,
    StrictPriority,
    MaxMinFairness,
    QuotaBorrowing,
    OverQuotaWeights,
)
DESCRIPTIONS: Final[Mapping[str, str]] = {
    FORECAST: "the allocator, with a forecast of the rates",
    PRESENT: "the allocator, with the present rates",
    FREE_MOVES: "the allocator, as if moves cost nothing",
    "static": "fixed shares by the peaks of the history",
    "hpa": "an autoscaler for each Inference, at 70 % utilization",
    "priority": "real-time first, then near-line, then offline",
    "max-min": "equal shares, as far as each can use them",
    "borrowing": "a quota for each tier, lent while it is idle (Kueue)",
    "over-quota": "the same, and the rest in proportion to the quotas (KAI)",
    ORACLE: "the allocator, if it knew the demand and replicas loaded in no time",
}


def make_policy(name: str, scenario: Scenario, solve: Solve, quantile: float) -> tuple[Scenario, Policy]:
    """Return a policy, and the scenario that it is run in: only the allocator's have shared spares.

    Raises InvalidInputError for an unknown name.
    """
    options = {
        FORECAST: AllocatorOptions(forecast_quantile=quantile),
        PRESENT: AllocatorOptions(),
        FREE_MOVES: AllocatorOptions(prices_moves=False),
    }.get(name)
    if options is not None:
        return scenario, AllocatorPolicy(name, scenario, solve, options)
    scenario = replace(scenario, spare_rules=None)
    if name == ORACLE:
        instant = replace(make_instant(scenario), history={})
        return instant, ClairvoyantPolicy(instant, solve)
    for baseline in _BASELINES:
        if baseline.name == name:
            return scenario, baseline(scenario)
    raise _unknown_policy(name)


def select_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the policies to run, in the order of the list, the oracle always; all of them without names."""
    unknown = [name for name in names if name not in DESCRIPTIONS]
    if unknown:
        raise _unknown_policy(unknown[0])
    return tuple(name for name in DESCRIPTIONS if not names or name in names or name == ORACLE)


def _unknown_policy(name: str) -> InvalidInputError:
    return InvalidInputError("policy", f"there is no {name!r}; there are {', '.join(DESCRIPTIONS)}")
