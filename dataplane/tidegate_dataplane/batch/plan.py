"""Divide the rows of a table evenly into shards, and find the files of each shard. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field


class InputFile(BaseModel):
    """One file of the table as it was when the run began; `path` is relative to the table's URI."""

    model_config = ConfigDict(frozen=True)

    path: str
    size: int = Field(ge=0)
    rows: int = Field(ge=0)


class TablePlan(BaseModel):
    """The files of a run, in the order of their rows. It is written once, so later files are not part of the run.

    `sources` has the files of each table and stream that features are computed from, by name.
    """

    model_config = ConfigDict(frozen=True)

    run: str
    source: str
    shards: int = Field(ge=1)
    files: tuple[InputFile, ...]
    sources: dict[str, tuple[InputFile, ...]] = Field(default_factory=dict[str, tuple[InputFile, ...]])

    @property
    def row_count(self) -> int:
        """Return the number of rows of the table."""
        return sum(file.rows for file in self.files)

    def shard_span(self, index: int) -> "RowSpan":
        """Return the rows of one shard; the sizes of shards differ by one at most."""
        rows = self.row_count
        return RowSpan(rows * index // self.shards, rows * (index + 1) // self.shards)

    def split_by_file(self, span: "RowSpan") -> Iterator["FileSegment"]:
        """Yield the files that contain these rows, with the rows of each, counted from the beginning of the file."""
        first = 0
        for file in self.files:
            start, end = max(span.start, first), min(span.end, first + file.rows)
            if start < end:
                yield FileSegment(file, start - first, end - first)
            first += file.rows

    def locate_row(self, row: int) -> tuple[str, int]:
        """Return the path of a row's file, and the row's number in it, from 0."""
        segment = next(self.split_by_file(RowSpan(row, row + 1)))
        return segment.file.path, segment.start


class RowSpan(NamedTuple):
    """Rows of the table from `start` up to and without `end`."""

    start: int
    end: int

    def split_parts(self, rows: int) -> Iterator["RowSpan"]:
        """Yield spans of at most `rows` each; every pod gets the same ones."""
        for start in range(self.start, self.end, rows):
            yield RowSpan(start, min(start + rows, self.end))


class FileSegment(NamedTuple):
    """Rows of one file."""

    file: InputFile
    start: int
    end: int
