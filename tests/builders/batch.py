"""`spec.batch` for a test: valid unless told otherwise."""

from __future__ import annotations

from typing import Any

from builders.overlay import overlaid


def batch_spec(**changes: Any) -> dict[str, Any]:
    """The block in the API's spelling; keywords lay over its parts: batch_spec(output={"keep": ["id"]})."""
    spec = {"input": {"uri": "s3://lake/users"}, "output": {"uri": "s3://lake/scores", "keep": ["user_id"]}}
    return overlaid(spec, changes)
