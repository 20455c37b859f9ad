"""Messages about a release."""

from typing import Final

from tidegate.api.messages.message import CatalogueMessage, MessageLevel
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.STEPPING: CatalogueMessage(
        "TG2101",
        MessageLevel.INFO,
        "The release's target gets its share of this step, and all checks pass so far.",
        "Wait.",
    ),
    Reason.WAITING_FOR_REQUESTS: CatalogueMessage(
        "TG2102",
        MessageLevel.INFO,
        "The interval of this step is over, and the target, or the targets that it is compared with, have "
        "answered too few requests for the checks.",
        "Wait; or lower minRequests of the check, start with a larger step, or annotate "
        "tidegate.io/release=promote.",
    ),
    Reason.WAITING_FOR_MEASUREMENTS: CatalogueMessage(
        "TG2103",
        MessageLevel.INFO,
        "A gateway or Prometheus returns no measurements, so the release does not advance.",
        "Wait; if it stays, look at the gateway or the query that the message names.",
    ),
    Reason.UNDECIDED: CatalogueMessage(
        "TG2104",
        MessageLevel.WARNING,
        "The target is above a check's limit, but not significantly.",
        "Wait for more requests. The message has the figures.",
    ),
    Reason.PAUSED: CatalogueMessage(
        "TG2105",
        MessageLevel.WARNING,
        "The release is paused at its step by the annotation tidegate.io/release=pause; its checks still "
        "run.",
        "Wait for the person who paused it, or annotate tidegate.io/release=resume.",
    ),
    Reason.PROMOTED: CatalogueMessage(
        "TG2106",
        MessageLevel.INFO,
        "The target passed every step, or a person promoted it; it gets all requests of its route.",
        "Nothing. With the next change, write the weights in effect into the spec: all weight to the target, no "
        "release.",
    ),
    Reason.CHECK_FAILED: CatalogueMessage(
        "TG2107",
        MessageLevel.ERROR,
        "The release's target failed a check significantly; with onFailure: Rollback "
        "it gets no requests any more.",
        "Read the figures in the message. After a correction, any change of spec.release or the annotation "
        "tidegate.io/release=restart starts again.",
    ),
    Reason.ABORTED: CatalogueMessage(
        "TG2108",
        MessageLevel.INFO,
        "A person ended the release by the annotation tidegate.io/release=abort; its target gets no requests "
        "any more.",
        "Nothing. Any change of spec.release, or the annotation tidegate.io/release=restart, starts again.",
    ),
}
