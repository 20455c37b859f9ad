"""The events of streams on a pod's disk: one process writes them, and features are computed from them."""

from typing import Final

EVENTS_FOLDER: Final = "events"
"""Name of the store's folder, beside the model repository."""
