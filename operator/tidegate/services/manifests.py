"""Read manifests of our kinds from files, as `kubectl apply -Rf` would."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.meta import API_VERSION, CustomResource, ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.errors import InvalidSpecError, PermanentError

MANIFEST_KINDS: Final[dict[str, type[CustomResource]]] = {
    kind.KIND: kind for kind in (Inference, ModelAccess, FeatureCompute, ComputePool, ComputeOverride)
}
_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})


@dataclass(frozen=True, slots=True)
class RejectedManifest:
    """A manifest of one of our kinds that the API server would reject."""

    kind: str
    key: ObjectKey
    message: str


@dataclass(frozen=True, slots=True)
class Manifests:
    """The manifests of our kinds in some files."""

    objects: Sequence[CustomResource] = ()
    rejected: Sequence[RejectedManifest] = ()
    other_kinds: int = 0
    """The number of documents of other kinds, which are ignored."""


def read_manifests(files: Sequence[Path], namespace: str) -> Manifests:
    """Read files, folders of files, and stdin for `-`.

    `namespace` is the one of objects that name none. Raises PermanentError when a file cannot be read or is no YAML.
    """
    objects: list[CustomResource] = []
    refused: list[RejectedManifest] = []
    other_kinds = 0
    for source, text in _read_texts(files):
        for body in _parse_documents(source, text):
            kind = (
                MANIFEST_KINDS.get(str(body.get("kind"))) if body.get("apiVersion") == API_VERSION else None
            )
            if kind is None:
                other_kinds += 1
                continue
            raw_metadata = body.get("metadata")
            metadata = {**raw_metadata} if isinstance(raw_metadata, dict) else {}
            if kind.NAMESPACED:
                metadata["namespace"] = metadata.get("namespace") or namespace
            key = ObjectKey(str(metadata.get("namespace", "")), str(metadata.get("name", "?")))
            try:
                objects.append(kind.parse({**body, "metadata": metadata, "status": {}}))
            except InvalidSpecError as error:
                refused.append(RejectedManifest(kind.KIND, key, f"{error} (in {source})"))
    return Manifests(objects, refused, other_kinds)


def _read_texts(files: Sequence[Path]) -> Iterator[tuple[str, str]]:
    for file in files:
        if str(file) == "-":
            yield "stdin", sys.stdin.read()
            continue
        try:
            paths = sorted(path for path in file.rglob("*") if path.suffix in _SUFFIXES)
            for path in paths if file.is_dir() else (file,):
                yield str(path), path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            message = f"cannot read {file}: {error}"
            raise PermanentError(message) from error


def _parse_documents(source: str, text: str) -> Iterator[dict[str, Any]]:
    try:
        for document in yaml.safe_load_all(text):
            if isinstance(document, dict):
                listed = document.get("items") if document.get("kind") == "List" else None
                bodies = listed if isinstance(listed, list) else [document]
                yield from (body for body in bodies if isinstance(body, dict))
    except yaml.YAMLError as error:
        message = f"{source} is no YAML: {error}"
        raise PermanentError(message) from error
