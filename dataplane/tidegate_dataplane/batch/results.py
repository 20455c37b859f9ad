"""What a run leaves in its folder: the plan, files of results, refused rows, one report a shard, and at the end `_SUCCESS`.

A file of results appears whole and last of its rows, so what is there is done.
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
from tidegate_dataplane.batch.plan import Span, TablePlan
from tidegate_dataplane.batch.store import Sink, content
from tidegate_dataplane.contract import FailureReason

PLAN: Final = "_plan.json"
SUCCESS: Final = "_SUCCESS"
_KEY: Final = b"tidegate"


class Done(BaseModel):
    """What a file of results says of itself, in its Parquet metadata."""

    model_config = ConfigDict(frozen=True)

    run: str
    first: int
    rows: int
    refused: int = 0


class ShardReport(BaseModel):
    """One finished shard."""

    model_config = ConfigDict(frozen=True)

    shard: int
    rows: int
    refused: int
    files: int


class Results:
    """The folder of one run."""

    def __init__(self, sink: Sink, run: str, wait: Wait) -> None:
        self._sink, self._run, self._wait = sink, run, wait

    def plan(self) -> TablePlan | None:
        """The plan that was written first, None before there is one."""
        text: bytes | None = self._wait(content(self._sink, self._path(PLAN)))
        try:
            return None if text is None else TablePlan.model_validate_json(text)
        except ValidationError as error:
            raise TableError(f"{self._path(PLAN)} cannot be read: delete the folder of the run") from error

    def keep_plan(self, plan: TablePlan) -> TablePlan:
        """Write the plan if there is none; return the one that counts."""
        self._wait(self._sink.create(self._path(PLAN), plan.model_dump_json(indent=1).encode()))
        kept = self.plan()
        if kept is None:
            raise TableError(f"{self._path(PLAN)} was written and is not there: does somebody delete it?")
        return kept

    def done(self, shard: int, parts: Sequence[Span]) -> list[Done]:
        """The files of a shard that are there and whole, from its first one on without a gap."""
        found: list[Done] = []
        for number, span in enumerate(parts):
            # One by one, since a run may have more files than are ever listed.
            said = self._said(_part(shard, number))
            if said is None or (said.run, said.first, said.rows + said.refused) != (
                self._run,
                span.start,
                span.end - span.start,
            ):
                break
            found.append(said)
        return found

    def put(self, shard: int, number: int, first: int, scored: Any, refused: Any) -> None:
        """Write the results of one part; refused rows first, since the file of results says that it is done."""
        aside = f"_refused/{_part(shard, number)}"
        # A pod that was ended between the two files may have refused rows that have a result now.
        if refused.num_rows or self._is_there(aside):
            self._write(aside, refused, {})
        said = Done(run=self._run, first=first, rows=scored.num_rows, refused=refused.num_rows)
        self._write(_part(shard, number), scored, {_KEY: said.model_dump_json().encode()})

    def finish(self, report: ShardReport, shards: int) -> bool:
        """Say that a shard is finished; the last one to say it also writes `_SUCCESS`. Return whether it did."""
        name = f"_shards/{report.shard:05}.json"
        self._wait(self._sink.put(self._path(name), report.model_dump_json().encode()))
        there = self._wait(self._sink.list(self._path("_shards")))
        names = [one for one in there if re.fullmatch(r"\d{5}\.json", one)]
        if len(names) < shards:
            return False
        texts = [self._wait(content(self._sink, self._path(f"_shards/{one}"))) for one in names]
        reports = [ShardReport.model_validate_json(text) for text in texts if text is not None]
        total = {
            "run": self._run,
            "shards": shards,
            "rows": sum(one.rows for one in reports),
            "refused": sum(one.refused for one in reports),
            "files": sum(one.files for one in reports),
        }
        self._wait(self._sink.put(self._path(SUCCESS), _json(total)))
        return True

    def _said(self, name: str) -> Done | None:
        try:
            opened = RangeFile(self._sink, self._path(name), self._wait)
        except ArtefactError as error:
            if error.refusal.reason is FailureReason.ARTEFACT_NOT_FOUND:
                return None
            raise
        try:
            with pa.PythonFile(opened) as file:
                return Done.model_validate_json((pq.read_metadata(file).metadata or {})[_KEY])
        except (pa.ArrowException, ValidationError, KeyError):
            return None  # somebody else's, or cut short by hand: it is written anew

    def _is_there(self, name: str) -> bool:
        try:
            self._wait(self._sink.size(self._path(name)))
        except ArtefactError as error:
            if error.refusal.reason is FailureReason.ARTEFACT_NOT_FOUND:
                return False
            raise
        return True

    def _write(self, name: str, table: Any, metadata: Mapping[bytes, bytes]) -> None:
        content = io.BytesIO()
        pq.write_table(table.replace_schema_metadata(dict(metadata)), content)
        self._wait(self._sink.put(self._path(name), content.getvalue()))

    def _path(self, name: str) -> str:
        return f"{self._run}/{name}"


def _part(shard: int, number: int) -> str:
    return f"part-{shard:05}-{number:05}.parquet"


def _json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, indent=1).encode()
