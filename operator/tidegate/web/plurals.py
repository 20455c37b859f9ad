"""The kinds that pages and API show, by the plural that addresses have."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Plural(StrEnum):
    """The kinds that there are."""

    INFERENCES = "inferences"
    ACCESSES = "modelaccesses"
    FEATURES = "featurecomputes"
    POOLS = "computepools"
    OVERRIDES = "computeoverrides"
    DECISIONS = "allocationdecisions"


ENDPOINTS: Final[Mapping[str, str]] = {Plural.INFERENCES: "inference", Plural.FEATURES: "features"}
"""What gateways call the endpoints of a kind."""
