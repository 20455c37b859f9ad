"""Which requests of a ModelAccess are refused before an overloaded target: from which share of failures on, by the value of their route.

A route counts its own requests to each of its targets. The lowest value begins to refuse at `maxFailurePercent`, the
highest at four fifths, and those between in equal ratios: refusing the low ones relieves the target before it comes to the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from tidegate.api.model_access import ModelAccess
from tidegate.routing.ir import Admission

MOST_PERCENT: Final = 80.0
"""Of the highest value: it is not to be refused for what lower ones do, but a target that answers nobody is left alone."""


_DEFAULT: Final = "1.0"


def admissions(access: ModelAccess) -> Mapping[str, Admission]:
    """By route; empty where none was asked for."""
    control = access.spec.protection.admission_control if access.spec.protection is not None else None
    if control is None:
        return {}
    values = {route.name: Decimal(route.value or _DEFAULT) for route in access.spec.routes}
    ranks = {value: rank for rank, value in enumerate(sorted(set(values.values())))}
    lowest, steps = float(control.max_failure_percent), max(len(ranks) - 1, 1)
    ratio = (MOST_PERCENT / lowest) ** (1 / steps)
    return {name: Admission(round(lowest * ratio ** ranks[value], 2)) for name, value in values.items()}
