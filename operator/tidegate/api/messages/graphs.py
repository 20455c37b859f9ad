"""Messages about the compiled graph of an Inference."""

from typing import Final

from tidegate.api.messages.message import NO_ACTION, CatalogueMessage, MessageLevel
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.GRAPH_COMPILED: CatalogueMessage(
        "TG1701",
        MessageLevel.INFO,
        "Every replica that serves runs the graph that passes made of the version; status.graph has the passes and the "
        "measured speed-up.",
        NO_ACTION,
    ),
    Reason.GRAPH_UNCHANGED: CatalogueMessage(
        "TG1702",
        MessageLevel.INFO,
        "No graph pass applies to the version and makes it faster; it serves as published. status.graph has the reason "
        "for each pass.",
        "Nothing; or remove spec.compile.",
    ),
    Reason.COMPILING: CatalogueMessage(
        "TG1703",
        MessageLevel.INFO,
        "The version serves as published while its graph is compiled.",
        NO_ACTION,
    ),
    Reason.COMPILE_FAILED: CatalogueMessage(
        "TG1704",
        MessageLevel.WARNING,
        "The graph of the version cannot be compiled, or the server does not load the result. Requests are not affected: "
        "the version serves as published.",
        "Do what the message says, usually raise spec.compile.memory; or remove spec.compile. tidegate optimize does the same "
        "on your own machine.",
    ),
}
