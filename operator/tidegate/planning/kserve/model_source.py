"""Convert the storageUri of an InferenceService into the fields of `spec.model`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import urlsplit

from tidegate.api.inference import VERSION_PATTERN, ArtefactFormat

_FIRST_VERSION: Final = "1"
_FOLDER_SCHEMES: Final = frozenset({"s3", "gs", "https", "pvc"})
_FILE_NAMES: Final = {
    ArtefactFormat.ONNX: "model.onnx",
    ArtefactFormat.TENSORRT: "model.plan",
    ArtefactFormat.PYTHON: "model.py",
}
_FILE_SUFFIXES: Final = (
    ".onnx",
    ".plan",
    ".engine",
    ".trt",
    ".py",
    ".pt",
    ".pt2",
    ".zip",
    ".tar",
    ".tar.gz",
    ".tgz",
)
"""Ends of the names of files; a folder's name may have a dot too: resnet50-v1.5."""
_AZURE_HOST: Final = re.compile(r"\.(blob|file)\.core\.windows\.net$")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The fields of `spec.model` that say where the artefact is."""

    uri: str
    version: str = _FIRST_VERSION
    revision: str | None = None
    sha256: str | None = None
    note: str = ""
    """What to check or to publish before the Inference is applied; empty if nothing."""


def convert_storage_uri(uri: str, model: str, artefact_format: ArtefactFormat) -> ModelSource:
    """Return where the model with the name `model` is. Raises ValueError if Tidegate does not read this storage."""
    scheme = uri.partition("://")[0]
    if scheme == "hf":
        return _convert_hub(uri)
    if scheme == "oci":
        return _convert_image(uri)
    if scheme not in _FOLDER_SCHEMES:
        message = f'"{uri}" is not readable: copy the model to s3, gs, https, pvc, oci or hf'
        raise ValueError(message)
    if _AZURE_HOST.search(urlsplit(uri).hostname or ""):
        message = (
            f'"{uri}" is Azure storage, which Tidegate does not list: copy the model to s3, gs, https or pvc'
        )
        raise ValueError(message)
    return _convert_folder(uri.rstrip("/"), model, _FILE_NAMES[artefact_format])


def _convert_folder(uri: str, model: str, file_name: str) -> ModelSource:
    if PurePosixPath(urlsplit(uri).path).name.lower().endswith(_FILE_SUFFIXES):
        folder = f"{uri.rpartition('/')[0]}/{model}"
        return ModelSource(
            folder, note=f"names a file: publish it as {folder}/{_FIRST_VERSION}/{file_name} before you apply"
        )
    folder = f"{uri}/{model}"
    return ModelSource(
        folder,
        note=f"uri is the folder of one model: check that {folder}/{_FIRST_VERSION}/{file_name} exists; if the folder has "
        "another name, change uri, and set spec.model.name to the name in requests",
    )


def _convert_hub(uri: str) -> ModelSource:
    repository, _, revision = uri.partition("://")[2].partition(":")
    return ModelSource(
        f"hf://{repository}",
        revision=revision or "main",
        note="allow the hub in the chart's models.allowedHosts",
    )


def _convert_image(uri: str) -> ModelSource:
    """Convert `oci://registry/repository[:tag][@digest]`; the registry may have a port."""
    reference, _, digest = uri.partition("@")
    registry_and_path, colon, tag = reference.rpartition(":")
    if not colon or "/" in tag:
        registry_and_path, tag = reference, "latest"
    is_version = re.fullmatch(VERSION_PATTERN, tag) is not None
    return ModelSource(
        registry_and_path,
        version=tag if is_version else _FIRST_VERSION,
        revision=None if is_version else tag,
        sha256=digest.removeprefix("sha256:") or None,
        note="allow the registry in the chart's models.allowedHosts; in an image, the files below /models count",
    )
