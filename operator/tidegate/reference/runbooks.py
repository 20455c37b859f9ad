"""docs/runbooks/README.md: every alert, whom it is for, and its page."""

from __future__ import annotations

import re
from typing import Final

from tidegate.reference.markdown import notice, table
from tidegate.telemetry.alerts import ALERTS, GROUPS, Alert

_HEAD: Final = """# Runbooks

One page for each alert: what it means, whom it hurts, how to find the cause, what to do.
A `page` is for now: users feel it or will soon. A `ticket` is for the next working days.
How to have Prometheus raise them: [alert on models and on the platform](../how-to/alert-on-models-and-platform.md).
"""
_HEADINGS: Final = {
    "tidegate-alerts-objectives": "What clients feel",
    "tidegate-alerts-objects": "Objects",
    "tidegate-alerts-operator": "The operator",
    "tidegate-alerts-gateways": "Gateways",
    "tidegate-alerts-allocation": "Compute",
}


def runbooks_page() -> str:
    """A table for each group; an alert of several windows has one row."""
    text = notice("operator/tidegate/telemetry/alerts.py") + _HEAD
    for group, alerts in GROUPS.items():
        rows = (_row(name) for name in dict.fromkeys(alert.name for alert in alerts))
        text += f"\n## {_HEADINGS[group]}\n\n" + table(("alert", "severity", "what"), rows)
    return text


def _row(name: str) -> tuple[str, str, str]:
    alerts = [alert for alert in ALERTS if alert.name == name]
    severities = dict.fromkeys(alert.severity.value for alert in alerts)
    return f"[{name}]({alerts[0].slug}.md)", ", ".join(severities), _what(alerts[0])


def _what(alert: Alert) -> str:
    """Its summary, with the names of labels in place of what they hold."""
    return re.sub(r"\{\{.*?\$labels\.(\w+).*?\}\}", r"*\1*", alert.summary)
