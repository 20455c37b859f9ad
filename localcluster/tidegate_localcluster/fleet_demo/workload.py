"""The models of the fleet and their demand by hour: a generated day with two peaks, the same in every run."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SLICES_PER_GPU: Final = 4
GPUS_PER_NODE: Final = 1
HOURS: Final = 24.0
REALTIME, NEARLINE, OFFLINE = "realtime", "nearline", "offline"
STEMS: Final = {
    REALTIME: ("ctr", "cvr", "rank", "bid"),
    NEARLINE: ("refresh", "segments"),
    OFFLINE: ("embed", "score"),
}
"""Names of a tier's models, in turn."""
CAPACITY_PER_S: Final = {REALTIME: 100.0, NEARLINE: 50.0}
"""Requests per second that a replica answers."""
VALUE_PER_REQUEST: Final = {REALTIME: "1", NEARLINE: "0.2", OFFLINE: "1"}
"""Value of one request; in tier offline, of one second of a slice."""
BUSIEST_SHARE: Final = {REALTIME: 0.5, NEARLINE: 0.24}
"""Share of all slices that a tier needs at its own busiest hour."""
SPARE_REPLICAS: Final = {REALTIME: 1.5, NEARLINE: 0.5}
"""Replicas beyond the load: half of one for rounding, and one more in real-time for a failure."""
MIN_LOAD: Final = 0.4
"""Load, in replicas, of the least busy model at its busiest hour."""
PEAKS: Final = {
    REALTIME: ((11.5, 1.0), (20.0, 0.9)),
    NEARLINE: ((3.0, 1.0),),
}
"""Hours and heights."""
PEAK_WIDTH_H: Final = 3.0
NIGHT_SHARE: Final = {REALTIME: 0.4, NEARLINE: 0.5}
"""Demand at the quietest hour over the busiest; bounded by the few pods per second that two cores start at 200x."""
SHIFT_H: Final = 0.75
"""The most hours by which a model's peaks are earlier or later than the others'."""
NOISE: Final = 0.04
NOISE_EVERY_H: Final = 0.25


@dataclass(frozen=True, slots=True)
class FleetModel:
    """One Inference of the fleet: its bounds, and its demand at its busiest hour."""

    name: str
    tier: str
    min_replicas: int
    max_replicas: int
    busiest_per_s: float = 0.0
    """Zero for offline work, which has no requests."""
    shift_h: float = 0.0
    seed: int = 0

    @property
    def capacity_per_s(self) -> float:
        """Return the requests per second that one replica answers within its SLO; 0 for offline work."""
        return CAPACITY_PER_S.get(self.tier, 0.0)

    def demand_per_s(self, hour: float) -> float:
        """Return the demand per second at an hour; every day is the same."""
        if self.tier == OFFLINE:
            return 0.0
        return self.busiest_per_s * _load_share(self.tier, hour - self.shift_h) * self._noise_factor(hour)

    def _noise_factor(self, hour: float) -> float:
        """Return a factor near 1 that interpolates between random values."""
        steps = int(HOURS / NOISE_EVERY_H)
        step, fraction = divmod(hour % HOURS / NOISE_EVERY_H, 1.0)
        first, second = (_hash_uniform(self.seed, int(index) % steps) for index in (step, step + 1))
        return 1.0 + NOISE * (first + (second - first) * fraction)


def _hash_uniform(seed: int, step: int) -> float:
    """Return a number from -1 to 1 that looks random.

    It is the finaliser of splitmix64, because seeding a generator for each value would be slow.
    """
    mixed = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return ((mixed ^ (mixed >> 31)) >> 11) / (1 << 52) - 1.0


def _load_share(tier: str, hour: float) -> float:
    """Return the load at an hour over that of the busiest hour."""
    waves = (
        height * math.exp(-((_hours_between(hour, peak_hour) / PEAK_WIDTH_H) ** 2))
        for peak_hour, height in PEAKS[tier]
    )
    night = NIGHT_SHARE[tier]
    return night + (1.0 - night) * max(waves)


def _hours_between(first_hour: float, second_hour: float) -> float:
    """Return the hours between two times of day, the shorter way round."""
    return abs((first_hour - second_hour + HOURS / 2) % HOURS - HOURS / 2)


def generate_models(inferences: int, slices: int, seed: int) -> Sequence[FleetModel]:
    """Generate models for this many slices: up to 40 % real-time, up to 30 % near-line, the rest offline.

    Their loads fit the slices: at the busiest hour two thirds are needed, and offline work has the rest.
    With few slices per model more of them are offline, because a load of less than one replica moves nothing.
    """
    counts = {
        tier: max(math.floor(min(inferences * model_share, slices * slice_share)), 1)
        for tier, model_share, slice_share in ((REALTIME, 0.4, 0.16), (NEARLINE, 0.3, 0.15))
    }
    counts[OFFLINE] = inferences - sum(counts.values())
    choice = random.Random(seed)  # noqa: S311  the same fleet for the same seed; nothing is secret about it
    busy = [
        model
        for tier in CAPACITY_PER_S
        for model in _generate_busy_models(tier, counts[tier], slices, choice)
    ]
    max_replicas = max(2, math.ceil(slices / max(counts[OFFLINE], 1)))
    return (
        *busy,
        *(
            FleetModel(_make_name(OFFLINE, number), OFFLINE, 0, max_replicas)
            for number in range(counts[OFFLINE])
        ),
    )


def _generate_busy_models(tier: str, count: int, slices: int, choice: random.Random) -> Sequence[FleetModel]:
    """Generate the models of a tier that answers requests: a few have much demand, most have little."""
    if count == 0:
        return ()
    mean = max(slices * BUSIEST_SHARE[tier] / count - SPARE_REPLICAS[tier], MIN_LOAD)
    weights = [choice.lognormvariate(0.0, 0.6) for _ in range(count)]
    scale = mean * count / sum(weights)
    models: list[FleetModel] = []
    for number, weight in enumerate(weights):
        replicas = max(weight * scale, MIN_LOAD)
        models.append(
            FleetModel(
                _make_name(tier, number),
                tier,
                min_replicas=1 if tier == REALTIME else 0,
                max_replicas=math.ceil(replicas * (1 + NOISE)) + 2,
                busiest_per_s=replicas * CAPACITY_PER_S[tier],
                shift_h=choice.uniform(-SHIFT_H, SHIFT_H),
                seed=choice.getrandbits(32),
            )
        )
    return models


def _make_name(tier: str, number: int) -> str:
    stems = STEMS[tier]
    return f"{stems[number % len(stems)]}-{number // len(stems):03}"
