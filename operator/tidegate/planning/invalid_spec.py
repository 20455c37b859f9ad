"""Plan the status of an object whose spec does not parse: nothing else changes, and what runs keeps running."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tidegate.api.conditions import merge_conditions
from tidegate.api.reasons import Reason
from tidegate.planning.inference.serving_status import Verdict, kstatus_conditions
from tidegate.planning.plan import Event, EventType, ReconcilePlan


def plan_invalid_spec(body: Mapping[str, Any], message: str, now: datetime) -> ReconcilePlan:
    """Return a plan with Ready=False and Stalled=True.

    `message` names the field; the rest of the status stays.
    """
    generation = body["metadata"].get("generation", 0)
    previous = body.get("status") or {}
    conditions = previous.get("conditions") or ()
    verdict = Verdict(False, Reason.INVALID_SPEC, message, stalled=True)
    status = {
        **previous,
        "observedGeneration": generation,
        "conditions": merge_conditions(conditions, kstatus_conditions(verdict, generation), now),
    }
    reported = any(item.get("type") == "Ready" and item.get("message") == message for item in conditions)
    events = () if reported else (Event(EventType.WARNING, Reason.INVALID_SPEC.value, message),)
    return ReconcilePlan(status=status, events=events)
