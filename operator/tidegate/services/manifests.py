"""Read manifests of our kinds from files, as `kubectl apply -Rf` would."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import yaml

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.meta import API_VERSION, GROUP, CustomResource, ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.errors import InvalidSpecError, PermanentError

MANIFEST_KINDS: Final[dict[str, type[CustomResource]]] = {
    kind.KIND: kind for kind in (Inference, ModelAccess, FeatureCompute, ComputePool, ComputeOverride)
}
_SERVED_KINDS: Final = frozenset({*MANIFEST_KINDS, AllocationDecision.KIND})
_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})


@dataclass(frozen=True, slots=True)
class RejectedManifest:
    """A manifest of our group that the API server would reject."""

    kind: str
    key: ObjectKey
    messages: Sequence[str]
    """One for each invalid field."""


@dataclass(frozen=True, slots=True)
class Manifests:
    """The manifests of our kinds in some files."""

    objects: Sequence[CustomResource] = ()
    rejected: Sequence[RejectedManifest] = ()
    other_kinds: int = 0
    """The number of documents of other kinds, which are ignored."""


def read_manifests(files: Sequence[Path], namespace: str) -> Manifests:
    """Read files, folders of files, and stdin for `-`.

    `namespace` is used for objects that name none. Raises PermanentError when a file cannot be read or is no YAML.
    """
    objects: list[CustomResource] = []
    refused: list[RejectedManifest] = []
    other_kinds = 0
    for source, body in read_documents(files):
        parsed = _parse_manifest(body, namespace, source)
        if parsed is None:
            other_kinds += 1
        elif isinstance(parsed, RejectedManifest):
            refused.append(parsed)
        else:
            objects.append(parsed)
    return Manifests(objects, refused, other_kinds)


def read_documents(files: Sequence[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each object of files, folders of files, and stdin for `-`, with the file's name.

    Raises PermanentError when a file cannot be read or is no YAML.
    """
    for source, text in _read_texts(files):
        for body in _parse_documents(source, text):
            yield source, body


def _parse_manifest(
    body: Mapping[str, Any], namespace: str, source: str
) -> CustomResource | RejectedManifest | None:
    """Return the object, or why the API server would reject it; None if it is of another kind."""
    kind_name, api_version = str(body.get("kind")), str(body.get("apiVersion") or "")
    kind = MANIFEST_KINDS.get(kind_name)
    raw_metadata = body.get("metadata")
    metadata = {**raw_metadata} if isinstance(raw_metadata, dict) else {}
    if kind is None or kind.NAMESPACED:
        metadata["namespace"] = metadata.get("namespace") or namespace
    key = ObjectKey(str(metadata.get("namespace", "")), str(metadata.get("name", "?")))
    if problem := _find_type_problem(kind_name, api_version):
        return RejectedManifest(kind_name, key, (f"{problem} (in {source})",))
    if kind is None or api_version != API_VERSION:
        return None
    try:
        return kind.parse({**body, "metadata": metadata, "status": {}})
    except InvalidSpecError as error:
        return RejectedManifest(kind.KIND, key, tuple(f"{line} (in {source})" for line in error.problems))


def _find_type_problem(kind: str, api_version: str) -> str:
    """Return why the API server would not accept this type although it looks like one of ours; empty if neither."""
    group = api_version.partition("/")[0]
    if group == GROUP and api_version != API_VERSION:
        return f'apiVersion: "{api_version}" is not served; use {API_VERSION}'
    if group == GROUP and kind not in _SERVED_KINDS:
        similar = get_close_matches(kind, MANIFEST_KINDS, n=1)
        return f'kind: "{kind}" is not in {API_VERSION}; use {" or ".join(similar or MANIFEST_KINDS)}'
    if kind in MANIFEST_KINDS and group != GROUP and (not group or get_close_matches(group, [GROUP])):
        return f'apiVersion: "{api_version}" does not have {kind}; use {API_VERSION}'
    return ""


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
