"""Of the batch of an offline Inference."""

from typing import Final

from tidegate.api.messages.message import NOTHING, Level, Message
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.BATCH_COMPLETE: Message(
        "TG1601",
        Level.INFO,
        "Every shard of the run is done, and its folder of results has _SUCCESS.",
        NOTHING,
    ),
    Reason.SCORING: Message(
        "TG1602",
        Level.INFO,
        "The run's pods score the table, or are about to.",
        "Wait.",
    ),
    Reason.SHARDS_FAILED: Message(
        "TG1603",
        Level.ERROR,
        "A shard of the run cannot be done: its pod said why, and the message repeats it. The others are "
        "finished.",
        "Do what the message says; then change spec.batch.run to score the table anew, or delete the Job to "
        "go on with what is there.",
    ),
    Reason.DEADLINE_EXCEEDED: Message(
        "TG1604",
        Level.ERROR,
        "The run was not complete when spec.batch.deadline was over, and its pods were ended.",
        "Raise spec.batch.deadline and delete the Job: the run goes on with what is there. More replicas make"
        " it shorter.",
    ),
    Reason.QUEUED: Message(
        "TG1605",
        Level.INFO,
        "The Job of a batch waits until Kueue admits it; the message has Kueue's words.",
        "Wait, or give the ClusterQueue more quota; where the message says that a queue does not exist or is "
        "stopped, make or start it.",
    ),
    Reason.EVICTED: Message(
        "TG1606",
        Level.WARNING,
        "Kueue has ended the pods of a batch, for example for a Job of higher priority, and its Job waits "
        "again. It goes on after the last file of each shard.",
        "Wait, or read Kueue's words in the message; a Workload that was deactivated waits until it is "
        "activated.",
    ),
    Reason.KUEUE_MISSING: Message(
        "TG1607",
        Level.ERROR,
        "spec.batch.queueName asks for Kueue, and the cluster does not have Kueue's kinds in a version that "
        "is known. No Job is made.",
        "Install Kueue 0.15 or newer, or remove spec.batch.queueName.",
    ),
}
