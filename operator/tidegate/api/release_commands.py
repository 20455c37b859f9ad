"""Commands about a release: what each does, where it has an effect, and where it leads.

Imports nothing heavy: `tidegate --help` shows the commands.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class ReleasePhase(StrEnum):
    """Phase of a release."""

    PROGRESSING = "Progressing"
    PAUSED = "Paused"
    PROMOTED = "Promoted"
    ROLLED_BACK = "RolledBack"


class ReleaseCommand(StrEnum):
    """Value of the annotation tidegate.io/release."""

    PAUSE = "pause"
    RESUME = "resume"
    PROMOTE = "promote"
    ABORT = "abort"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class CommandRule:
    """What holds for one command.

    `effective_in`: the phases in which it has an effect; None is that of a release that has not begun.
    `leads_to`: the phases in which the release may be once the controllers have acted on it.
    `repeatable`: it begins something each time; any other has nothing to do in a phase that it leads to.
    """

    summary: str
    effective_in: frozenset[ReleasePhase | None]
    leads_to: frozenset[ReleasePhase]
    repeatable: bool = False


RELEASE_COMMANDS: Final[Mapping[ReleaseCommand, CommandRule]] = {
    ReleaseCommand.PAUSE: CommandRule(
        "Hold a release at its step; its checks go on.",
        effective_in=frozenset({None, ReleasePhase.PROGRESSING}),
        leads_to=frozenset({ReleasePhase.PAUSED}),
    ),
    ReleaseCommand.RESUME: CommandRule(
        "Continue a release, with a fresh sample.",
        effective_in=frozenset({ReleasePhase.PAUSED}),
        leads_to=frozenset({ReleasePhase.PROGRESSING}),
        repeatable=True,
    ),
    ReleaseCommand.PROMOTE: CommandRule(
        "Give a release's target all traffic now.",
        effective_in=frozenset({ReleasePhase.PROGRESSING, ReleasePhase.PAUSED}),
        leads_to=frozenset({ReleasePhase.PROMOTED}),
    ),
    ReleaseCommand.ABORT: CommandRule(
        "Give a release's target no traffic now, even after a promotion.",
        effective_in=frozenset({ReleasePhase.PROGRESSING, ReleasePhase.PAUSED, ReleasePhase.PROMOTED}),
        leads_to=frozenset({ReleasePhase.ROLLED_BACK}),
    ),
    ReleaseCommand.RESTART: CommandRule(
        "Begin a release at its first step, even after its end.",
        effective_in=frozenset(ReleasePhase),
        # A restarted release may already have ended at the next read.
        leads_to=frozenset(ReleasePhase) - {ReleasePhase.ROLLED_BACK},
        repeatable=True,
    ),
}
