"""The kinds that pages and API show, by the plural in their URLs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Plural(StrEnum):
    """Plural of a kind that the dashboard shows."""

    INFERENCES = "inferences"
    ACCESSES = "modelaccesses"
    FEATURES = "featurecomputes"
    POOLS = "computepools"
    OVERRIDES = "computeoverrides"
    DECISIONS = "allocationdecisions"


ENDPOINTS: Final[Mapping[str, str]] = {Plural.INFERENCES: "inference", Plural.FEATURES: "features"}
"""The prefix of a kind's Envoy clusters."""
