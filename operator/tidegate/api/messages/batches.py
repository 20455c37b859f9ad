"""Messages about the batch of an offline Inference."""

from typing import Final

from tidegate.api.messages.message import NO_ACTION, CatalogueMessage, MessageLevel
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.BATCH_COMPLETE: CatalogueMessage(
        "TG1601",
        MessageLevel.INFO,
        "Every shard of the run is complete, and its folder of results has _SUCCESS.",
        NO_ACTION,
    ),
    Reason.SCORING: CatalogueMessage(
        "TG1602",
        MessageLevel.INFO,
        "The run's pods score the table, or are starting.",
        "Wait.",
    ),
    Reason.SHARDS_FAILED: CatalogueMessage(
        "TG1603",
        MessageLevel.ERROR,
        "A shard of the run has failed; the message has the error of its pod. The other shards are "
        "completed.",
        "Do what the message says; then change spec.batch.run to start a new run, or delete the Job to "
        "continue this one.",
    ),
    Reason.DEADLINE_EXCEEDED: CatalogueMessage(
        "TG1604",
        MessageLevel.ERROR,
        "The run was not complete at spec.batch.deadline, and its pods were deleted.",
        "Raise spec.batch.deadline and delete the Job to continue the run. More replicas make it shorter.",
    ),
    Reason.QUEUED: CatalogueMessage(
        "TG1605",
        MessageLevel.INFO,
        "The Job of a batch waits until Kueue admits it; the message has Kueue's message.",
        "Wait, or give the ClusterQueue more quota; if the message says that a queue does not exist or is "
        "stopped, create or start it.",
    ),
    Reason.EVICTED: CatalogueMessage(
        "TG1606",
        MessageLevel.WARNING,
        "Kueue has evicted the pods of a batch, for example for a Job of higher priority, and its Job is queued "
        "again. It will continue after the last file of each shard.",
        "Wait, or read Kueue's message; a deactivated Workload waits until it is activated.",
    ),
    Reason.KUEUE_MISSING: CatalogueMessage(
        "TG1607",
        MessageLevel.ERROR,
        "spec.batch.queueName needs Kueue, and the cluster does not have Kueue's kinds in a supported version. "
        "No Job is created.",
        "Install Kueue 0.15 or newer, or remove spec.batch.queueName.",
    ),
}
