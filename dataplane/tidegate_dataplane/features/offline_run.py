"""Execute an order to compute features offline: check everything, read the sources, then file by file."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # publishes no types
import pyarrow.dataset as ds  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from tidegate_dataplane.contract import (
    PLAN_HASH,
    FeaturePlan,
    OfflineFile,
    OfflineFilePhase,
    OfflineMessage,
    OfflineOrder,
    OfflineSource,
)
from tidegate_dataplane.features.errors import FeatureError
from tidegate_dataplane.features.offline import RowsComputer, check_rows, make_engine

SOURCES: Final = "tidegate.sources"
"""Key in the metadata of a file of features: the column of times, and the number of events and keys it was computed from."""
PROGRESS_INTERVAL_S: Final = 5.0

SendMessage = Callable[[OfflineMessage], None]


def run_order(order: OfflineOrder, send_message: SendMessage) -> None:
    """Write a file of features for each file of rows of the shard that has none yet.

    A file appears when it is complete, so a run that was interrupted goes on where it stopped. With `dry_run` nothing is
    written.

    Raises:
        FeatureError: something does not fit; the files that are written stay.
    """
    plan = order.plan
    tables, events = _to_paths(order.tables), _to_paths(order.events)
    pairs = _list_files(order)
    counts = {rows: check_rows(rows, plan, order.time_column) for rows, _ in pairs}
    for rows, output in pairs:
        _check_plan(rows, output, plan)
    sources = list(_measure_sources(plan, tables, events))
    for source in sources:
        send_message(OfflineMessage(source=source))
    described = _describe_sources(plan, sources, order.time_column)
    pending: list[OfflineFile] = []
    for rows, output in pairs:
        file = _inspect_file(rows, output, counts[rows], described)
        send_message(OfflineMessage(file=file))
        if file.phase is OfflineFilePhase.PENDING:
            pending.append(file)
    if not pending:
        return
    computer = RowsComputer(plan, make_engine(plan, tables, events), order.time_column, {SOURCES: described})
    for file in () if order.dry_run else pending:
        _compute_file(computer, file, send_message)


def _compute_file(computer: RowsComputer, file: OfflineFile, send_message: SendMessage) -> None:
    output, last = Path(file.output_path), time.monotonic()
    output.parent.mkdir(parents=True, exist_ok=True)

    def report_rows(count: int) -> None:
        nonlocal last
        if time.monotonic() - last >= PROGRESS_INTERVAL_S:
            last = time.monotonic()
            update = {"phase": OfflineFilePhase.COMPUTING, "computed_rows": count}
            send_message(OfflineMessage(file=file.model_copy(update=update)))

    count = computer.compute_file(Path(file.rows_path), output, report_rows)
    update = {"phase": OfflineFilePhase.WRITTEN, "computed_rows": count}
    send_message(OfflineMessage(file=file.model_copy(update=update)))


def _to_paths(paths: Mapping[str, str]) -> dict[str, Path]:
    return {name: Path(path) for name, path in paths.items()}


def _list_files(order: OfflineOrder) -> list[tuple[Path, Path]]:
    """Return the shard's files of rows, each with the file for its features."""
    rows, output = Path(order.rows), Path(order.output)
    if not rows.is_dir():
        if not rows.exists():
            raise FeatureError(f"there are no rows at {rows}")
        target = output / rows.name if output.is_dir() else output
        if target.resolve() == rows.resolve():
            raise FeatureError(f"the features would replace their rows, {rows}: write them to another file")
        return [] if order.shard else [(rows, target)]
    if output.resolve().is_relative_to(rows.resolve()):
        raise FeatureError(f"{output} is in the folder of the rows, {rows}: write to a folder beside it")
    if output.is_file():
        raise FeatureError(f"{rows} is a folder and {output} a file: write to a folder")
    names = sorted(path.relative_to(rows) for path in rows.rglob("*.parquet") if path.is_file())
    names = [name for name in names if not any(part[0] in "._" for part in name.parts)]
    if not names:
        raise FeatureError(f"the folder {rows} has no file *.parquet")
    return [(rows / name, output / name) for name in names[order.shard :: order.shards]]


def _measure_sources(
    plan: FeaturePlan, tables: Mapping[str, Path], events: Mapping[str, Path]
) -> Iterator[OfflineSource]:
    """Yield each table and stream of the plan with the number of its rows, from the footers of its files."""
    for table in plan.tables:
        if table.name not in tables:
            raise FeatureError(f"there is no file for table {table.name!r}")
        path = tables[table.name]
        yield _measure_source(table.name, path, "table")
        if table.sha256 is not None:
            _check_digest(table.name, path, table.sha256)
    for stream in plan.streams:
        if stream.name not in events:
            raise FeatureError(f"there is no file with the events of {stream.name!r}")
        yield _measure_source(stream.name, events[stream.name], "events of")


def _measure_source(name: str, path: Path, kind: str) -> OfflineSource:
    try:
        dataset = ds.dataset(path, format="parquet")
        if not dataset.files:
            raise FeatureError(f"{kind} {name!r}: the folder {path} has no files")
        return OfflineSource(name=name, path=str(path), count=dataset.count_rows())
    except (pa.ArrowException, OSError) as error:
        raise FeatureError(f"{kind} {name!r} cannot be read as Parquet from {path}: {error}") from error


def _check_digest(name: str, path: Path, pin: str) -> None:
    if path.is_dir():
        raise FeatureError(f"table {name!r} is pinned by a sha256: name its file, not the folder {path}")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != pin:
        raise FeatureError(
            f"table {name!r}: {path} has sha256 {digest}, and the spec pins {pin}: name the file that pods read"
        )


def _describe_sources(plan: FeaturePlan, sources: list[OfflineSource], time_column: str) -> str:
    """Return the JSON that two runs have in common if they compute from the same; paths may differ."""
    streams = {stream.name for stream in plan.streams}
    content = {
        "time": time_column,
        "events": {source.name: source.count for source in sources if source.name in streams},
        "tables": {source.name: source.count for source in sources if source.name not in streams},
    }
    return json.dumps(content, sort_keys=True)


def _check_plan(rows: Path, output: Path, plan: FeaturePlan) -> None:
    """Raise FeatureError if `output` exists and has other features than the plan's."""
    if not output.exists():
        return
    earlier = _read_metadata(output).get(PLAN_HASH)
    if earlier is None:
        raise FeatureError(f"{output} exists and has no features of {rows}: {_WAY_OUT}")
    if earlier != plan.hash:
        raise FeatureError(
            f"{output} has the features of plan {earlier}, and this is plan {plan.hash}: {_WAY_OUT}"
        )


def _inspect_file(rows: Path, output: Path, row_count: int, described: str) -> OfflineFile:
    """Return whether the features of a file of rows are still to be computed, or were from the same sources."""
    file = OfflineFile(
        rows_path=str(rows), output_path=str(output), phase=OfflineFilePhase.PENDING, row_count=row_count
    )
    if not output.exists():
        return file
    computed = int(pq.read_metadata(output).num_rows)
    if computed != row_count:
        raise FeatureError(
            f"{output} has the features of {computed} rows, and {rows} has {row_count}: {_WAY_OUT}"
        )
    earlier = _read_metadata(output).get(SOURCES, "nothing")
    if earlier != described:
        raise FeatureError(
            f"{output} was computed from {earlier}, and now it would be {described}: {_WAY_OUT}"
        )
    return file.model_copy(update={"phase": OfflineFilePhase.SKIPPED, "computed_rows": computed})


_WAY_OUT: Final = "write to another place, or remove the file to compute it again"


def _read_metadata(path: Path) -> dict[str, str]:
    try:
        metadata: Mapping[bytes, bytes] | Any = pq.read_metadata(path).metadata
    except (pa.ArrowException, OSError) as error:
        raise FeatureError(f"{path} exists and cannot be read as Parquet: {_WAY_OUT} ({error})") from error
    return {
        key.decode(errors="replace"): value.decode(errors="replace")
        for key, value in (metadata or {}).items()
    }
