"""Select the editable rows of a what-if: a bounded number, without losing changes in rows that are not shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.reports.plan import InferenceOutcomeReport, PlanReport

SHOWN: Final = 50
FIELDS: Final = ("demand", "minReplicas", "maxReplicas", "value")
"""The fields of each Inference, named `<field>:<namespace>/<name>` in the form."""


@dataclass(frozen=True, slots=True)
class EditableRows:
    """The rows of the form, and the fields that stay hidden."""

    rows: tuple[InferenceOutcomeReport, ...]
    """Rows changed in the question first, then those that would move, then those with the most unserved demand."""
    total: int
    """Rows that match the filter."""
    of_all: int
    filter: str
    hidden_fields: tuple[tuple[str, str], ...]
    """Changed fields of rows that are not shown, which stay part of the question."""
    changed: int
    """The number of Inferences that the question changes."""


def select_editable_rows(report: PlanReport, fields: Mapping[str, str]) -> EditableRows:
    """Return the rows that match the field `filter` of the form."""
    text = fields.get("filter", "").strip().lower()
    changed_fields = {name: value for name, value in fields.items() if ":" in name and value.strip()}
    changed = {name.partition(":")[2] for name in changed_fields}
    matching = [row for row in report.asked if text in f"{row.inference} {row.tier}".lower()]
    rows = _most_relevant(matching, changed)
    shown = {row.inference for row in rows}
    hidden = tuple(
        (name, value) for name, value in changed_fields.items() if name.partition(":")[2] not in shown
    )
    return EditableRows(rows, len(matching), len(report.asked), text, hidden, len(changed))


def _most_relevant(
    rows: Sequence[InferenceOutcomeReport], changed: set[str]
) -> tuple[InferenceOutcomeReport, ...]:
    def sort_key(row: InferenceOutcomeReport) -> tuple[bool, bool, float, str]:
        unserved = max((row.demand or 0.0) - row.serves, 0.0)
        return row.inference not in changed, row.before == row.after, -unserved, row.inference

    return tuple(sorted(rows, key=sort_key)[:SHOWN])
