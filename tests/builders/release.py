"""Builds a ModelAccess with a release for a test, and puts it somewhere on the way."""

from __future__ import annotations

from typing import Any

from builders.model_access import a_model_access, a_route
from builders.overlay import overlaid
from tidegate.api.model_access import ModelAccess
from tidegate.api.release import RELEASE_ANNOTATION, ReleaseStatus
from tidegate.routing.release import release_key

ERRORS = {"metric": "ErrorRate", "max": "0.001"}
LATENCY = {"metric": "LatencyP99", "maxRatioToStable": "1.10"}
BEGAN = "2026-01-01T00:00:00Z"


def a_release(
    *,
    checks: list[dict[str, Any]] | None = None,
    route: dict[str, Any] | None = None,
    says: str | None = None,
    **fields: Any,
) -> ModelAccess:
    """An access whose route `default` has v3 with all weight, and a release of v4; `says` is the annotation."""
    targets = [{"inference": "v3", "weight": 100}, {"inference": "v4", "weight": 0}]
    named = overlaid(a_route(targets=targets), route or {})
    release = {"route": "default", "target": "v4", "checks": checks or [ERRORS], **fields}
    metadata = {"annotations": {RELEASE_ANNOTATION: says}} if says is not None else {}
    return a_model_access(routes=[named], release=release, metadata=metadata)


def released(access: ModelAccess, **fields: Any) -> ModelAccess:
    """`access` with that status of its release."""
    status = ReleaseStatus.model_validate(
        {
            "key": release_key(access),
            "phase": "Progressing",
            "since": BEGAN,
            "windowBegan": BEGAN,
            "checked": BEGAN,
            **fields,
        }
    )
    return access.model_copy(update={"status": access.status.model_copy(update={"release": status})})
