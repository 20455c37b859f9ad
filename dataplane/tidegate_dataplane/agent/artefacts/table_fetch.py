"""Fetch the tables of a feature plan, all of them or one that has changed."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from tidegate_dataplane.agent.artefacts.checksum import FetchedFile, check_pin
from tidegate_dataplane.agent.artefacts.facts import ArtefactFacts, SourceContent, make_facts
from tidegate_dataplane.agent.artefacts.paths import check_relative_path
from tidegate_dataplane.agent.artefacts.receive import FetchTarget, receive_file
from tidegate_dataplane.agent.artefacts.source import ArtefactSource, OpenSource
from tidegate_dataplane.agent.artefacts.uri import parse_uri
from tidegate_dataplane.agent.files import link_or_copy
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import DesiredState, FailureReason, FeatureTable
from tidegate_dataplane.features.table_file import TABLE_SUFFIX


@dataclass(frozen=True, slots=True)
class StoredTables:
    """A stored version all of whose tables but `changed` are still current."""

    folder: Path
    facts: ArtefactFacts
    changed: str

    def find_table(self, name: str) -> FetchedFile:
        """Return the stored table as it was fetched; KeyError if there is none."""
        files = {file.path: file for file in self.facts.files}
        file = files[converted_path(name)]
        return FetchedFile(table_path(name), file.fetched_size, file.sha256)


async def fetch_tables(
    order: DesiredState, target: FetchTarget, open_source: OpenSource, stored: StoredTables | None = None
) -> ArtefactFacts:
    """Fetch the tables of the order's plan, with `stored` only the changed one, and return the facts of all.

    Raises:
        ArtefactError: as `receive_file` does; FetchFailed if a refreshed table changes while it is downloaded.
    """
    plan = order.plan
    if plan is None:
        raise ArtefactError(FailureReason.ARTEFACT_INVALID, f"{order.owner} orders features without a plan")
    (target.folder / "tables").mkdir()
    files: list[FetchedFile] = []
    contents = dict(stored.facts.tables) if stored is not None else {}
    for table in plan.tables:
        path = check_relative_path(table_path(table.name), subject="table")
        if stored is not None and table.name != stored.changed:
            file = stored.find_table(table.name)
            converted = converted_path(table.name)
            await asyncio.to_thread(link_or_copy, stored.folder / converted, target.folder / converted)
            target.used += file.size
        elif table.refresh is None:
            file = await _fetch_table(table, path, order, target, open_source)
        else:
            file, contents[table.name] = await _fetch_identified(table, path, order, target, open_source)
        files.append(file)
    facts = make_facts(order, files)
    return facts.model_copy(
        update={"inputs": plan.inputs, "outputs": plan.outputs, "batched": True, "tables": contents}
    )


async def identify_table(table: FeatureTable, order: DesiredState, open_source: OpenSource) -> str:
    """Return a text that changes whenever the table does, without downloading it.

    Raises:
        ArtefactError: the source does not answer, or does not have it.
    """
    try:
        source, name = _open_folder(table, order, open_source)
        return await source.identify_content(name)
    except ArtefactError as error:
        raise _name_table(table, error) from error


def table_path(name: str) -> str:
    """Return the path of a fetched table within the folder of a version."""
    return f"tables/{name}.parquet"


def converted_path(name: str) -> str:
    """Return the path of a converted table within the folder of a version."""
    return f"tables/{name}{TABLE_SUFFIX}"


async def _fetch_identified(
    table: FeatureTable, path: str, order: DesiredState, target: FetchTarget, open_source: OpenSource
) -> tuple[FetchedFile, SourceContent]:
    """Fetch a table whose content at the source was the same from the beginning of the download to the end."""
    before = await identify_table(table, order, open_source)
    file = await _fetch_table(table, path, order, target, open_source)
    if await identify_table(table, order, open_source) != before:
        raise ArtefactError(
            FailureReason.FETCH_FAILED,
            f"table {table.name!r} at {table.uri} changed while it was downloaded: write new tables beside it and rename them",
        )
    return file, SourceContent(identity=before, fetched_s=time.time())


async def _fetch_table(
    table: FeatureTable, path: str, order: DesiredState, target: FetchTarget, open_source: OpenSource
) -> FetchedFile:
    try:
        source, name = _open_folder(table, order, open_source)
        file = await receive_file(source, name, path, target)
    except ArtefactError as error:
        raise _name_table(table, error) from error
    subject = f"table {table.name!r} at {table.uri}"
    check_pin(table.sha256, file.sha256, subject, "its sha256 in the spec")
    return file


def _open_folder(
    table: FeatureTable, order: DesiredState, open_source: OpenSource
) -> tuple[ArtefactSource, str]:
    """Return the source of a table's folder, and the name of the table there."""
    folder, _, name = table.uri.rstrip("/").rpartition("/")
    return open_source(parse_uri(folder), order), name


def _name_table(table: FeatureTable, error: ArtefactError) -> ArtefactError:
    return ArtefactError(error.refusal.reason, f"table {table.name!r}: {error.refusal.message}")
