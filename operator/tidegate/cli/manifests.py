"""Reads manifests of our kinds from files, as `kubectl apply -Rf` would."""

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
from tidegate.api.meta import API_VERSION, ObjectKey, Resource
from tidegate.api.model_access import ModelAccess
from tidegate.errors import InvalidSpecError, PermanentError

KINDS: Final[dict[str, type[Resource]]] = {
    kind.KIND: kind for kind in (Inference, ModelAccess, FeatureCompute, ComputePool, ComputeOverride)
}
_ENDINGS: Final = frozenset({".yaml", ".yml", ".json"})


@dataclass(frozen=True, slots=True)
class Refused:
    """A manifest of one of our kinds that the API server would not take."""

    kind: str
    key: ObjectKey
    message: str


@dataclass(frozen=True, slots=True)
class Manifests:
    """What files have of our kinds."""

    objects: Sequence[Resource]
    refused: Sequence[Refused]
    others: int
    """Documents of other kinds, which were left aside."""


def read_manifests(files: Sequence[Path], namespace: str) -> Manifests:
    """Reads files, folders of them, and stdin for `-`; `namespace` is that of objects which name none.

    Raises PermanentError when one cannot be read or is no YAML.
    """
    objects: list[Resource] = []
    refused: list[Refused] = []
    others = 0
    for where, text in _texts(files):
        for body in _documents(where, text):
            kind = KINDS.get(str(body.get("kind"))) if body.get("apiVersion") == API_VERSION else None
            if kind is None:
                others += 1
                continue
            given = body.get("metadata")
            metadata = {**given} if isinstance(given, dict) else {}
            if kind.NAMESPACED:
                metadata["namespace"] = metadata.get("namespace") or namespace
            key = ObjectKey(str(metadata.get("namespace", "")), str(metadata.get("name", "?")))
            try:
                objects.append(kind.parse({**body, "metadata": metadata, "status": {}}))
            except InvalidSpecError as error:
                refused.append(Refused(kind.KIND, key, f"{error} (in {where})"))
    return Manifests(objects, refused, others)


def _texts(files: Sequence[Path]) -> Iterator[tuple[str, str]]:
    for file in files:
        if str(file) == "-":
            yield "stdin", sys.stdin.read()
            continue
        try:
            within = sorted(each for each in file.rglob("*") if each.suffix in _ENDINGS)
            for each in within if file.is_dir() else (file,):
                yield str(each), each.read_text()
        except (OSError, UnicodeDecodeError) as error:
            message = f"cannot read {file}: {error}"
            raise PermanentError(message) from error


def _documents(where: str, text: str) -> Iterator[dict[str, Any]]:
    try:
        for document in yaml.safe_load_all(text):
            if isinstance(document, dict):
                listed = document.get("items") if document.get("kind") == "List" else None
                within = listed if isinstance(listed, list) else [document]
                yield from (each for each in within if isinstance(each, dict))
    except yaml.YAMLError as error:
        message = f"{where} is no YAML: {error}"
        raise PermanentError(message) from error
