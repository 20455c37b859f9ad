"""Read what a batch's features are computed from: tables, and of the archived events those that a shard's rows see."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from tidegate_dataplane.agent.artefacts.node_cache import MIN_FREE_SHARE
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.batch.columns import pc
from tidegate_dataplane.batch.errors import TableError
from tidegate_dataplane.batch.parquet import (
    FILE_SUFFIX,
    Wait,
    measure_file,
    read_segment,
    select_table_files,
)
from tidegate_dataplane.batch.plan import FileSegment, InputFile
from tidegate_dataplane.batch.row_features import RowsView, make_keys, translate_errors
from tidegate_dataplane.batch.store import TableSource
from tidegate_dataplane.contract import BatchFeatures, EventStream, FeatureTable
from tidegate_dataplane.features.conversion import DiskBound
from tidegate_dataplane.features.convert import convert_temporarily
from tidegate_dataplane.features.engine import FeatureEngine
from tidegate_dataplane.features.event_file import (
    EventColumns,
    RecordedEvents,
    list_event_columns,
    read_event_columns,
)
from tidegate_dataplane.features.mapped_table import MappedTable, read_ahead
from tidegate_dataplane.features.table_layout import TableLayout, list_layouts

_CHUNK_BYTES: Final = 8 << 20
_DISK: Final = DiskBound(
    reserve_share=MIN_FREE_SHARE,
    disk_remedy="raise spec.tableStorage of the FeatureCompute, free space on the node",
)

OpenFolder = Callable[[str], TableSource]
"""Opens the folder of a URI."""
SourceFiles = Mapping[str, Sequence[InputFile]]


class _StoredRows:
    """The rows of a table's files in a store."""

    def __init__(
        self, files: Sequence[InputFile], read_files: Callable[[Sequence[str]], Iterator[Any]]
    ) -> None:
        self._files = files
        self._read_files = read_files

    def count_rows(self, columns: Sequence[str]) -> int:
        """Return their number; the columns are checked when they are read."""
        del columns
        return sum(file.rows for file in self._files)

    def read_blocks(self, columns: Sequence[str], block_rows: int) -> Iterator[Any]:
        """Yield them in order, as record batches of Arrow; a table has one file."""
        for part in self._read_files(columns):
            yield from part.to_batches(max_chunksize=block_rows)


class FeatureSources:
    """The tables and the archives of events of one batch, in the stores that they are in."""

    def __init__(self, features: BatchFeatures, open_folder: OpenFolder, wait: Wait) -> None:
        self.features = features
        self._open_folder = open_folder
        self._wait = wait
        self._entities = {entity.name: entity for entity in features.plan.entities}

    def list_files(self) -> dict[str, tuple[InputFile, ...]]:
        """Return the files of each table and stream as they are now, by name.

        Raises:
            TableError: there are none, or one is no Parquet file.
        """
        files: dict[str, tuple[InputFile, ...]] = {}
        plan = self.features.plan
        for name in (*(table.name for table in plan.tables), *(stream.name for stream in plan.streams)):
            folder, source = self._open_source(name)
            paths = self._list_paths(name, source)
            if not paths:
                raise TableError(f"there is no .parquet file below {folder}, which source {name!r} reads")
            files[name] = tuple(measure_file(source, folder, path, self._wait) for path in paths)
        return files

    def load_engine(self, files: SourceFiles, rows: RowsView) -> FeatureEngine:
        """Read the tables, and the events that `rows` see.

        Raises:
            TableError: a file has changed, or does not fit the plan.
        """
        plan = self.features.plan
        layouts = list_layouts(plan)
        with translate_errors(f"FeatureCompute {self.features.compute}"):
            tables = {
                table.name: self._convert_table(table, files[table.name], layouts[table.name])
                for table in plan.tables
            }
            read_ahead(tables.values())
            events = {
                stream.name: self._read_events(stream, files[stream.name], rows) for stream in plan.streams
            }
            return FeatureEngine(plan, tables, events)

    def _convert_table(
        self, table: FeatureTable, files: Sequence[InputFile], layout: TableLayout
    ) -> MappedTable:
        if table.sha256 is not None:
            self._check_digest(table.name, files[0], table.sha256)
        if not any(file.rows for file in files):
            raise TableError(f"table {table.name!r} at {self.features.sources[table.name]} has no rows")
        read_files = partial(self._read_files, table.name, files)
        return convert_temporarily(layout, _StoredRows(files, read_files), _DISK)

    def _read_events(self, stream: EventStream, files: Sequence[InputFile], rows: RowsView) -> RecordedEvents:
        entity = self._entities[stream.entity]
        visible: list[EventColumns] = []
        for part in self._read_files(stream.name, files, list_event_columns(stream, entity)):
            events = read_event_columns(part, stream, entity)
            recent = (events.times > rows.first_ms - stream.ttl_ms) & (events.times <= rows.last_ms)
            owned = pc.is_in(make_keys(events.keys, entity), value_set=rows.keys[entity.name])
            visible.append(events.select_events(recent & np.asarray(owned)))
        return RecordedEvents(stream, entity, EventColumns.join_parts(visible, stream))

    def _read_files(self, name: str, files: Sequence[InputFile], columns: Sequence[str]) -> Iterator[Any]:
        folder, source = self._open_source(name)
        for file in files:
            yield from read_segment(source, folder, FileSegment(file, 0, file.rows), columns, self._wait)

    def _check_digest(self, name: str, file: InputFile, pin: str) -> None:
        _, source = self._open_source(name)
        digest = hashlib.sha256()
        for start in range(0, file.size, _CHUNK_BYTES):
            digest.update(
                self._wait(source.read_range(file.path, start, min(_CHUNK_BYTES, file.size - start)))
            )
        if digest.hexdigest() != pin:
            raise TableError(
                f"table {name!r}: {self.features.sources[name]} has sha256 {digest.hexdigest()}, and the spec pins {pin}: name the "
                "file that pods read"
            )

    def _open_source(self, name: str) -> tuple[str, TableSource]:
        """Return the URI of the folder with a source's files, and the folder."""
        folder = self._split_uri(name)[0]
        return folder, self._open_folder(folder)

    def _list_paths(self, name: str, source: TableSource) -> tuple[str, ...]:
        file = self._split_uri(name)[1]
        if not file:
            return select_table_files(self._wait(source.list("")))
        if name in {table.name for table in self.features.plan.tables}:
            return (file,)
        try:
            self._wait(source.size(file))
        except ArtefactError:
            # Spark names a folder of files so too.
            paths = select_table_files(self._wait(source.list(file)))
            return tuple(f"{file}/{path}" for path in paths) or (file,)
        return (file,)

    def _split_uri(self, name: str) -> tuple[str, str]:
        """Return the folder and the name of a source's file, or folder of that name; an empty name if the source is the folder."""
        uri = self.features.sources[name]
        is_table = name in {table.name for table in self.features.plan.tables}
        if is_table or uri.endswith(FILE_SUFFIX):
            folder, _, file = uri.rpartition("/")
            return folder, file
        return uri, ""
