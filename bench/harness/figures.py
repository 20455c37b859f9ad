"""Round the figures of a bench for printing, after they were judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def round_figures(document: Any, digits: int) -> Any:
    """Return a JSON document with every float of it, at any depth, rounded to `digits` decimals."""
    if isinstance(document, Mapping):
        return {name: round_figures(value, digits) for name, value in document.items()}
    if isinstance(document, list | tuple):
        return [round_figures(value, digits) for value in document]
    return round(document, digits) if isinstance(document, float) else document
