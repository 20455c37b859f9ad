"""Report the version of the command line."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.reports.report import Report


class VersionReport(Report):
    """The version of the command line."""

    version: str

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield the version alone."""
        yield self.version

    def object_names(self) -> Iterator[str]:
        """Yield nothing: a version is about no object."""
        return iter(())
