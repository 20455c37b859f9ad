"""What is said about an object whose spec does not parse: nothing of it is acted on, what runs goes on."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tidegate.api.conditions import merge
from tidegate.api.reasons import Reason
from tidegate.planning.plan import Event, EventType, Plan
from tidegate.planning.serving_status import Verdict, standing


def plan_refused(body: Mapping[str, Any], message: str, now: datetime) -> Plan:
    """Ready=False and Stalled=True with `message`, which names the field; the rest of the status stays."""
    generation = body["metadata"].get("generation", 0)
    before = body.get("status") or {}
    conditions = before.get("conditions") or ()
    verdict = Verdict(False, Reason.INVALID_SPEC, message, stalled=True)
    status = {
        **before,
        "observedGeneration": generation,
        "conditions": merge(conditions, standing(verdict, generation), now),
    }
    known = any(item.get("type") == "Ready" and item.get("message") == message for item in conditions)
    events = () if known else (Event(EventType.WARNING, Reason.INVALID_SPEC.value, message),)
    return Plan(status=status, events=events)
