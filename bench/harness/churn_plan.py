"""Plan the changes of bench/churn.py in their order: a pure function of the seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Final

LEFT, RIGHT = "left", "right"
FIRST_VERSIONS: Final[Mapping[str, int]] = {LEFT: 1, RIGHT: 2}
"""Left's versions are odd and right's are even: an answer says which of the two it came from."""
WEIGHTS: Final = ((100, 0), (0, 100), (50, 50), (90, 10), (10, 90))


class Kind(StrEnum):
    """Kind of a change."""

    CREATE = "create"
    DELETE = "delete"
    SWAP = "swap"
    ROLLBACK = "rollback"
    FLIP = "flip"
    TARGETS = "targets"
    KILL_CONTROLLERS = "kill_controllers"
    KILL_XDS = "kill_xds"
    KILL_AGENT = "kill_agent"


ROUND: Final = (
    *(Kind.CREATE, Kind.DELETE),
    *(Kind.SWAP, Kind.ROLLBACK, Kind.SWAP),
    *(Kind.FLIP, Kind.FLIP, Kind.TARGETS, Kind.TARGETS),
    *(Kind.KILL_CONTROLLERS, Kind.KILL_XDS, Kind.KILL_AGENT),
)
"""Kinds of every round, in another order each time; so even a short churn has each of them."""
_IN_ORDER: Final = ((Kind.CREATE, Kind.DELETE), (Kind.SWAP, Kind.ROLLBACK))
"""The second of these needs one of the first before it."""


@dataclass(frozen=True, slots=True)
class Action:
    """One change, of `inference` if it concerns one, and the versions that answer requests from then on."""

    kind: Kind
    inference: str = ""
    version: int = 0
    targets: tuple[tuple[str, int], ...] = ()
    answered_by: tuple[int, ...] = ()


class _State:
    """What serves, and what the next action may choose."""

    def __init__(self, seed: int) -> None:
        self.choice = random.Random(seed)
        self._guests = count(1)
        self._guest = ""
        self._next = {name: count(version + 2, 2) for name, version in FIRST_VERSIONS.items()}
        self._serving = dict(FIRST_VERSIONS)
        self._previous: dict[str, int] = {}
        self._targets: tuple[tuple[str, int], ...] = ((LEFT, 100), (RIGHT, 0))

    def act(self, kind: Kind) -> Action:
        """Choose an action of this kind, and record it as done."""
        inference, version = "", 0
        match kind:
            case Kind.CREATE:
                inference = self._guest = f"guest-{next(self._guests)}"
            case Kind.DELETE:
                inference = self._guest
            case Kind.SWAP:
                inference = self.choice.choice((LEFT, RIGHT))
                version = next(self._next[inference])
                self._previous[inference] = self._serving[inference]
                self._serving[inference] = version
            case Kind.ROLLBACK:
                inference = self.choice.choice(sorted(self._previous))
                version = self._serving[inference] = self._previous.pop(inference)
            case Kind.FLIP:
                self._retarget(*(tuple(zip((LEFT, RIGHT), weights, strict=True)) for weights in WEIGHTS))
            case Kind.TARGETS:
                self._retarget(((LEFT, 100),), ((RIGHT, 100),))
            case Kind.KILL_AGENT:
                inference = self.choice.choice((LEFT, RIGHT))
            case Kind.KILL_CONTROLLERS | Kind.KILL_XDS:
                pass
        answered_by = tuple(self._serving[name] for name, weight in self._targets if weight)
        return Action(kind, inference, version, self._targets, answered_by)

    def _retarget(self, *choices: tuple[tuple[str, int], ...]) -> None:
        self._targets = self.choice.choice([targets for targets in choices if targets != self._targets])


def plan_actions(seed: int) -> Iterator[Action]:
    """Yield actions without end, round by round; equal seeds give equal actions."""
    state = _State(seed)
    while True:
        for kind in _shuffle(state.choice):
            yield state.act(kind)


def _shuffle(choice: random.Random) -> list[Kind]:
    """Return the kinds of one round in an order in which each follows what it needs."""
    kinds = choice.sample(ROUND, len(ROUND))
    for first, second in _IN_ORDER:
        first_index, second_index = kinds.index(first), kinds.index(second)
        if second_index < first_index:
            kinds[first_index], kinds[second_index] = second, first
    return kinds
