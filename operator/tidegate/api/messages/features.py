"""Messages about the plan and the sources of a FeatureCompute."""

from typing import Final

from tidegate.api.messages.message import NO_ACTION, CatalogueMessage, MessageLevel
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.PLAN_COMPILED: CatalogueMessage(
        "TG3001",
        MessageLevel.INFO,
        "The features are compiled; status.planHash names the plan.",
        NO_ACTION,
    ),
    Reason.PLAN_INVALID: CatalogueMessage(
        "TG3002",
        MessageLevel.ERROR,
        "The features do not fit together.",
        "Change the feature or source that the message names.",
    ),
    Reason.SOURCES_READY: CatalogueMessage(
        "TG3003",
        MessageLevel.INFO,
        "Every replica has read every source.",
        NO_ACTION,
    ),
    Reason.SOURCES_LOADING: CatalogueMessage(
        "TG3004",
        MessageLevel.INFO,
        "Sources are being read.",
        "Wait.",
    ),
    Reason.SOURCE_FAILED: CatalogueMessage(
        "TG3005",
        MessageLevel.ERROR,
        "A source could not be read.",
        "Correct the source's table, or publish it; the message has the details.",
    ),
    Reason.EVENTS_CURRENT: CatalogueMessage(
        "TG3006",
        MessageLevel.INFO,
        "Every replica has stored what its streams held a minute ago or later.",
        NO_ACTION,
    ),
    Reason.EVENTS_BEHIND: CatalogueMessage(
        "TG3007",
        MessageLevel.WARNING,
        "A replica lacks events of the last minute or more. It answers from the events that it has stored.",
        "Wait while a replica reads its streams after a start. If the lag grows, the streams bring more events than a "
        "replica can store: publish only events that features read, or divide the streams among several FeatureComputes.",
    ),
    Reason.EVENTS_UNKNOWN: CatalogueMessage(
        "TG3008",
        MessageLevel.INFO,
        "No replica has reported yet how current its events are.",
        "Wait.",
    ),
    Reason.TABLES_CURRENT: CatalogueMessage(
        "TG3009",
        MessageLevel.INFO,
        "No replica has refused a newer table or failed to look for one.",
        NO_ACTION,
    ),
    Reason.TABLE_REFUSED: CatalogueMessage(
        "TG3010",
        MessageLevel.WARNING,
        "A table has changed, and the new one was refused: it cannot be read, lacks a column or too many keys, or Triton did not "
        "load it. Replicas answer from the table that they loaded before.",
        "Publish a complete table, or change the spec; the message has the numbers. A replica takes the next change of the file "
        "by itself.",
    ),
    Reason.TABLE_UNREACHABLE: CatalogueMessage(
        "TG3011",
        MessageLevel.WARNING,
        "A table with refresh could not be checked or fetched: its source does not answer or does not have it, it changed "
        "meanwhile, or the pod's disk is full. Replicas answer from the table that they loaded before.",
        "Publish the file, or correct the credentials or the network; the message has the details. Replicas ask again by "
        "themselves.",
    ),
    Reason.BACKFILL_COMPLETE: CatalogueMessage(
        "TG3012",
        MessageLevel.INFO,
        "Every shard of the backfill is complete, and its folder of results has _SUCCESS.",
        NO_ACTION,
    ),
    Reason.BACKFILLING: CatalogueMessage(
        "TG3013",
        MessageLevel.INFO,
        "The pods of spec.backfill compute the features of its rows, or are starting.",
        "Wait.",
    ),
    Reason.DEAD_LETTERS_FAILING: CatalogueMessage(
        "TG3014",
        MessageLevel.WARNING,
        "The events are current, but refused events cannot be written to the subject or topic of deadLetters. After 30 s they "
        "are only counted; all other events are stored.",
        "Create the stream of the subject, or the topic, grant the user the permission, or free space; the message has the "
        "broker's error. Refused events are then written again; the stream has the earlier ones as long as it retains them.",
    ),
}
