"""Convert an InferenceService into an Inference, which runs the model, and a ModelAccess, which has the address."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from tidegate.api.fields import Resources
from tidegate.api.inference import ArtefactFormat, Inference
from tidegate.api.meta import API_VERSION, CustomResource, ObjectKey, ObjectMeta
from tidegate.api.model_access import ModelAccess, Route
from tidegate.errors import InvalidSpecError
from tidegate.planning.kserve.inference_service import (
    InferenceService,
    KServePart,
    KServePredictor,
    KServeServer,
)
from tidegate.planning.kserve.model_source import ModelSource, convert_storage_uri
from tidegate.resources.manifest import Manifest

_FORMATS: Final[Mapping[str, ArtefactFormat]] = {
    "onnx": ArtefactFormat.ONNX,
    "tensorrt": ArtefactFormat.TENSORRT,
    "python": ArtefactFormat.PYTHON,
    "triton": ArtefactFormat.ONNX,
}
_MAX_QUEUE_DELAY_MS: Final = 1_000
_ROUTE_TIMEOUT: Final = Route.model_fields["timeout"].default
_SCALER: Final = "scale the Inference with an HPA or KEDA, or with spec.scaling in a ComputePool"
_POOL: Final = "a ComputePool selects the nodes"
_LEFT_OUT: Final[Mapping[str, str]] = {
    "affinity": _POOL,
    "args": "Tidegate starts Triton itself",
    "autoScaling": _SCALER,
    "canary": "add an Inference for the canary, and a weight for it in spec.routes[0].targets",
    "command": "Tidegate starts Triton itself",
    "env": "Tidegate starts Triton itself",
    "explainer": "Tidegate has no explainers",
    "image": "the image is images.triton in the chart's values",
    "logger": "set spec.logging, which samples requests to NATS or to files, but not to an HTTP sink",
    "nodeSelector": _POOL,
    "scaleMetric": _SCALER,
    "scaleMetricType": _SCALER,
    "scaleTarget": _SCALER,
    "tolerations": _POOL,
}
_LABELS_OF_TOOLS: Final = (
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "argocd.argoproj.io/",
)
"""Starts of labels by which a tool finds its objects, to delete those that it did not make."""


@dataclass(frozen=True, slots=True)
class ConvertedService:
    """The objects for an InferenceService, and what they lack."""

    key: ObjectKey
    inference: Manifest
    access: Manifest
    notes: tuple[str, ...]
    """One for each field that is left out, changed, or to be checked, with its path."""


def convert_service(body: Mapping[str, object]) -> ConvertedService:
    """Convert an InferenceService. Raises InvalidSpecError, whose problems name each field that prevents it."""
    service = InferenceService.parse(body)
    predictor = service.spec.predictor
    if "transformer" in service.spec.list_extra_fields():
        message = (
            "has no counterpart: compute its features with a FeatureCompute, or let the transformer call the "
            "ModelAccess; remove the field, and convert again"
        )
        raise InvalidSpecError(message, path="spec.transformer")
    path, server, format_name = _find_server(predictor)
    artefact_format = _convert_format(path, format_name)
    source = _convert_source(path, server, service.metadata.name, artefact_format)
    inference = {
        "apiVersion": API_VERSION,
        "kind": Inference.KIND,
        "metadata": _make_metadata(service.metadata),
        "spec": _make_inference_spec(predictor, server, source, artefact_format),
    }
    access = {
        "apiVersion": API_VERSION,
        "kind": ModelAccess.KIND,
        "metadata": _make_metadata(service.metadata),
        "spec": _make_access_spec(service),
    }
    _check_objects((Inference, inference), (ModelAccess, access))
    notes = (
        *_note_model(path, server, format_name, source),
        *_note_predictor(predictor),
        *_note_extra_fields("spec", service.spec),
        *_note_metadata(service.metadata),
    )
    return ConvertedService(service.key, inference, access, notes)


def _find_server(predictor: KServePredictor) -> tuple[str, KServeServer, str]:
    """Return the path of the model's field, the field, and the name of the format."""
    if predictor.model is not None:
        if predictor.model.model_format is None:
            message = "is missing: it names the format of the artefact"
            raise InvalidSpecError(message, path="spec.predictor.model.modelFormat")
        return "spec.predictor.model", predictor.model, predictor.model.model_format.name
    if old_model := predictor.find_old_model():
        format_name, server = old_model
        return f"spec.predictor.{format_name}", server, format_name
    message = "has no model: containers of your own have no counterpart; serve the model with Triton"
    raise InvalidSpecError(message, path="spec.predictor")


def _convert_format(path: str, format_name: str) -> ArtefactFormat:
    artefact_format = _FORMATS.get(format_name)
    if artefact_format is None:
        message = (
            f"format {format_name} is not served: export the model to ONNX, and set the format to onnx "
            "(docs/how-to/bring-your-model.md)"
        )
        raise InvalidSpecError(message, path=_path_of_format(path))
    return artefact_format


def _path_of_format(path: str) -> str:
    return f"{path}.modelFormat.name" if path.endswith(".model") else path


def _convert_source(
    path: str, server: KServeServer, name: str, artefact_format: ArtefactFormat
) -> ModelSource:
    if server.storage_uri is None:
        message = "is missing: name the model's folder; storage.key and storage.path have no counterpart"
        raise InvalidSpecError(message, path=f"{path}.storageUri")
    try:
        return convert_storage_uri(server.storage_uri, name, artefact_format)
    except ValueError as error:
        raise InvalidSpecError(str(error), path=f"{path}.storageUri") from error


def _make_metadata(metadata: ObjectMeta) -> dict[str, Any]:
    fields = {
        "name": metadata.name,
        "namespace": metadata.namespace,
        "labels": {
            name: value for name, value in metadata.labels.items() if not name.startswith(_LABELS_OF_TOOLS)
        },
    }
    return {name: value for name, value in fields.items() if value}


def _make_inference_spec(
    predictor: KServePredictor, server: KServeServer, source: ModelSource, artefact_format: ArtefactFormat
) -> dict[str, Any]:
    model = {
        "uri": source.uri,
        "version": source.version,
        "revision": source.revision,
        "sha256": source.sha256,
        "format": None if artefact_format is ArtefactFormat.ONNX else artefact_format.value,
    }
    spec: dict[str, Any] = {"model": {name: value for name, value in model.items() if value is not None}}
    spec["replicas"] = _count_replicas(predictor)
    amounts = {**server.resources.requests, **server.resources.limits}
    if resources := {name: str(amounts[name]) for name in ("cpu", "memory") if name in amounts}:
        spec["resources"] = resources
    if predictor.service_account_name:
        spec["serviceAccountName"] = predictor.service_account_name
    if predictor.batcher is not None:
        batching: dict[str, Any] = {"mode": "Fixed"}
        if predictor.batcher.max_batch_size is not None:
            batching["maxBatchSize"] = predictor.batcher.max_batch_size
        if predictor.batcher.max_latency:
            delay_ms = min(predictor.batcher.max_latency, _MAX_QUEUE_DELAY_MS)
            batching["maxQueueDelay"] = f"{delay_ms}ms"
        spec["batching"] = batching
    return spec


def _count_replicas(predictor: KServePredictor) -> int:
    """Return the number of replicas; absent is one at KServe too."""
    return max(1, predictor.min_replicas or 0)


def _make_access_spec(service: InferenceService) -> dict[str, Any]:
    predictor = service.spec.predictor
    route: dict[str, Any] = {"name": "default", "targets": [{"inference": service.metadata.name}]}
    if predictor.timeout:
        route["timeout"] = f"{predictor.timeout}s"
    spec: dict[str, Any] = {"routes": [route]}
    if predictor.container_concurrency:
        limit = predictor.container_concurrency * _count_replicas(predictor)
        spec["protection"] = {"maxConcurrent": limit}
    host = _find_host(service.status.url or "")
    return {"hosts": [host], **spec} if host else spec


def _find_host(url: str) -> str | None:
    """Return the host of the InferenceService's address, and None if it has no address."""
    try:
        return urlsplit(url).hostname
    except ValueError as error:
        message = f'"{url}" is not a URL ({error}): correct or remove it, and convert again'
        raise InvalidSpecError(message, path="status.url") from error


def _check_objects(*objects: tuple[type[CustomResource], Mapping[str, Any]]) -> None:
    """Raise InvalidSpecError if the API server would reject one of the objects."""
    problems: list[str] = []
    for kind, body in objects:
        try:
            kind.parse({**body, "status": {}})
        except InvalidSpecError as error:
            problems += [
                f"would become the invalid {kind.KIND} field {problem}" for problem in error.problems
            ]
    if problems:
        raise InvalidSpecError(problems[0], further_problems=problems[1:])


def _note_model(path: str, server: KServeServer, format_name: str, source: ModelSource) -> Iterator[str]:
    if source.note:
        yield f"{path}.storageUri: {source.note}"
    if format_name == "triton":
        yield f"{_path_of_format(path)}: the format is taken to be ONNX; otherwise set spec.model.format"
    if format_name == "python":
        yield f"{_path_of_format(path)}: set models.allowPython in the chart's values"
    if server.protocol_version == "v1":
        yield f"{path}.protocolVersion: clients of v1 (:predict) must change to v2"
    if server.runtime or server.runtime_version:
        yield f"{path}.runtime: Triton runs the model, in the image images.triton of the chart's values"
    amounts, requests = {**server.resources.requests, **server.resources.limits}, server.resources.requests
    if not amounts:
        defaults = Resources()
        yield (
            f"{path}.resources: absent: spec.resources is {defaults.cpu} CPU and {defaults.memory} then; set what "
            "KServe's inferenceservice-config gives, if it has other defaults"
        )
    for name, amount in amounts.items():
        if name not in ("cpu", "memory"):
            yield (
                f"{path}.resources {name}: {amount}: set spec.placement on a ComputePool of GPU slices, "
                "and remove spec.resources"
            )
        elif str(requests.get(name, amount)) != str(amount):
            yield (
                f"{path}.resources.requests.{name}: {requests[name]} becomes {amount}: requests equal limits here"
            )
    yield from _note_extra_fields(path, server)


def _note_predictor(predictor: KServePredictor) -> Iterator[str]:
    path = "spec.predictor"
    replicas = _count_replicas(predictor)
    if predictor.min_replicas == 0:
        yield f"{path}.minReplicas: 0 becomes 1: a real-time model keeps a replica"
    if predictor.max_replicas is not None and predictor.max_replicas != replicas:
        yield f"{path}.maxReplicas: {predictor.max_replicas}: {_SCALER}"
    if predictor.canary_traffic_percent not in (None, 100):
        yield (
            f"{path}.canaryTrafficPercent: {predictor.canary_traffic_percent}: all requests go to this model; add an "
            "Inference for the previous one with a weight of the rest, or spec.release"
        )
    if predictor.container_concurrency:
        yield (
            f"{path}.containerConcurrency: {predictor.container_concurrency} for each of {replicas} pods: "
            "spec.protection.maxConcurrent is for each gateway"
        )
    if not predictor.timeout:
        yield (
            f"{path}.timeout: absent: KServe waits 60 s (300 s with Knative), a route here {_ROUTE_TIMEOUT}; "
            "set spec.routes[0].timeout for a model that needs longer"
        )
    if predictor.service_account_name:
        yield (
            f"{path}.serviceAccountName: for a cloud's workload identity; for keys, make a Secret and set "
            "spec.model.secretName (docs/reference/artefacts.md#credentials)"
        )
    batcher = predictor.batcher
    if batcher is not None:
        if (batcher.max_latency or 0) > _MAX_QUEUE_DELAY_MS:
            yield f"{path}.batcher.maxLatency: {batcher.max_latency} ms becomes 1 s, the longest maxQueueDelay"
        yield from _note_extra_fields(f"{path}.batcher", batcher)
    yield from _note_extra_fields(path, predictor)


def _note_extra_fields(path: str, part: KServePart) -> Iterator[str]:
    for name in part.list_extra_fields():
        yield f"{path}.{name}: left out: {_LEFT_OUT.get(name, 'it has no counterpart')}"


def _note_metadata(metadata: ObjectMeta) -> Iterator[str]:
    labels = [name for name in metadata.labels if name.startswith(_LABELS_OF_TOOLS)]
    if labels:
        yield f"metadata.labels: left out, as the tool that set them would delete the objects: {', '.join(labels)}"
    annotations = [name for name in metadata.annotations if not name.startswith("kubectl.kubernetes.io/")]
    if annotations:
        yield f"metadata.annotations: left out: {', '.join(annotations)}"
