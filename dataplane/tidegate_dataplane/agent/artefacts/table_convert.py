"""Convert fetched tables to files that Triton's processes map, once per content."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from tidegate_dataplane.agent.artefacts.facts import ArtefactFacts, StoredFile
from tidegate_dataplane.agent.artefacts.node_cache import MIN_FREE_SHARE
from tidegate_dataplane.agent.artefacts.table_fetch import converted_path, table_path
from tidegate_dataplane.agent.refusals import ArtefactError, NoRoomError, WorkEndedError
from tidegate_dataplane.contract import DesiredState, FailureReason
from tidegate_dataplane.features.conversion import ConversionOrder, ConversionResult, DiskBound

CONVERSION_TIMEOUT_S: Final = 3_600.0
_STDERR_CHARACTERS: Final = 500

ConvertTable = Callable[[ConversionOrder], Awaitable[ConversionResult]]
"""Converts one table."""


async def convert_tables(
    order: DesiredState, facts: ArtefactFacts, folder: Path, convert: ConvertTable
) -> ArtefactFacts:
    """Replace the fetched tables in a version folder by converted ones, and return the facts of these.

    Their sha256 stays that of what was fetched. Tables that are converted already are left as they are. Together, converted
    tables have at most the bytes that the order allows.

    Raises:
        ArtefactError: ArtefactInvalid if a table does not fit the plan or is too large, NoRoomError if the disk is full.
    """
    plan = order.plan
    if plan is None:
        return facts
    files = {file.path: file for file in facts.files}
    targets = {table.name: folder / converted_path(table.name) for table in plan.tables}
    used = sum(target.stat().st_size for target in targets.values() if target.exists())
    converted: list[StoredFile] = []
    for name, target in targets.items():
        fetched, parquet = files[table_path(name)], folder / table_path(name)
        if not target.exists():
            result = await convert(
                ConversionOrder(
                    plan=plan,
                    table=name,
                    parquet=parquet,
                    sha256=fetched.sha256,
                    target=target,
                    disk=_bound_disk(order, used),
                )
            )
            if result.needed_bytes:
                raise NoRoomError(result.error, result.needed_bytes + fetched.size)
            if result.error:
                raise ArtefactError(FailureReason.ARTEFACT_INVALID, result.error)
            await asyncio.to_thread(parquet.unlink)
            used += target.stat().st_size
        converted.append(
            StoredFile(
                path=converted_path(name),
                size=target.stat().st_size,
                sha256=fetched.sha256,
                fetched_size=fetched.size,
            )
        )
    return facts.model_copy(update={"files": tuple(converted)})


def _bound_disk(order: DesiredState, used: int) -> DiskBound:
    """Return the disk for one table, beside `used` bytes of the others."""
    field, verb, limit = "spec.tableStorage", "raise", order.max_table_bytes
    if limit is None:
        field, verb, limit = "models.maxArtefactBytes", "set", order.max_artefact_bytes
    return DiskBound(
        max_bytes=max(limit - used, 0),
        reserve_share=MIN_FREE_SHARE,
        allowed=f"of the {limit:,} for all tables ({field})",
        size_remedy=f"{verb} spec.tableStorage, or read fewer columns or shorter lists of the table",
        disk_remedy="raise spec.tableStorage, free space on the node",
    )


def has_room(folder: Path, needed_bytes: int) -> bool:
    """Return whether this many bytes can be written to the disk of a folder beside the reserve."""
    return DiskBound(reserve_share=MIN_FREE_SHARE).measure_room(folder) >= needed_bytes


async def convert_in_process(order: ConversionOrder) -> ConversionResult:
    """Convert a table in a process of its own, whose memory is bounded and which ends with a cancelled order.

    Raises:
        WorkEndedError: the process ends without a result, or takes too long.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tidegate_dataplane.features.convert",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # The default one reserves memory that counts against the bound.
        env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
    )
    try:
        async with asyncio.timeout(CONVERSION_TIMEOUT_S):
            output, errors = await process.communicate(order.model_dump_json().encode())
    except TimeoutError as error:
        raise _report_end(order, f"took more than {CONVERSION_TIMEOUT_S:.0f} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        return ConversionResult.model_validate_json(output)
    except ValidationError as error:
        text = errors.decode(errors="replace").strip()[-_STDERR_CHARACTERS:]
        raise _report_end(order, _describe_end(process.returncode or 0, text)) from error


def _describe_end(status: int, text: str) -> str:
    if status < 0:
        return f"was ended by signal {-status}, most likely because the agent's container has no more memory"
    return f"ended with status {status} ({text})"


def _report_end(order: ConversionOrder, cause: str) -> ArtefactError:
    return WorkEndedError(
        f"the conversion of table {order.table!r} {cause}: read fewer columns of it, or write shorter lists and smaller row groups"
    )
