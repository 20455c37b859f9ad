"""Write the folder of a run: plan, files of results and refused rows, one report per shard, and at last `_SUCCESS`.

A file of results is written whole, and after the refused rows of its part: a part whose file exists is done.
"""

import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # publishes no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pydantic import BaseModel, ConfigDict, ValidationError

from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.batch.errors import TableError
from tidegate_dataplane.batch.parquet import RangeFile, Wait
from tidegate_dataplane.batch.plan import RowSpan, TablePlan
from tidegate_dataplane.batch.store import TableSink, read_file
from tidegate_dataplane.contract import FailureReason

PLAN_NAME: Final = "_plan.json"
SUCCESS_NAME: Final = "_SUCCESS"
_METADATA_KEY: Final = b"tidegate"


class PartMetadata(BaseModel):
    """The Parquet metadata of a file of results."""

    model_config = ConfigDict(frozen=True)

    run: str
    first: int
    rows: int
    refused: int = 0


class ShardReport(BaseModel):
    """The report of a finished shard."""

    model_config = ConfigDict(frozen=True)

    shard: int
    rows: int
    refused: int
    files: int


class ResultsFolder:
    """The folder with the results of one run."""

    def __init__(self, sink: TableSink, run: str, wait: Wait) -> None:
        self._sink, self._run, self._wait = sink, run, wait

    def read_plan(self) -> TablePlan | None:
        """Return the plan of the run, None before one was written."""
        text: bytes | None = self._wait(read_file(self._sink, self._run_path(PLAN_NAME)))
        try:
            return None if text is None else TablePlan.model_validate_json(text)
        except ValidationError as error:
            raise TableError(
                f"{self._run_path(PLAN_NAME)} cannot be read: delete the folder of the run"
            ) from error

    def create_plan(self, plan: TablePlan) -> TablePlan:
        """Write the plan unless another pod has; return the one in the folder."""
        self._wait(self._sink.create(self._run_path(PLAN_NAME), plan.model_dump_json(indent=1).encode()))
        current = self.read_plan()
        if current is None:
            raise TableError(
                f"{self._run_path(PLAN_NAME)} was written and is missing: another program may have deleted it"
            )
        return current

    def find_written_parts(self, shard: int, parts: Sequence[RowSpan]) -> list[PartMetadata]:
        """Return the metadata of a shard's files that are written and valid, from the first one up to the first gap."""
        written: list[PartMetadata] = []
        for number, span in enumerate(parts):
            # One by one, since a run may have more files than a listing returns.
            metadata = self._read_metadata(_part_name(shard, number))
            if metadata is None or (metadata.run, metadata.first, metadata.rows + metadata.refused) != (
                self._run,
                span.start,
                span.end - span.start,
            ):
                break
            written.append(metadata)
        return written

    def write_part(self, shard: int, number: int, first: int, scored: Any, refused: Any) -> None:
        """Write the refused rows of one part, then its results: the file of results marks the part as done.

        The metadata of `scored` are written beside our own.
        """
        refused_name = f"_refused/{_part_name(shard, number)}"
        # A pod that ended between the two files may have refused rows that have a result now.
        if refused.num_rows or self._file_exists(refused_name):
            self._write_table(refused_name, refused, {})
        metadata = PartMetadata(run=self._run, first=first, rows=scored.num_rows, refused=refused.num_rows)
        self._write_table(
            _part_name(shard, number),
            scored,
            {**(scored.schema.metadata or {}), _METADATA_KEY: metadata.model_dump_json().encode()},
        )

    def finish_shard(self, report: ShardReport, shards: int) -> bool:
        """Write the report of a shard, and `_SUCCESS` if every shard has one; return whether the run is complete."""
        name = f"_shards/{report.shard:05}.json"
        self._wait(self._sink.put(self._run_path(name), report.model_dump_json().encode()))
        paths = self._wait(self._sink.list(self._run_path("_shards")))
        names = [path for path in paths if re.fullmatch(r"\d{5}\.json", path)]
        if len(names) < shards:
            return False
        texts = [self._wait(read_file(self._sink, self._run_path(f"_shards/{path}"))) for path in names]
        reports = [ShardReport.model_validate_json(text) for text in texts if text is not None]
        total = {
            "run": self._run,
            "shards": shards,
            "rows": sum(report.rows for report in reports),
            "refused": sum(report.refused for report in reports),
            "files": sum(report.files for report in reports),
        }
        self._wait(self._sink.put(self._run_path(SUCCESS_NAME), _to_json(total)))
        return True

    def _read_metadata(self, name: str) -> PartMetadata | None:
        try:
            opened = RangeFile(self._sink, self._run_path(name), self._wait)
        except ArtefactError as error:
            if error.refusal.reason is FailureReason.ARTEFACT_NOT_FOUND:
                return None
            raise
        try:
            with pa.PythonFile(opened) as file:
                return PartMetadata.model_validate_json(
                    (pq.read_metadata(file).metadata or {})[_METADATA_KEY]
                )
        except (pa.ArrowException, ValidationError, KeyError):
            return None  # of another program, or damaged: it is written again

    def _file_exists(self, name: str) -> bool:
        try:
            self._wait(self._sink.size(self._run_path(name)))
        except ArtefactError as error:
            if error.refusal.reason is FailureReason.ARTEFACT_NOT_FOUND:
                return False
            raise
        return True

    def _write_table(self, name: str, table: Any, metadata: Mapping[bytes, bytes]) -> None:
        content = io.BytesIO()
        pq.write_table(table.replace_schema_metadata(dict(metadata)), content)
        self._wait(self._sink.put(self._run_path(name), content.getvalue()))

    def _run_path(self, name: str) -> str:
        return f"{self._run}/{name}"


def _part_name(shard: int, number: int) -> str:
    return f"part-{shard:05}-{number:05}.parquet"


def _to_json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, indent=1).encode()
