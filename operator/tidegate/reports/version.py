"""Which version this is."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.reports.report import Report


class VersionReport(Report):
    """Of the command line."""

    version: str

    def lines(self, *, wide: bool) -> Iterator[str]:
        """The version alone."""
        yield self.version

    def names(self) -> Iterator[str]:
        """It is about no object."""
        return iter(())
