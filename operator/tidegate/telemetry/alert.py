"""One alerting rule for Prometheus."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

RUNBOOK_BASE_URL: Final = "https://runbooks.invalid"
"""Placeholder for the address of the runbooks; the chart replaces it by metrics.rules.runbookBase."""
ALERT_PREFIX: Final = "Tidegate"
LEADER_CHANGE: Final = "5m"
"""Only the leader exports some series: their absence during a change of leader must not resolve an alert."""


class Severity(StrEnum):
    """How soon a person must act."""

    PAGE = "page"
    """Users are affected, or will be soon: act now."""
    TICKET = "ticket"
    """Act within the next working days."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule.

    `hold` is how long the expression must be true before the alert fires, `keep` how long the alert keeps firing after that.
    `window` distinguishes rules with the same name.
    """

    name: str
    expression: str
    hold: str
    severity: Severity
    summary: str
    description: str
    window: str = ""
    keep_firing_for: str = ""

    @property
    def runbook_name(self) -> str:
        """Return the name of its runbook: no-leader for TidegateNoLeader."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", self.name.removeprefix(ALERT_PREFIX)).lower()

    def to_rule(self) -> dict[str, object]:
        """Return the rule in the form of a Prometheus rules file."""
        labels = {"severity": self.severity.value, **({"window": self.window} if self.window else {})}
        return {
            "alert": self.name,
            "expr": self.expression,
            "for": self.hold,
            **({"keep_firing_for": self.keep_firing_for} if self.keep_firing_for else {}),
            "labels": labels,
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": f"{RUNBOOK_BASE_URL}/{self.runbook_name}.md",
            },
        }
