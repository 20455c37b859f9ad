"""docs/runbooks/README.md: every alert with its severity and its page."""

from __future__ import annotations

import re
from typing import Final

from tidegate.reference.markdown import render_notice, render_table
from tidegate.telemetry.alert import Alert
from tidegate.telemetry.alerts import ALERTS, GROUPS

_HEAD: Final = """# Runbooks

One page for each alert: its meaning, its impact, how to find the cause, and what to do.
A `page` needs action now: users are affected or will be soon. A `ticket` can wait for the next working days.
How to install the alerts in Prometheus: [alert on models and on the platform](../how-to/alert-on-models-and-platform.md).
"""
_HEADINGS: Final = {
    "tidegate-alerts-objectives": "Client experience",
    "tidegate-alerts-objects": "Objects",
    "tidegate-alerts-operator": "The operator",
    "tidegate-alerts-gateways": "Gateways",
    "tidegate-alerts-allocation": "Compute",
}


def render_runbooks_page() -> str:
    """Render docs/runbooks/README.md: a table per group, with one row for an alert of several windows."""
    text = render_notice("operator/tidegate/telemetry/alerts.py") + _HEAD
    for group, alerts in GROUPS.items():
        rows = (_alert_row(name) for name in dict.fromkeys(alert.name for alert in alerts))
        text += f"\n## {_HEADINGS[group]}\n\n" + render_table(("alert", "severity", "what"), rows)
    return text


def _alert_row(name: str) -> tuple[str, str, str]:
    alerts = [alert for alert in ALERTS if alert.name == name]
    severities = dict.fromkeys(alert.severity.value for alert in alerts)
    return f"[{name}]({alerts[0].runbook_name}.md)", ", ".join(severities), _describe_alert(alerts[0])


def _describe_alert(alert: Alert) -> str:
    """Return the summary of an alert, with names of labels instead of their values."""
    return re.sub(r"\{\{.*?\$labels\.(\w+).*?\}\}", r"*\1*", alert.summary)
