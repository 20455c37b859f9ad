"""`spec.batch` for a test: valid unless told otherwise."""

from __future__ import annotations

from typing import Any

from builders.overlay import overlaid
from tidegate.planning.plan import ReconcilePlan


def batch_spec(**changes: Any) -> dict[str, Any]:
    """The block in the API's spelling; keywords lay over its parts: batch_spec(output={"keep": ["id"]})."""
    spec = {"input": {"uri": "s3://lake/users"}, "output": {"uri": "s3://lake/scores", "keep": ["user_id"]}}
    return overlaid(spec, changes)


def find_job(plan: ReconcilePlan) -> Any:
    """Return the Job that the plan applies, if any."""
    return next((manifest for manifest in plan.apply if manifest["kind"] == "Job"), None)
