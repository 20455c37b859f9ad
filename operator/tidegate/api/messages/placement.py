"""Messages about the placement of an Inference in a ComputePool."""

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
        "The ComputePool in spec.placement.pool does not exist. Running pods keep running; no pod is "
        "created, changed or scaled.",
        "Create the pool, or correct spec.placement.pool.",
    ),
    Reason.POOL_NOT_READY: Message(
        "TG1203",
        Level.ERROR,
        "The pool in spec.placement.pool accepts no pods; the message has the reason.",
        "Look at the conditions of the ComputePool.",
    ),
    Reason.POOL_FULL: Message(
        "TG1204",
        Level.WARNING,
        "The pool has too few free slices for all replicas; those with slices run. Slices that floors "
        "reserve for other tiers are not free.",
        "Lower spec.replicas or spec.placement.slices here or elsewhere, lower other tiers' floors, or add "
        "nodes to the pool; the message has the figures.",
    ),
    Reason.TIER_FULL: Message(
        "TG1205",
        Level.WARNING,
        "The tier has all slices that its ceiling in the pool allows; replicas with slices run.",
        "Lower spec.replicas or spec.placement.slices, or raise the ceiling in the ComputePool's spec.tiers.",
    ),
    Reason.TOO_MANY_SLICES: Message(
        "TG1206",
        Level.ERROR,
        "No node of the pool has as many slices as one replica needs.",
        "Lower spec.placement.slices to what the message names, and raise spec.replicas instead.",
    ),
    Reason.MODEL_NOT_SHAREABLE: Message(
        "TG1207",
        Level.ERROR,
        "The model's format starts its own processes on the GPU, and each would have the limits of a "
        "whole slice.",
        "Export the model as ONNX or TensorRT, or place it in a pool of CPU slices.",
    ),
}
