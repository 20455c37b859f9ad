"""Lays a test's own fields over a builder's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def overlaid(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` merged in: mappings merge, everything else replaces, None removes."""
    result = dict(base)
    for name, value in changes.items():
        before = result.get(name)
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping) and isinstance(before, Mapping):
            result[name] = overlaid(before, value)
        else:
            result[name] = value
    return result
