"""Who lives in the fleet, and what is asked of each at which hour: a day with two peaks, made up and always the same."""

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
"""What models of a tier are called, in turn."""
CAPACITY_PER_S: Final = {REALTIME: 100.0, NEARLINE: 50.0}
"""What a replica answers."""
WORTH: Final = {REALTIME: "1", NEARLINE: "0.2", OFFLINE: "1"}
"""Of one request; of tier offline, of a slice at work for a second."""
BUSIEST_SHARE: Final = {REALTIME: 0.5, NEARLINE: 0.24}
"""Part of all slices that a tier needs at its own busiest hour."""
TO_SPARE: Final = {REALTIME: 1.5, NEARLINE: 0.5}
"""Replicas beyond what the load takes: half of one is rounding, and real-time models have one that may be lost."""
LEAST_LOAD: Final = 0.4
"""Replicas' work that the least busy model has at its busiest hour."""
PEAKS: Final = {
    REALTIME: ((11.5, 1.0), (20.0, 0.9)),
    NEARLINE: ((3.0, 1.0),),
}
"""Hours and heights."""
PEAK_WIDTH_H: Final = 3.0
NIGHT: Final = {REALTIME: 0.4, NEARLINE: 0.5}
"""What is asked at the quietest hour, over the busiest: at 200x two cores start and end a few pods a second, and no more."""
SHIFT_H: Final = 0.75
"""So much earlier or later than the others a model may have its peaks."""
NOISE: Final = 0.04
NOISE_EVERY_H: Final = 0.25


@dataclass(frozen=True, slots=True)
class Model:
    """One Inference of the fleet: its range, and what is asked of it at its busiest hour."""

    name: str
    tier: str
    least: int
    most: int
    busiest_per_s: float = 0.0
    """Zero for offline work, which nobody asks for."""
    shift_h: float = 0.0
    seed: int = 0

    @property
    def capacity_per_s(self) -> float:
        """Requests per second that one replica answers within its SLO; 0 for offline work."""
        return CAPACITY_PER_S.get(self.tier, 0.0)

    def asked_per_s(self, hour: float) -> float:
        """Requests per second at an hour of the day, which may be of another day: every day is the same."""
        if self.tier == OFFLINE:
            return 0.0
        return self.busiest_per_s * _shape(self.tier, hour - self.shift_h) * self._noise(hour)

    def _noise(self, hour: float) -> float:
        """A factor near 1 that goes from one random value to the next."""
        steps = int(HOURS / NOISE_EVERY_H)
        step, part = divmod(hour % HOURS / NOISE_EVERY_H, 1.0)
        one, other = (_uniform(self.seed, int(each) % steps) for each in (step, step + 1))
        return 1.0 + NOISE * (one + (other - one) * part)


def _uniform(seed: int, step: int) -> float:
    """A number from -1 to 1 that looks random (the finaliser of splitmix64): a generator for each would be slow to seed."""
    mixed = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return ((mixed ^ (mixed >> 31)) >> 11) / (1 << 52) - 1.0


def _shape(tier: str, hour: float) -> float:
    """The load at an hour over that of the busiest one."""
    waves = (height * math.exp(-((_apart(hour, at) / PEAK_WIDTH_H) ** 2)) for at, height in PEAKS[tier])
    night = NIGHT[tier]
    return night + (1.0 - night) * max(waves)


def _apart(one: float, other: float) -> float:
    """Hours between two times of day, the shorter way round."""
    return abs((one - other + HOURS / 2) % HOURS - HOURS / 2)


def population(inferences: int, slices: int, seed: int) -> Sequence[Model]:
    """So many models that share so many slices: up to four of ten real-time, up to three near-line, the rest offline.

    Their loads are made for the slices: at the busiest hour two thirds are needed, and offline work has the rest.
    Where there are few slices for each, more are offline: a model with less than a replica's work moves nothing.
    """
    counts = {
        tier: max(math.floor(min(inferences * most, slices * share)), 1)
        for tier, most, share in ((REALTIME, 0.4, 0.16), (NEARLINE, 0.3, 0.15))
    }
    counts[OFFLINE] = inferences - sum(counts.values())
    choice = random.Random(seed)  # noqa: S311  the same fleet for the same seed; nothing is secret about it
    busy = [model for tier in CAPACITY_PER_S for model in _asked(tier, counts[tier], slices, choice)]
    most = max(2, math.ceil(slices / max(counts[OFFLINE], 1)))
    return (*busy, *(Model(_name(OFFLINE, number), OFFLINE, 0, most) for number in range(counts[OFFLINE])))


def _asked(tier: str, count: int, slices: int, choice: random.Random) -> Sequence[Model]:
    """The models of a tier that answers requests: a few are asked much, most are not."""
    if count == 0:
        return ()
    mean = max(slices * BUSIEST_SHARE[tier] / count - TO_SPARE[tier], LEAST_LOAD)
    weights = [choice.lognormvariate(0.0, 0.6) for _ in range(count)]
    scale = mean * count / sum(weights)
    made: list[Model] = []
    for number, weight in enumerate(weights):
        replicas = max(weight * scale, LEAST_LOAD)
        made.append(
            Model(
                _name(tier, number),
                tier,
                least=1 if tier == REALTIME else 0,
                most=math.ceil(replicas * (1 + NOISE)) + 2,
                busiest_per_s=replicas * CAPACITY_PER_S[tier],
                shift_h=choice.uniform(-SHIFT_H, SHIFT_H),
                seed=choice.getrandbits(32),
            )
        )
    return made


def _name(tier: str, number: int) -> str:
    stems = STEMS[tier]
    return f"{stems[number % len(stems)]}-{number // len(stems):03}"
