"""What becomes of a message that was not answered: it comes again after a while, or is a dead letter. Pure.

A broker counts deliveries and not faults: a pod that ended, and a model that was away, took messages with them that are
as good as any. So a message is never given up for deliveries alone, as long as others were asked beside it: what was
delivered more often than maxDeliveries is asked alone, and only what fails by itself is dead.
"""

from dataclasses import dataclass
from enum import StrEnum

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
MOST_ENDS_ALONE = 10
"""What ended its server so often for one pod, although it was asked alone, is dead."""
SPARE_DELIVERIES = 100
"""Beyond maxDeliveries: what ends whole pods leaves nobody who could count, and the broker counts far more than that
(connections that dropped, messages that were given back). So it is dead only after many more."""


class DeadReason(StrEnum):
    """Why a message is a dead letter."""

    MALFORMED = "Malformed"
    DEADLINE_PASSED = "DeadlinePassed"
    REFUSED = "Refused"
    UNFINISHED = "Unfinished"
    RESULT_TOO_LARGE = "ResultTooLarge"


class Fault(StrEnum):
    """Whose fault it is that there is no answer."""

    MESSAGE = "Message"
    """The server says that the request is wrong."""
    UNCLEAR = "Unclear"
    """The model failed: by this request, or by one beside it."""
    SERVER = "Server"
    """There is no server, or no model in it."""


@dataclass(frozen=True, slots=True)
class Again:
    """The message is delivered again after so many seconds."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Dead:
    """The message goes to the dead letters."""

    reason: DeadReason
    message: str


def is_suspect(delivered: int, max_deliveries: int) -> bool:
    """Whether the message is to be asked alone, since it was delivered more often than `most` allows."""
    return delivered > max_deliveries


def is_unfinished(delivered: int, max_deliveries: int) -> bool:
    """Whether nothing more is tried: by the broker's count alone, so far beyond what others' faults make of it."""
    return delivered > max_deliveries + SPARE_DELIVERIES


def after_failure(
    fault: Fault, detail: str, delivered: int, max_deliveries: int, ends_alone: int = 0
) -> Again | Dead:
    """Return what becomes of a message whose `delivered`th delivery ended with `fault` and these words of the server.

    `ends_alone` is how often it was asked alone by this pod and the server was gone, this time included.
    """
    if ends_alone >= MOST_ENDS_ALONE:
        return Dead(
            DeadReason.UNFINISHED, f"asked alone {ends_alone} times, and the server was gone: {detail}"
        )
    given_up = {
        Fault.MESSAGE: delivered >= max_deliveries,
        Fault.UNCLEAR: is_suspect(delivered, max_deliveries),
        Fault.SERVER: False,
    }[fault]
    if given_up:
        return Dead(DeadReason.REFUSED, detail)
    return Again(min(FIRST_PAUSE_S * 2 ** min(delivered - 1, 10), LONGEST_PAUSE_S))
