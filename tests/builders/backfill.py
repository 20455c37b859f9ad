"""`spec.backfill` for a test: valid unless told otherwise."""

from __future__ import annotations

from typing import Any

from builders.overlay import overlaid


def backfill_spec(**changes: Any) -> dict[str, Any]:
    """The block in the API's spelling, for `live_features_spec`; keywords lay over its parts."""
    spec = {
        "input": {"uri": "s3://lake/labels"},
        "output": {"uri": "s3://lake/training", "keep": ["user_id", "clicked"]},
        "eventTime": "shown_at",
        "sources": [{"name": "clicks", "uri": "pvc://archive/clicks"}],
    }
    return overlaid(spec, changes)
