"""Convert files with InferenceServices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tidegate.api.meta import ObjectKey
from tidegate.errors import InvalidSpecError
from tidegate.planning.kserve.conversion import ConvertedService, convert_service
from tidegate.planning.kserve.inference_service import KSERVE_API_VERSION, InferenceService
from tidegate.reports.conversion import ConversionReport
from tidegate.resources.manifest import Manifest
from tidegate.services.manifests import read_documents


def convert_files(files: Sequence[Path]) -> ConversionReport:
    """Convert the InferenceServices of files, folders, and stdin for `-`.

    Raises PermanentError when a file cannot be read or is no YAML.
    """
    services: list[ConvertedService] = []
    problems: list[str] = []
    skipped: list[str] = []
    for source, body in read_documents(files):
        if body.get("kind") != InferenceService.KIND or body.get("apiVersion") != KSERVE_API_VERSION:
            skipped.append(f"{_describe_document(body)} in {source} is not an InferenceService: left out")
            continue
        try:
            services.append(convert_service(body))
        except InvalidSpecError as error:
            problems += [f"{_describe_document(body)} in {source}: {problem}" for problem in error.problems]
    notes: dict[str, tuple[str, ...]] = {}
    for service in services:
        notes[str(service.key)] = notes.get(str(service.key), ()) + service.notes
    objects: list[Manifest] = [body for service in services for body in (service.inference, service.access)]
    return ConversionReport(
        objects=tuple(objects),
        notes=notes,
        problems=tuple(problems),
        skipped=tuple(skipped),
    )


def _describe_document(body: Mapping[str, Any]) -> str:
    metadata = body.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    key = ObjectKey(str(metadata.get("namespace") or ""), str(metadata.get("name") or "?"))
    return f"{body.get('apiVersion')} {body.get('kind')} {key}"
