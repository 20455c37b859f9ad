"""Messages about the placement of an Inference in a ComputePool."""

from typing import Final

from tidegate.api.messages.message import NO_ACTION, CatalogueMessage, MessageLevel
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.PLACED: CatalogueMessage(
        "TG1201",
        MessageLevel.INFO,
        "Every replica has its slices.",
        NO_ACTION,
    ),
    Reason.POOL_NOT_FOUND: CatalogueMessage(
        "TG1202",
        MessageLevel.ERROR,
        "The ComputePool in spec.placement.pool does not exist. Running pods keep running; no pod is "
        "created, changed or scaled.",
        "Create the pool, or correct spec.placement.pool.",
    ),
    Reason.POOL_NOT_READY: CatalogueMessage(
        "TG1203",
        MessageLevel.ERROR,
        "The pool in spec.placement.pool accepts no pods; the message has the reason.",
        "Look at the conditions of the ComputePool.",
    ),
    Reason.POOL_FULL: CatalogueMessage(
        "TG1204",
        MessageLevel.WARNING,
        "The pool has too few free slices for all replicas; those with slices run. Slices that floors "
        "reserve for other tiers are not free.",
        "Lower spec.replicas or spec.placement.slices here or elsewhere, lower other tiers' floors, or add "
        "nodes to the pool; the message has the figures.",
    ),
    Reason.TIER_FULL: CatalogueMessage(
        "TG1205",
        MessageLevel.WARNING,
        "The tier has all slices that its ceiling in the pool allows; replicas with slices run.",
        "Lower spec.replicas or spec.placement.slices, or raise the ceiling in the ComputePool's spec.tiers.",
    ),
    Reason.TOO_MANY_SLICES: CatalogueMessage(
        "TG1206",
        MessageLevel.ERROR,
        "No node of the pool has as many slices as one replica needs.",
        "Lower spec.placement.slices to what the message names, and raise spec.replicas instead.",
    ),
    Reason.MODEL_NOT_SHAREABLE: CatalogueMessage(
        "TG1207",
        MessageLevel.ERROR,
        "The model's format starts its own processes on the GPU, and each would have the limits of a "
        "whole slice.",
        "Export the model as ONNX or TensorRT, or place it in a pool of CPU slices.",
    ),
}
