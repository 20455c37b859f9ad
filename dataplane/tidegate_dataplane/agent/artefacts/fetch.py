"""Bring the artefact that an order names into an empty folder, verified, or say why not."""

import asyncio
import errno
import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidegate_dataplane.agent.artefacts.checksum import FetchedFile, artefact_digest
from tidegate_dataplane.agent.artefacts.facts import Facts, StoredFile, is_batched, plan_hash
from tidegate_dataplane.agent.artefacts.onnx_file import read_onnx
from tidegate_dataplane.agent.artefacts.paths import checked_relative
from tidegate_dataplane.agent.artefacts.source import Source
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri, parse_uri
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import DesiredState, FailureReason, ModelFormat, Table

MAX_CONFIG_BYTES = 1 << 20
CONFIG_FILE = "config.pbtxt"
MODEL_FILES = {ModelFormat.ONNX: "model.onnx", ModelFormat.PYTHON: "model.py"}

OpenSource = Callable[[ArtefactUri, DesiredState], Source]


@dataclass(slots=True)
class Progress:
    """Bytes received and, where the sources say it, bytes to come in all."""

    done: int = 0
    total: int | None = None


@dataclass(frozen=True, slots=True)
class _Basket:
    """Where files are put, and how much may still go in."""

    folder: Path
    limit_bytes: int
    progress: Progress
    what: str


async def fetch(order: DesiredState, folder: Path, open_source: OpenSource, progress: Progress) -> Facts:
    """Fetch and verify the artefact of `order` into `folder`, which is empty.

    Raises:
        ArtefactError: with the reason; FetchFailed is the one that may pass by itself.
    """
    if order.format is ModelFormat.PYTHON and not order.allow_python:
        raise ArtefactError(
            FailureReason.FORMAT_NOT_ALLOWED,
            "format Python runs the artefact's own code and this cluster does not allow it (models.allowPython)",
        )
    basket = _Basket(folder, order.max_artefact_bytes, progress, f"{order.uri}/{order.version}")
    if order.format is ModelFormat.FEATURES:
        facts = await _fetch_tables(order, basket, open_source)
        _check_pin(order.sha256, facts.digest, f"the tables of {order.owner}", "the pin")
        return facts
    source = open_source(parse_uri(order.uri), order)
    config_text = await _fetch_config(source, basket)
    facts = await (_fetch_onnx if order.format is ModelFormat.ONNX else _fetch_python)(order, source, basket)
    _check_pin(order.sha256, facts.digest, basket.what, "spec.model.sha256")
    return facts.model_copy(update={"config_text": config_text})


async def _fetch_onnx(order: DesiredState, source: Source, basket: _Basket) -> Facts:
    model = await _fetch_model_file(order, source, basket)
    onnx = await asyncio.to_thread(read_onnx, basket.folder / model.path)
    files = [model]
    for path, needed in onnx.external.items():
        data = await _receive(source, f"{order.version}/{path}", path, basket)
        if data.size < needed:
            raise ArtefactError(
                FailureReason.ARTEFACT_INVALID,
                f"external data file {path} has {data.size} bytes and the model reads {needed}: publish it again",
            )
        files.append(data)
    return _facts(order, files).model_copy(
        update={
            "inputs": tuple(tensor.spec for tensor in onnx.inputs),
            "outputs": tuple(tensor.spec for tensor in onnx.outputs),
            "batched": is_batched(onnx),
        }
    )


async def _fetch_python(order: DesiredState, source: Source, basket: _Basket) -> Facts:
    listed = await source.list(str(order.version))
    paths = listed or (MODEL_FILES[ModelFormat.PYTHON],)
    if MODEL_FILES[ModelFormat.PYTHON] not in paths:
        raise _absent(order)
    files = [
        await _receive(source, f"{order.version}/{path}", checked_relative(path, what="file"), basket)
        for path in paths
        if "__pycache__" not in path.split("/")
    ]
    return _facts(order, files)


async def _fetch_model_file(order: DesiredState, source: Source, basket: _Basket) -> FetchedFile:
    name = MODEL_FILES[order.format]
    try:
        return await _receive(source, f"{order.version}/{name}", name, basket)
    except ArtefactError as error:
        if error.refusal.reason is FailureReason.ARTEFACT_NOT_FOUND:
            raise _absent(order) from error
        raise


def _absent(order: DesiredState) -> ArtefactError:
    name = MODEL_FILES[order.format]
    return ArtefactError(
        FailureReason.ARTEFACT_NOT_FOUND,
        f"there is no {order.uri.rstrip('/')}/{order.version}/{name}; "
        f"an artefact lies at <uri>/<version>/{name}, and the version is a number",
    )


async def _fetch_tables(order: DesiredState, basket: _Basket, open_source: OpenSource) -> Facts:
    plan = order.plan
    if plan is None:
        raise ArtefactError(FailureReason.ARTEFACT_INVALID, f"{order.owner} orders features without a plan")
    (basket.folder / "tables").mkdir()
    files: list[FetchedFile] = []
    for table in plan.tables:
        path = checked_relative(f"tables/{table.name}.parquet", what="table")
        file = await _fetch_table(table, path, order, basket, open_source)
        _check_pin(
            table.sha256, file.sha256, f"table {table.name!r} at {table.uri}", "its sha256 in the spec"
        )
        files.append(file)
    facts = _facts(order, files)
    return facts.model_copy(update={"inputs": plan.inputs, "outputs": plan.outputs, "batched": True})


async def _fetch_table(
    table: Table, path: str, order: DesiredState, basket: _Basket, open_source: OpenSource
) -> FetchedFile:
    folder, _, name = table.uri.rstrip("/").rpartition("/")
    try:
        return await _receive(open_source(parse_uri(folder), order), name, path, basket)
    except ArtefactError as error:
        raise ArtefactError(error.refusal.reason, f"table {table.name!r}: {error.refusal.message}") from error


async def _fetch_config(source: Source, basket: _Basket) -> str | None:
    """Return the text of `<uri>/config.pbtxt`, None where there is none."""
    content = bytearray()
    try:
        async with source.open(CONFIG_FILE) as download:
            async for chunk in download.chunks:
                content += chunk
                if len(content) > MAX_CONFIG_BYTES:
                    raise ArtefactError(
                        FailureReason.ARTEFACT_INVALID, f"{CONFIG_FILE} of {basket.what} is larger than 1 MiB"
                    )
    except ArtefactError as error:
        if error.refusal.reason is FailureReason.ARTEFACT_NOT_FOUND:
            return None
        raise
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ArtefactError(
            FailureReason.ARTEFACT_INVALID, f"{CONFIG_FILE} of {basket.what} is not UTF-8"
        ) from error


async def _receive(source: Source, path: str, destination: str, basket: _Basket) -> FetchedFile:
    """Stream one file into the basket's folder and return what arrived."""
    target = basket.folder / destination
    hasher, size, progress = hashlib.sha256(), 0, basket.progress
    before = progress.done
    async with source.open(path) as download:
        _check_room(basket, download.size, before)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:
                async for chunk in download.chunks:
                    size += len(chunk)
                    if before + size > basket.limit_bytes:
                        raise _too_large(basket, before + size)
                    await asyncio.to_thread(_append, file.write, hasher.update, chunk)
                    progress.done = before + size
        except OSError as error:
            raise _not_stored(basket, error) from error
    return FetchedFile(destination, size, hasher.hexdigest())


def _append(write: Callable[[bytes], object], update: Callable[[bytes], object], chunk: bytes) -> None:
    write(chunk)
    update(chunk)


def _check_room(basket: _Basket, size: int | None, before: int) -> None:
    if size is None:
        return
    basket.progress.total = before + size
    if before + size > basket.limit_bytes:
        raise _too_large(basket, before + size)
    free = shutil.disk_usage(basket.folder).free
    if size > free:
        raise ArtefactError(
            FailureReason.FETCH_FAILED,
            f"{basket.what} needs {size} more bytes and the pod's disk has {free} left: free space on the node",
        )


def _too_large(basket: _Basket, size: int) -> ArtefactError:
    return ArtefactError(
        FailureReason.ARTEFACT_TOO_LARGE,
        f"{basket.what} has at least {size} bytes and {basket.limit_bytes} are allowed (models.maxArtefactBytes)",
    )


def _not_stored(basket: _Basket, error: OSError) -> ArtefactError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(basket.folder).free
        return ArtefactError(
            FailureReason.FETCH_FAILED,
            f"the pod's disk is full after {basket.progress.done} bytes of {basket.what} ({free} left): "
            "free space on the node",
        )
    return ArtefactError(
        FailureReason.FETCH_FAILED, f"{basket.what} cannot be stored: {error.strerror or error}"
    )


def _check_pin(pin: str | None, digest: str, what: str, where: str) -> None:
    if pin is not None and pin != digest:
        raise ArtefactError(
            FailureReason.CHECKSUM_MISMATCH,
            f"{what} has sha256 {digest}, {where} is {pin}: correct the pin or publish the artefact again",
        )


def _facts(order: DesiredState, files: list[FetchedFile]) -> Facts:
    return Facts(
        uri=order.uri,
        version=order.version,
        format=order.format,
        plan_hash=plan_hash(order.plan),
        digest=artefact_digest(files),
        files=tuple(StoredFile(path=file.path, size=file.size, sha256=file.sha256) for file in files),
    )
