"""Convert fetched tables to files that Triton's processes map, once per content."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from tidegate_dataplane.agent.artefacts.facts import ArtefactFacts, StoredFile
from tidegate_dataplane.agent.artefacts.table_fetch import converted_path, table_path
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import DesiredState, FailureReason
from tidegate_dataplane.features.conversion import ConversionOrder, ConversionResult

CONVERSION_TIMEOUT_S: Final = 3_600.0
_STDERR_CHARACTERS: Final = 500

ConvertTable = Callable[[ConversionOrder], Awaitable[ConversionResult]]
"""Converts one table."""


async def convert_tables(
    order: DesiredState, facts: ArtefactFacts, folder: Path, convert: ConvertTable
) -> ArtefactFacts:
    """Replace the fetched tables in a version folder by converted ones, and return the facts of these.

    Their sha256 stays that of what was fetched. Tables that are converted already are left as they are.

    Raises:
        ArtefactError: ArtefactInvalid if a table does not fit the plan, FetchFailed if the disk is full.
    """
    plan = order.plan
    if plan is None:
        return facts
    files = {file.path: file for file in facts.files}
    converted: list[StoredFile] = []
    for table in plan.tables:
        parquet, target = folder / table_path(table.name), folder / converted_path(table.name)
        sha256 = files[table_path(table.name)].sha256
        if not target.exists():
            result = await convert(
                ConversionOrder(plan=plan, table=table.name, parquet=parquet, sha256=sha256, target=target)
            )
            if result.error:
                reason = FailureReason.FETCH_FAILED if result.is_disk_full else FailureReason.ARTEFACT_INVALID
                raise ArtefactError(reason, result.error)
            await asyncio.to_thread(parquet.unlink)
        size = target.stat().st_size
        converted.append(StoredFile(path=converted_path(table.name), size=size, sha256=sha256))
    return facts.model_copy(update={"files": tuple(converted)})


async def convert_in_process(order: ConversionOrder) -> ConversionResult:
    """Convert a table in a process of its own, which has its memory to itself and ends with a cancelled order.

    Raises:
        ArtefactError: FetchFailed if the process ends without a result.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tidegate_dataplane.features.convert",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
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
        raise _report_end(order, f"ended with status {process.returncode}: {text}") from error


def _report_end(order: ConversionOrder, cause: str) -> ArtefactError:
    return ArtefactError(
        FailureReason.FETCH_FAILED,
        f"the conversion of table {order.table!r} {cause}; it is tried again, and the agent's log has each attempt",
    )
