"""Fetch and verify the artefact of a desired state into an empty folder."""

import asyncio
from pathlib import Path

from tidegate_dataplane.agent.artefacts.checksum import FetchedFile, check_pin
from tidegate_dataplane.agent.artefacts.compiled_file import check_compiled
from tidegate_dataplane.agent.artefacts.facts import ArtefactFacts, is_batched, make_facts
from tidegate_dataplane.agent.artefacts.oci import OciSource
from tidegate_dataplane.agent.artefacts.onnx_file import read_onnx
from tidegate_dataplane.agent.artefacts.paths import check_relative_path
from tidegate_dataplane.agent.artefacts.receive import (
    DownloadProgress,
    FetchTarget,
    open_target,
    receive_file,
)
from tidegate_dataplane.agent.artefacts.source import ArtefactSource, OpenSource
from tidegate_dataplane.agent.artefacts.table_convert import (
    ConvertTable,
    convert_in_process,
    convert_tables,
)
from tidegate_dataplane.agent.artefacts.table_fetch import fetch_tables
from tidegate_dataplane.agent.artefacts.uri import parse_uri
from tidegate_dataplane.agent.formats import CODE_FORMATS, MODEL_FILES
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import DesiredState, FailureReason, ModelFormat

MAX_CONFIG_BYTES = 1 << 20
CONFIG_FILE = "config.pbtxt"


async def fetch_artefact(
    order: DesiredState,
    folder: Path,
    open_source: OpenSource,
    progress: DownloadProgress,
    *,
    partial_dir: Path,
    convert: ConvertTable = convert_in_process,
) -> ArtefactFacts:
    """Fetch and verify the artefact of `order` into `folder`, which is empty.

    `partial_dir` is on the same file system as `folder`, and keeps received bytes when an attempt fails.

    Raises:
        ArtefactError: with the reason; only FetchFailed is transient, so only then is another attempt worthwhile.
    """
    if order.format in CODE_FORMATS and not order.allow_python:
        raise ArtefactError(
            FailureReason.FORMAT_NOT_ALLOWED,
            f"format {order.format} runs the artefact's own code and this cluster does not allow it "
            "(models.allowPython)",
        )
    if order.format is ModelFormat.PIPELINE:
        return _pipeline_facts(order)
    target = open_target(order, folder, progress, partial_dir=partial_dir)
    if order.format is ModelFormat.FEATURES:
        facts = await fetch_tables(order, target, open_source)
        check_pin(order.sha256, facts.digest, f"the set of tables of {order.owner}", "the pinned sha256")
        return await convert_tables(order, facts, folder, convert)
    source = open_source(parse_uri(order.uri), order)
    try:
        facts = await _fetch_model(order, source, target)
    finally:
        await asyncio.to_thread(target.parts.remove_scratch)
    check_pin(order.sha256, facts.digest, target.artefact, "spec.model.sha256")
    return facts


async def _fetch_model(order: DesiredState, source: ArtefactSource, target: FetchTarget) -> ArtefactFacts:
    if isinstance(source, OciSource):
        check_pin(order.sha256, await source.fetch_digest(), target.artefact, "spec.model.sha256")
        await source.unpack_layers(target)
    config_text = await _fetch_config(source, target)
    facts = await _FETCHERS[order.format](order, source, target)
    if isinstance(source, OciSource):
        facts = facts.model_copy(update={"digest": await source.fetch_digest()})
    return facts.model_copy(update={"config_text": config_text})


async def _fetch_onnx(order: DesiredState, source: ArtefactSource, target: FetchTarget) -> ArtefactFacts:
    model = await _fetch_model_file(order, source, target)
    onnx = await asyncio.to_thread(read_onnx, target.folder / model.path)
    files = [model]
    for path, needed in onnx.external.items():
        data = await receive_file(source, f"{order.version}/{path}", path, target)
        if data.size < needed:
            raise ArtefactError(
                FailureReason.ARTEFACT_INVALID,
                f"external data file {path} has {data.size} bytes and the model reads {needed}: publish it again",
            )
        files.append(data)
    return make_facts(order, files).model_copy(
        update={
            "inputs": tuple(tensor.spec for tensor in onnx.inputs),
            "outputs": tuple(tensor.spec for tensor in onnx.outputs),
            "batched": is_batched(onnx),
        }
    )


async def _fetch_python(order: DesiredState, source: ArtefactSource, target: FetchTarget) -> ArtefactFacts:
    listed = await source.list(str(order.version))
    paths = listed or (MODEL_FILES[ModelFormat.PYTHON],)
    if MODEL_FILES[ModelFormat.PYTHON] not in paths:
        raise _model_file_missing(order)
    files = [
        await receive_file(
            source, f"{order.version}/{path}", check_relative_path(path, subject="file"), target
        )
        for path in paths
        if "__pycache__" not in path.split("/")
    ]
    return make_facts(order, files)


async def _fetch_compiled(order: DesiredState, source: ArtefactSource, target: FetchTarget) -> ArtefactFacts:
    model = await _fetch_model_file(order, source, target)
    await asyncio.to_thread(check_compiled, target.folder / model.path, order.format)
    return make_facts(order, [model])


_FETCHERS = {
    ModelFormat.ONNX: _fetch_onnx,
    ModelFormat.TORCH_EXPORT: _fetch_compiled,
    ModelFormat.TENSORRT: _fetch_compiled,
    ModelFormat.PYTHON: _fetch_python,
}


async def _fetch_model_file(order: DesiredState, source: ArtefactSource, target: FetchTarget) -> FetchedFile:
    name = MODEL_FILES[order.format]
    try:
        return await receive_file(source, f"{order.version}/{name}", name, target)
    except ArtefactError as error:
        scheme = parse_uri(order.uri).scheme
        if not scheme.traits.has_revisions and error.refusal.reason is FailureReason.ARTEFACT_NOT_FOUND:
            raise _model_file_missing(order) from error
        raise


def _model_file_missing(order: DesiredState) -> ArtefactError:
    name = MODEL_FILES[order.format]
    return ArtefactError(
        FailureReason.ARTEFACT_NOT_FOUND,
        f"there is no {order.uri.rstrip('/')}/{order.version}/{name}; "
        f"an artefact of format {order.format} must be at <uri>/<version>/{name}, and the version must be a number",
    )


def _pipeline_facts(order: DesiredState) -> ArtefactFacts:
    """Return the facts of a pipeline, which consists of its plan: there is nothing to fetch."""
    plan = order.pipeline
    if plan is None:
        raise ArtefactError(FailureReason.ARTEFACT_INVALID, f"{order.owner} orders a pipeline without a plan")
    facts = make_facts(order, [])
    return facts.model_copy(update={"inputs": plan.inputs, "outputs": plan.outputs, "batched": True})


async def _fetch_config(source: ArtefactSource, target: FetchTarget) -> str | None:
    """Return the text of `<uri>/config.pbtxt`; None if there is none."""
    content = bytearray()
    try:
        async with source.open(CONFIG_FILE) as download:
            async for chunk in download.chunks:
                content += chunk
                if len(content) > MAX_CONFIG_BYTES:
                    raise ArtefactError(
                        FailureReason.ARTEFACT_INVALID,
                        f"{CONFIG_FILE} of {target.artefact} is larger than 1 MiB",
                    )
    except ArtefactError as error:
        if error.refusal.reason is FailureReason.ARTEFACT_NOT_FOUND:
            return None
        raise
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ArtefactError(
            FailureReason.ARTEFACT_INVALID, f"{CONFIG_FILE} of {target.artefact} is not UTF-8"
        ) from error
