"""Of the place of an Inference in a ComputePool."""

from typing import Final

from tidegate.api.messages.message import NOTHING, Level, Message
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.PLACED: Message(
        "TG1201",
        Level.INFO,
        "Every replica has its slices.",
        NOTHING,
    ),
    Reason.POOL_NOT_FOUND: Message(
        "TG1202",
        Level.ERROR,
        "There is no ComputePool of the name in spec.placement.pool. Pods that run go on as they are; none is"
        " made, changed or scaled.",
        "Make the pool, or correct spec.placement.pool.",
    ),
    Reason.POOL_NOT_READY: Message(
        "TG1203",
        Level.ERROR,
        "The pool in spec.placement.pool takes no pods; the message says why.",
        "Look at the conditions of the ComputePool.",
    ),
    Reason.POOL_FULL: Message(
        "TG1204",
        Level.WARNING,
        "The pool has too few slices left for all replicas; those that have their slices run. What the floors"
        " keep for other tiers is not left.",
        "Lower spec.replicas or spec.placement.slices here or elsewhere, lower other tiers' floors, or add "
        "nodes to the pool; the message has the figures.",
    ),
    Reason.TIER_FULL: Message(
        "TG1205",
        Level.WARNING,
        "The tier has all slices that its ceiling in the pool allows; replicas that have their slices run.",
        "Lower spec.replicas or spec.placement.slices, or raise the ceiling in the ComputePool's spec.tiers.",
    ),
    Reason.TOO_MANY_SLICES: Message(
        "TG1206",
        Level.ERROR,
        "No node of the pool is so large that one replica could have its slices there.",
        "Lower spec.placement.slices to what the message names, and raise spec.replicas instead.",
    ),
    Reason.MODEL_NOT_SHAREABLE: Message(
        "TG1207",
        Level.ERROR,
        "The model's format brings processes of its own onto the GPU, and each would have the limits of a "
        "whole slice.",
        "Export the model as ONNX or TensorRT, or place it in a pool of CPU slices.",
    ),
}
