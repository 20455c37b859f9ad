"""What a simulated policy achieved, over all and by interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.api.inference import Tier


@dataclass(slots=True)
class IntervalOutcome:
    """One interval: the mean of the slices by tier, loading and draining ones included; value served, minutes missed, slices moved."""

    start_s: float
    slices: dict[Tier, float]
    missed_minutes: float = 0.0
    value: float = 0.0
    moved_slices: int = 0


@dataclass(slots=True)
class SimulationOutcome:
    """All intervals of one policy.

    `value` is that of the requests served, by tier. `missed_minutes` counts, for each real-time Inference, the minutes in which it
    had more demand than its replicas serve within the SLO. `unserved` are its requests beyond that. `idle_slice_s` are slice-seconds
    that loaded or drained.
    """

    policy: str
    value: dict[Tier, float] = field(default_factory=lambda: dict.fromkeys(Tier, 0.0))
    missed_minutes: float = 0.0
    unserved: float = 0.0
    backlog: float = 0.0
    moved_slices: int = 0
    idle_slice_s: float = 0.0
    slice_s: dict[Tier, float] = field(default_factory=lambda: dict.fromkeys(Tier, 0.0))
    intervals: list[IntervalOutcome] = field(default_factory=list[IntervalOutcome])

    @property
    def total_value(self) -> float:
        """Return the value of all tiers."""
        return sum(self.value.values())


def compare_values(outcomes: Sequence[SimulationOutcome], base: str) -> Mapping[str, float]:
    """Return the total value of each policy over that of the policy `base`."""
    values = {outcome.policy: outcome.total_value for outcome in outcomes}
    return {policy: value / values[base] if values[base] > 0 else 1.0 for policy, value in values.items()}
