"""The rows of a what-if that are shown for change: not all of a thousand, and none that somebody has changed is lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.reports.plan import AskedReport, PlanReport

SHOWN: Final = 50
FIELDS: Final = ("demand", "minReplicas", "maxReplicas", "value")
"""Of each Inference, as `<field>:<namespace>/<name>`."""


@dataclass(frozen=True, slots=True)
class Editable:
    """One page's worth."""

    rows: tuple[AskedReport, ...]
    """Those changed in the question first, then those that would move, then those with most demand that is not served."""
    total: int
    """How many fit the filter."""
    of_all: int
    filter: str
    kept: tuple[tuple[str, str], ...]
    """Fields that were changed and whose rows are not shown: they stay part of the question."""
    changed: int
    """Inferences that the question changes."""


def editable(report: PlanReport, fields: Mapping[str, str]) -> Editable:
    """The rows that fit the form's own field `filter`."""
    text = fields.get("filter", "").strip().lower()
    given = {name: value for name, value in fields.items() if ":" in name and value.strip()}
    changed = {name.partition(":")[2] for name in given}
    found = [each for each in report.asked if text in f"{each.inference} {each.tier}".lower()]
    rows = _first(found, changed)
    shown = {each.inference for each in rows}
    kept = tuple((name, value) for name, value in given.items() if name.partition(":")[2] not in shown)
    return Editable(rows, len(found), len(report.asked), text, kept, len(changed))


def _first(found: Sequence[AskedReport], changed: set[str]) -> tuple[AskedReport, ...]:
    def place(each: AskedReport) -> tuple[bool, bool, float, str]:
        lacking = max((each.demand or 0.0) - each.serves, 0.0)
        return each.inference not in changed, each.before == each.after, -lacking, each.inference

    return tuple(sorted(found, key=place)[:SHOWN])
