"""Messages about objects that are valid alone, but not together with others."""

from typing import Final

from tidegate.api.messages.message import CatalogueMessage, MessageLevel
from tidegate.api.messages.problem import ProblemReason

MESSAGES: Final = {
    ProblemReason.NOT_ANSWERED: CatalogueMessage(
        "TG5001",
        MessageLevel.WARNING,
        "The status of an object is about an older spec: the controllers have not observed the newest one.",
        "Wait a few seconds; if it stays, run tidegate doctor to see whether the controllers run and have a leader.",
    ),
    ProblemReason.MANIFEST_REFUSED: CatalogueMessage(
        "TG5002",
        MessageLevel.ERROR,
        "The API server would reject a manifest.",
        "Correct the field that the message names; kubectl explain shows what it accepts.",
    ),
    ProblemReason.CAPACITY_UNKNOWN: CatalogueMessage(
        "TG5003",
        MessageLevel.WARNING,
        "An Inference has spec.scaling in a pool, but no spec.capacity, so the allocator moves "
        "nothing for it.",
        "Run tidegate calibrate and apply what it prints, or set spec.capacity by hand.",
    ),
    ProblemReason.SCALED_TWICE: CatalogueMessage(
        "TG5004",
        MessageLevel.ERROR,
        "A HorizontalPodAutoscaler scales an Inference that the allocator scales: its number has no effect.",
        "Delete the autoscaler, or remove spec.scaling and let the autoscaler decide.",
    ),
    ProblemReason.NOBODY_ASKS: CatalogueMessage(
        "TG5005",
        MessageLevel.INFO,
        "No ModelAccess has a real-time Inference as a target, so callers reach it only by its own name, and its traffic "
        "cannot be moved.",
        "Create a ModelAccess with a route to it, or delete the Inference if it is unused.",
    ),
    ProblemReason.SINGLE_REPLICA: CatalogueMessage(
        "TG5006",
        MessageLevel.WARNING,
        "A target of a ModelAccess is a real-time Inference with one replica: if its node fails, it does not serve until "
        "another replica has loaded the model.",
        "Raise spec.replicas or spec.scaling.minReplicas to 2, or give the route a fallback.",
    ),
    ProblemReason.TARGET_NOT_REALTIME: CatalogueMessage(
        "TG5007",
        MessageLevel.ERROR,
        "A target of a ModelAccess is not of tier realtime: its pods work on a stream or a table, "
        "and yield their compute to real-time Inferences.",
        "Route to a real-time Inference of the same model.",
    ),
}
