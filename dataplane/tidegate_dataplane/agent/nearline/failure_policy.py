"""Policy for unanswered messages: another delivery after a pause, or a dead letter. Pure.

A broker counts deliveries and not faults: pods that ended and models that were unavailable add deliveries to good
messages. So a message is never given up for deliveries alone while it is processed beside others: above maxDeliveries
it is processed alone, and only a failure then makes it a dead letter.
"""

from dataclasses import dataclass
from enum import StrEnum

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
MAX_LOSSES_ALONE = 10
"""A message that was processed alone and ended its server this many times, in one pod, is a dead letter."""
SPARE_DELIVERIES = 100
"""Allowance beyond maxDeliveries for messages that end whole pods, whose losses no pod can count.

The broker also counts dropped connections and messages that were given back, so the allowance is large."""


class DeadReason(StrEnum):
    """Reason why a message is a dead letter."""

    MALFORMED = "Malformed"
    DEADLINE_PASSED = "DeadlinePassed"
    REFUSED = "Refused"
    UNFINISHED = "Unfinished"
    RESULT_TOO_LARGE = "ResultTooLarge"


class FaultOrigin(StrEnum):
    """Origin of the fault behind a missing answer."""

    MESSAGE = "Message"
    """The server says that the request is wrong."""
    UNCLEAR = "Unclear"
    """The model failed: by this request, or by one beside it."""
    SERVER = "Server"
    """There is no server, or no model in it."""
    FEATURES = "Features"
    """The FeatureCompute does not answer."""


@dataclass(frozen=True, slots=True)
class Redeliver:
    """The message is delivered again after `after_s`."""

    after_s: float


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The message goes to the dead letters."""

    reason: DeadReason
    message: str


def is_suspect(delivered: int, max_deliveries: int) -> bool:
    """Return whether the message must be processed alone, since it had more than `max_deliveries`."""
    return delivered > max_deliveries


def is_unfinished(delivered: int, max_deliveries: int) -> bool:
    """Return whether to give up by the broker's count alone: it is far beyond what faults of others explain."""
    return delivered > max_deliveries + SPARE_DELIVERIES


def judge_failure(
    fault: FaultOrigin, detail: str, delivered: int, max_deliveries: int, losses_alone: int = 0
) -> Redeliver | DeadLetter:
    """Return what to do with a message after its `delivered`th delivery ended with `fault`.

    `detail` is the server's text. `losses_alone` is how often this pod processed it alone and lost the server, now included.
    """
    if losses_alone >= MAX_LOSSES_ALONE:
        return DeadLetter(
            DeadReason.UNFINISHED,
            f"processed alone {losses_alone} times, and the server ended each time: {detail}",
        )
    given_up = {
        FaultOrigin.MESSAGE: delivered >= max_deliveries,
        FaultOrigin.UNCLEAR: is_suspect(delivered, max_deliveries),
        FaultOrigin.SERVER: False,
        FaultOrigin.FEATURES: False,
    }[fault]
    if given_up:
        return DeadLetter(DeadReason.REFUSED, detail)
    return Redeliver(min(FIRST_PAUSE_S * 2 ** min(delivered - 1, 10), LONGEST_PAUSE_S))
