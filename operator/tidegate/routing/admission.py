"""The limits of admission control for the routes of a ModelAccess, by the value of each route.

A route counts its own requests to each of its targets. The lowest value begins to reject at `maxFailurePercent`, the
highest at four fifths, and those between in equal ratios: rejecting low values relieves the target before higher ones are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from tidegate.api.model_access import ModelAccess
from tidegate.routing.ir import AdmissionLimit

MAX_PERCENT: Final = 80.0
"""The limit of the highest value: failures of lower values do not reach it, but it still relieves a target that answers nothing."""

_DEFAULT: Final = "1.0"


def admission_limits(access: ModelAccess) -> Mapping[str, AdmissionLimit]:
    """Return the limit of each route by name; empty if the access has no admission control."""
    control = access.spec.protection.admission_control if access.spec.protection is not None else None
    if control is None:
        return {}
    values = {route.name: Decimal(route.value or _DEFAULT) for route in access.spec.routes}
    ranks = {value: rank for rank, value in enumerate(sorted(set(values.values())))}
    lowest, steps = float(control.max_failure_percent), max(len(ranks) - 1, 1)
    ratio = (MAX_PERCENT / lowest) ** (1 / steps)
    return {name: AdmissionLimit(round(lowest * ratio ** ranks[value], 2)) for name, value in values.items()}
