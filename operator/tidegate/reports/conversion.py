"""Report the objects that replace those of another system, and what they lack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tidegate.reports.report import Report, format_name


class ConversionReport(Report):
    """Objects to apply, with notes, and the objects that cannot be converted."""

    objects: tuple[Mapping[str, Any], ...]
    notes: Mapping[str, tuple[str, ...]]
    """What is left out, changed, or to be checked, by the namespace and name of the converted object."""
    problems: tuple[str, ...]
    """Why objects are not converted: object, field, and what to do."""
    skipped: tuple[str, ...]
    """Documents of other kinds."""

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield the objects as YAML documents; notes and skipped documents are comments."""
        del wide
        comments = (*self.skipped, *(f"{key}: {note}" for key, notes in self.notes.items() for note in notes))
        # Notes quote values of the manifests: a line break in them must not end the comment.
        yield from (f"# {' '.join(comment.split())}" for comment in comments)
        for body in self.objects:
            yield "---"
            yield from yaml.safe_dump(dict(body), sort_keys=False).splitlines()

    def object_names(self) -> Iterator[str]:
        """Yield the objects to apply."""
        return (format_name(body["kind"], body["metadata"]["name"]) for body in self.objects)
