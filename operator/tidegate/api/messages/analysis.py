"""Of objects that are in order by themselves, and not beside others."""

from typing import Final

from tidegate.api.messages.message import Level, Message
from tidegate.api.messages.problem import Problem

MESSAGES: Final = {
    Problem.NOT_ANSWERED: Message(
        "TG5001",
        Level.WARNING,
        "The status of an object is about an older spec than it has: the controllers have not answered the newest.",
        "Wait a few seconds; if it stays, run tidegate doctor to see whether the controllers run and have a leader.",
    ),
    Problem.MANIFEST_REFUSED: Message(
        "TG5002",
        Level.ERROR,
        "The API server would refuse a manifest.",
        "Correct the field that the message names; kubectl explain says what it takes.",
    ),
    Problem.CAPACITY_UNKNOWN: Message(
        "TG5003",
        Level.WARNING,
        "An Inference has spec.scaling in a pool, and nobody has said what a replica serves, so the allocator moves "
        "nothing for it.",
        "Run tidegate calibrate and apply what it prints, or set spec.capacity by hand.",
    ),
    Problem.SCALED_TWICE: Message(
        "TG5004",
        Level.ERROR,
        "A HorizontalPodAutoscaler scales an Inference that the allocator decides about: its number counts for nothing.",
        "Delete the autoscaler, or take spec.scaling out and let the autoscaler decide.",
    ),
    Problem.NOBODY_ASKS: Message(
        "TG5005",
        Level.INFO,
        "No ModelAccess leads to a real-time Inference, so that callers reach it by its own name alone and nothing can be moved "
        "away from it.",
        "Make a ModelAccess with a route to it, or delete it if nobody needs it.",
    ),
    Problem.SINGLE_REPLICA: Message(
        "TG5006",
        Level.WARNING,
        "A ModelAccess leads to a real-time Inference with one replica: with its node it is gone until another has loaded the "
        "model.",
        "Raise spec.replicas or spec.scaling.minReplicas to 2, or give the route a fallback.",
    ),
    Problem.TARGET_NOT_REALTIME: Message(
        "TG5007",
        Level.ERROR,
        "A ModelAccess leads to an Inference that is not of the tier realtime: its pods take their work from a stream or a table, "
        "and yield their compute to real-time work.",
        "Lead the route to a real-time Inference of the same model.",
    ),
}
