"""Conditions of objects, and those of planned statuses."""

from __future__ import annotations

from typing import Any

from tidegate.planning.plan import ReconcilePlan


def a_condition(kind: str, status: str, reason: str, message: str = "said") -> dict[str, str]:
    at = "2026-01-01T11:00:00Z"
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


def find_condition(plan: ReconcilePlan, kind: str = "Ready") -> dict[str, Any]:
    """Return the condition of this type in the planned status; empty without one."""
    conditions: Any = plan.status["conditions"]
    return next((condition for condition in conditions if condition["type"] == kind), {})
