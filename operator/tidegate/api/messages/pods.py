"""Messages about the pods of Inferences and FeatureComputes."""

from typing import Final

from tidegate.api.messages.message import NO_ACTION, CatalogueMessage, MessageLevel
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.ALL_REPLICAS_READY: CatalogueMessage(
        "TG1101",
        MessageLevel.INFO,
        "Every replica serves the target version.",
        NO_ACTION,
    ),
    Reason.WAITING_FOR_REPLICAS: CatalogueMessage(
        "TG1102",
        MessageLevel.WARNING,
        "Fewer replicas serve than the spec asks.",
        "Wait; if it stays, describe the pods with the label that the message names.",
    ),
    Reason.SCALED_TO_ZERO: CatalogueMessage(
        "TG1103",
        MessageLevel.INFO,
        "spec.replicas is 0, so nothing serves.",
        "Raise spec.replicas to serve again.",
    ),
    Reason.ROLLING_OUT: CatalogueMessage(
        "TG1104",
        MessageLevel.INFO,
        "A rollout replaces the pods because their template changed.",
        "Wait.",
    ),
    Reason.DRAINING: CatalogueMessage(
        "TG1105",
        MessageLevel.INFO,
        "A terminating pod finishes its requests before its replacement starts.",
        "Wait.",
    ),
    Reason.ROLLED_BACK: CatalogueMessage(
        "TG1106",
        MessageLevel.WARNING,
        "New pods did not become ready within spec.rollout.progressDeadline, so the pods were rolled back to the "
        "last template that was ready, and serve.",
        "Correct what the message names. Any change of the spec except spec.replicas starts a new attempt; reverting "
        "the spec ends it.",
    ),
    Reason.POD_FAILING: CatalogueMessage(
        "TG1107",
        MessageLevel.ERROR,
        "A container keeps exiting or cannot start, or the process that runs a version exited while it served; "
        "the version is loaded again, and the pod gets no requests meanwhile (exits of models of format Python are "
        "not detected).",
        "Read the message; then read the logs of that container, or raise spec.resources if it was killed for "
        "memory.",
    ),
    Reason.IMAGE_PULL: CatalogueMessage(
        "TG1108",
        MessageLevel.ERROR,
        "A node cannot get a container image.",
        "Read the registry's error in the message; the images are named in the chart's values, under images.",
    ),
    Reason.NO_CAPACITY: CatalogueMessage(
        "TG1109",
        MessageLevel.ERROR,
        "No node has enough CPU, memory or slices free for a pod; the message shows what the pod requests and where "
        "the most is free.",
        "Lower spec.resources or spec.replicas, or add nodes; in a rollout, spec.rollout.mode: InPlace needs "
        "no capacity in addition to the pods that serve.",
    ),
    Reason.UNSCHEDULABLE: CatalogueMessage(
        "TG1110",
        MessageLevel.ERROR,
        "No node accepts a pod, for another reason than its size: a taint, a cordon, an affinity, a volume "
        "claim.",
        "Read the scheduler's message; create the claim, uncordon a node, or correct model.uri.",
    ),
}
