"""Which rows a shard has, and in which files: one row of numbers over all files, cut evenly. Pure."""

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
    """The files of a run, in the order of their rows. Written once: files that come later are not of this run."""

    model_config = ConfigDict(frozen=True)

    run: str
    source: str
    shards: int = Field(ge=1)
    files: tuple[InputFile, ...]

    @property
    def rows(self) -> int:
        """Rows of the whole table."""
        return sum(file.rows for file in self.files)

    def shard(self, index: int) -> "Span":
        """The rows of one shard; sizes differ by one at most."""
        rows = self.rows
        return Span(rows * index // self.shards, rows * (index + 1) // self.shards)

    def segments(self, span: "Span") -> Iterator["Segment"]:
        """The files that these rows lie in, with the rows of each, counted from the file's beginning."""
        first = 0
        for file in self.files:
            start, end = max(span.start, first), min(span.end, first + file.rows)
            if start < end:
                yield Segment(file, start - first, end - first)
            first += file.rows

    def place(self, row: int) -> tuple[str, int]:
        """The file of a row, and its number there from 0."""
        segment = next(self.segments(Span(row, row + 1)))
        return segment.file.path, segment.start


class Span(NamedTuple):
    """Rows of the table from `start` up to and without `end`."""

    start: int
    end: int

    def parts(self, rows: int) -> Iterator["Span"]:
        """Spans of at most `rows` each: the same ones, whoever asks."""
        for start in range(self.start, self.end, rows):
            yield Span(start, min(start + rows, self.end))


class Segment(NamedTuple):
    """Rows of one file."""

    file: InputFile
    start: int
    end: int
