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


class ChangeKind(StrEnum):
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
    *(ChangeKind.CREATE, ChangeKind.DELETE),
    *(ChangeKind.SWAP, ChangeKind.ROLLBACK, ChangeKind.SWAP),
    *(ChangeKind.FLIP, ChangeKind.FLIP, ChangeKind.TARGETS, ChangeKind.TARGETS),
    *(ChangeKind.KILL_CONTROLLERS, ChangeKind.KILL_XDS, ChangeKind.KILL_AGENT),
)
"""Kinds of every round, in another order each time; so even a short churn has each of them."""
_IN_ORDER: Final = ((ChangeKind.CREATE, ChangeKind.DELETE), (ChangeKind.SWAP, ChangeKind.ROLLBACK))
"""The second of these needs one of the first before it."""


@dataclass(frozen=True, slots=True)
class ChurnAction:
    """One change, of `inference` if it concerns one, and the versions that answer requests from then on."""

    kind: ChangeKind
    inference: str = ""
    version: int = 0
    targets: tuple[tuple[str, int], ...] = ()
    answered_by: tuple[int, ...] = ()


class _ChurnState:
    """What serves, and what the next action may choose."""

    def __init__(self, seed: int) -> None:
        self.choice = random.Random(seed)
        self._guests = count(1)
        self._guest = ""
        self._next = {name: count(version + 2, 2) for name, version in FIRST_VERSIONS.items()}
        self._serving = dict(FIRST_VERSIONS)
        self._previous: dict[str, int] = {}
        self._targets: tuple[tuple[str, int], ...] = ((LEFT, 100), (RIGHT, 0))

    def choose_action(self, kind: ChangeKind) -> ChurnAction:
        """Choose an action of this kind, and record it as done."""
        inference, version = "", 0
        match kind:
            case ChangeKind.CREATE:
                inference = self._guest = f"guest-{next(self._guests)}"
            case ChangeKind.DELETE:
                inference = self._guest
            case ChangeKind.SWAP:
                inference = self.choice.choice((LEFT, RIGHT))
                version = next(self._next[inference])
                self._previous[inference] = self._serving[inference]
                self._serving[inference] = version
            case ChangeKind.ROLLBACK:
                inference = self.choice.choice(sorted(self._previous))
                version = self._serving[inference] = self._previous.pop(inference)
            case ChangeKind.FLIP:
                self._choose_targets(
                    *(tuple(zip((LEFT, RIGHT), weights, strict=True)) for weights in WEIGHTS)
                )
            case ChangeKind.TARGETS:
                self._choose_targets(((LEFT, 100),), ((RIGHT, 100),))
            case ChangeKind.KILL_AGENT:
                inference = self.choice.choice((LEFT, RIGHT))
            case ChangeKind.KILL_CONTROLLERS | ChangeKind.KILL_XDS:
                pass
        answered_by = tuple(self._serving[name] for name, weight in self._targets if weight)
        return ChurnAction(kind, inference, version, self._targets, answered_by)

    def _choose_targets(self, *choices: tuple[tuple[str, int], ...]) -> None:
        self._targets = self.choice.choice([targets for targets in choices if targets != self._targets])


def plan_actions(seed: int) -> Iterator[ChurnAction]:
    """Yield actions without end, round by round; equal seeds give equal actions."""
    state = _ChurnState(seed)
    while True:
        for kind in _shuffle_round(state.choice):
            yield state.choose_action(kind)


def _shuffle_round(choice: random.Random) -> list[ChangeKind]:
    """Return the kinds of one round in an order in which each follows what it needs."""
    kinds = choice.sample(ROUND, len(ROUND))
    for first, second in _IN_ORDER:
        first_index, second_index = kinds.index(first), kinds.index(second)
        if second_index < first_index:
            kinds[first_index], kinds[second_index] = second, first
    return kinds
