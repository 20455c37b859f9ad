"""Compute the features of a manifest's FeatureCompute over files of this machine, without a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.reasons import Reason
from tidegate.errors import InvalidSpecError, PermanentError
from tidegate.planning.features.feature_plan import compile_plan
from tidegate.planning.features.shared_features import SharedFeatureError, resolve_shared
from tidegate.reports.offline_features import FeatureFileReport, FeatureInputReport, OfflineFeaturesReport
from tidegate.services.manifests import read_manifests
from tidegate_dataplane.contract import (
    FeaturePlan,
    FeatureTable,
    OfflineFile,
    OfflineFilePhase,
    OfflineMessage,
    OfflineOrder,
    OfflineSource,
)

COMMAND: Final = (sys.executable, "-P", "-m", "tidegate_dataplane.features")
"""The engine is the data plane's, in a process of its own; -P, lest a file of the working directory be taken for a library."""
_MAX_LINE_BYTES: Final = 1 << 20
_FILE_URI: Final = "file://"

PrintStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class OfflineRequest:
    """What to compute, from which files."""

    manifest: Path
    name: str | None
    """Of the FeatureCompute; None if the manifest has only one."""
    rows: Path
    output: Path
    time_column: str | None
    tables: Mapping[str, Path]
    events: Mapping[str, Path]
    shard: int = 0
    shards: int = 1
    dry_run: bool = False


@dataclass(slots=True)
class _Progress:
    """What the process has printed so far; `print_step` gets a line for people."""

    print_step: PrintStep
    sources: list[OfflineSource] = field(default_factory=list[OfflineSource])
    files: dict[str, OfflineFile] = field(default_factory=dict[str, OfflineFile])

    def add_message(self, message: OfflineMessage) -> None:
        """Add a message. Raises PermanentError if it is an error."""
        if message.error is not None:
            raise PermanentError(message.error)
        if message.source is not None:
            self.sources.append(message.source)
            self.print_step(f"{message.source.name}: {message.source.count} rows at {message.source.path}")
        if message.file is not None:
            self.files[message.file.rows_path] = message.file
            if message.file.phase is not OfflineFilePhase.PENDING:
                self.print_step(_describe_file(message.file))


async def compute_offline_features(request: OfflineRequest, print_step: PrintStep) -> OfflineFeaturesReport:
    """Compile the plan, and write a file with features for each file of rows that has none yet.

    Raises PermanentError if something does not fit; the files that are written stay, and the next run goes on after them.
    """
    features = _select_features(request)
    plan = compile_plan(features)
    print_step(f"plan {plan.hash}")
    order = _make_order(request, features, plan)
    progress = _Progress(print_step)
    async with contextlib.aclosing(_run_process(order)) as messages:
        async for message in messages:
            progress.add_message(message)
    streams = {stream.name for stream in plan.streams}
    return OfflineFeaturesReport(
        name=features.metadata.name,
        plan_hash=plan.hash,
        time_column=request.time_column,
        shard=request.shard,
        shards=request.shards,
        dry_run=request.dry_run,
        tables=_report_sources(source for source in progress.sources if source.name not in streams),
        events=_report_sources(source for source in progress.sources if source.name in streams),
        files=tuple(map(_report_file, progress.files.values())),
    )


def _select_features(request: OfflineRequest) -> FeatureCompute:
    manifests = read_manifests((request.manifest,), "default")
    name, kind = request.name, FeatureCompute.KIND
    refused = [item for item in manifests.rejected if item.kind == kind and name in (None, item.key.name)]
    if refused:
        raise InvalidSpecError(f"{kind} {refused[0].key.name}: {'; '.join(refused[0].messages)}")
    features = [item for item in manifests.objects if isinstance(item, FeatureCompute)]
    names = ", ".join(item.metadata.name for item in features)
    selected = [item for item in features if name in (None, item.metadata.name)]
    if not features:
        raise PermanentError(f"{request.manifest} has no {kind}")
    if not selected:
        raise PermanentError(f"{request.manifest} has no {kind} {name}; it has {names}")
    if len(selected) > 1:
        raise PermanentError(f"{request.manifest} has several of kind {kind}: choose with --name: {names}")
    try:
        return resolve_shared(selected[0], {item.key: item for item in features}.get)
    except SharedFeatureError as error:
        if error.reason is not Reason.TARGET_NOT_FOUND:
            raise
        message = (
            f"{error}; {request.manifest} must have it too, so name a folder or a file with both manifests"
        )
        raise PermanentError(message) from error


def _make_order(request: OfflineRequest, features: FeatureCompute, plan: FeaturePlan) -> OfflineOrder:
    _check_names(request, features)
    if plan.streams and not request.time_column:
        message = "there are features over events: name the column with the time of each row, --time COLUMN"
        raise PermanentError(message)
    if request.time_column and not plan.streams:
        message = "no feature reads events, so all rows get the same answer at any time: leave out --time"
        raise PermanentError(message)
    for stream in plan.streams:
        if stream.name not in request.events:
            message = f"there are no events of stream {stream.name!r}: --events {stream.name}=PATH"
            raise PermanentError(message)
    return OfflineOrder(
        plan=plan,
        rows=str(request.rows),
        output=str(request.output),
        time_column=request.time_column or "",
        tables={table.name: str(_find_table(table, request.tables)) for table in plan.tables},
        events={stream.name: str(request.events[stream.name]) for stream in plan.streams},
        shard=request.shard,
        shards=request.shards,
        dry_run=request.dry_run,
    )


def _check_names(request: OfflineRequest, features: FeatureCompute) -> None:
    sources = features.spec.sources
    declared = {
        "--table": [source.name for source in sources if source.table is not None],
        "--events": [source.name for source in sources if source.stream is not None],
    }
    for option, paths in (("--table", request.tables), ("--events", request.events)):
        for name, path in paths.items():
            if name not in declared[option]:
                names = ", ".join(declared[option]) or "none"
                raise PermanentError(f"{option} {name}={path}: there is no source {name!r}; there is {names}")


def _find_table(table: FeatureTable, paths: Mapping[str, Path]) -> Path:
    """Return the path that is given, else that of a table whose URI is one of this machine."""
    if table.name in paths:
        return paths[table.name]
    path = Path(table.uri.removeprefix(_FILE_URI))
    if table.uri.startswith(_FILE_URI) and path.exists():
        return path
    message = f"table {table.name!r} is at {table.uri}, not on this machine: --table {table.name}=PATH"
    raise PermanentError(message)


async def _run_process(order: OfflineOrder) -> AsyncGenerator[OfflineMessage, None]:
    """Yield what the process prints; end it when the caller stops."""
    process = await asyncio.create_subprocess_exec(*COMMAND, stdin=PIPE, stdout=PIPE, limit=_MAX_LINE_BYTES)
    if process.stdin is None or process.stdout is None:
        raise PermanentError("the process that computes features was started without pipes")
    failed = False
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(order.to_json().encode())
            await process.stdin.drain()
        process.stdin.close()
        async for line in process.stdout:
            message = OfflineMessage.model_validate_json(line)
            failed = failed or message.error is not None
            yield message
        status = await process.wait()
    finally:
        await _end_process(process)
    if status and not failed:
        raise PermanentError(_describe_end(status))


async def _end_process(process: Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def _describe_end(status: int) -> str:
    if status == -9:
        return (
            "the process that computes features was killed, as is done when memory is used up: all events are in memory"
            " at once; the same command goes on after the last file that is written"
        )
    return f"the process that computes features ended with status {status}"


def _describe_file(file: OfflineFile) -> str:
    match file.phase:
        case OfflineFilePhase.COMPUTING:
            return f"{file.rows_path}: {file.computed_rows} of {file.row_count} rows"
        case OfflineFilePhase.SKIPPED:
            return f"{file.output_path}: skipped, an earlier run has written its {file.row_count} rows"
        case OfflineFilePhase.WRITTEN:
            return f"{file.output_path}: {file.row_count} rows written"
        case OfflineFilePhase.PENDING:
            return f"{file.rows_path}: {file.row_count} rows to compute"


def _report_sources(sources: Iterable[OfflineSource]) -> tuple[FeatureInputReport, ...]:
    return tuple(
        FeatureInputReport(name=source.name, path=source.path, count=source.count) for source in sources
    )


def _report_file(file: OfflineFile) -> FeatureFileReport:
    return FeatureFileReport(
        rows=file.rows_path, output=file.output_path, row_count=file.row_count, state=file.phase.value
    )
