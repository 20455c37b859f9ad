"""Record the demand and the objects of a pool, in the files that `tidegate simulate` reads."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from tidegate.api.compute_pool import ComputePool
from tidegate.api.conditions import format_timestamp
from tidegate.api.durations import format_duration
from tidegate.api.inference import Inference, Tier
from tidegate.api.meta import API_VERSION, ObjectKey
from tidegate.errors import PermanentError, TidegateError
from tidegate.kube import kinds
from tidegate.kube.client import KubeClient
from tidegate.kube.port import Manifest
from tidegate.kube.store import key_of
from tidegate.planning.pools.claims import read_assigned_pod
from tidegate.reports.recording import RecordedInference, RecordingReport, SkippedInference
from tidegate.resources.names import (
    INFERENCE_LABEL,
    POOL_LABEL,
    RECORDED_LOAD_ANNOTATION,
    RECORDED_NODES_ANNOTATION,
    RECORDED_SLICES_ANNOTATION,
    to_label_value,
)
from tidegate.services.objects import not_found_error
from tidegate.simulation.trace import TIME_COLUMN
from tidegate.telemetry.recorded_rates import PrometheusRecording

_TRACE, _MANIFEST = "trace.csv", "pool.yaml"
_DAY = timedelta(days=1)

Rates = Mapping[ObjectKey, Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class RecordingRequest:
    """What to record: `count` steps from `begin` on; `overwrite` replaces files of an earlier record."""

    pool: str
    prometheus: str
    begin: datetime
    step: timedelta
    count: int
    directory: Path
    overwrite: bool

    @property
    def end_time(self) -> datetime:
        """Return the end of the last step."""
        return self.begin + self.count * self.step


async def record_pool(client: KubeClient, request: RecordingRequest) -> RecordingReport:
    """Write the trace and the manifests of a pool. Raises TidegateError that names what is missing."""
    _check_absent(request)
    pool, inferences = await _read_objects(client, request.pool)
    skipped = [inference for inference in inferences if _lacks_capacity(inference)]
    simulated = [inference for inference in inferences if not _lacks_capacity(inference)]
    keys = frozenset(inference.key for inference in simulated if inference.spec.tier is not Tier.OFFLINE)
    if not keys:
        message = (
            f"ComputePool {request.pool} has no realtime or nearline Inference with spec.capacity, which tidegate calibrate "
            "measures: there is no demand to record"
        )
        raise PermanentError(message)
    slices = pool.status.slices.healthy - sum(map(_count_slices, skipped))
    if slices <= 0:
        message = f"ComputePool {request.pool} has no healthy slices to simulate"
        raise PermanentError(message)
    loads, notes = await _measure_loads(client, request.pool)
    rates = await PrometheusRecording(request.prometheus).read_rates(
        keys, request.begin, request.count, request.step
    )
    if all(rate is None for steps in rates.values() for rate in steps):
        message = (
            f"Prometheus {request.prometheus} has no rate of the Inferences of ComputePool {request.pool} between "
            f"{format_timestamp(request.begin)} and {format_timestamp(request.end_time)}: check that it scrapes the gateways"
        )
        raise PermanentError(message)
    nodes = max(pool.status.nodes, 1)
    report = RecordingReport(
        pool=request.pool,
        slices=slices,
        nodes=nodes,
        begin=request.begin,
        end=request.end_time,
        step=format_duration(request.step),
        steps=request.count,
        inferences=tuple(
            _report_inference(inference, rates[inference.key], loads.get(inference.key))
            for inference in simulated
            if inference.key in keys
        ),
        offline=len(simulated) - len(keys),
        skipped=tuple(
            SkippedInference(
                inference=str(inference.key),
                reason="has no spec.capacity; measure it with tidegate calibrate",
            )
            for inference in skipped
        ),
        notes=notes,
        manifest=str(request.directory / _MANIFEST),
        trace=str(request.directory / _TRACE),
        command=_make_command(request),
    )
    manifests = _render_manifests(report, pool, simulated, loads)
    _write_files(request.directory, {_TRACE: _render_trace(request, rates), _MANIFEST: manifests})
    return report


def _check_absent(request: RecordingRequest) -> None:
    existing = [path for name in (_TRACE, _MANIFEST) if (path := request.directory / name).exists()]
    if existing and not request.overwrite:
        message = f"{existing[0]} exists: choose another --directory, or replace it with --force"
        raise PermanentError(message)


async def _read_objects(client: KubeClient, name: str) -> tuple[ComputePool, Sequence[Inference]]:
    """Return a pool, and the Inferences that are placed in it, sorted by key."""
    body = await client.get(kinds.COMPUTE_POOL, ObjectKey("", name))
    if body is None:
        raise not_found_error(kinds.COMPUTE_POOL, ObjectKey("", name))
    bodies = await client.list(kinds.INFERENCE)
    placed = [item for item in bodies if (item["spec"].get("placement") or {}).get("pool") == name]
    inferences = sorted(map(Inference.parse, placed), key=lambda inference: inference.key)
    return ComputePool.parse(body), inferences


async def _measure_loads(client: KubeClient, pool: str) -> tuple[Mapping[ObjectKey, float], tuple[str, ...]]:
    """Return the median load time of the Inferences' pods in seconds, and why it is unknown, if it is."""
    try:
        pods = await client.list(kinds.POD, selector=f"{POOL_LABEL}={to_label_value(pool)}")
    except TidegateError as error:
        return {}, (f"no load time is recorded, because pods cannot be listed: {error}",)
    measured: dict[ObjectKey, list[float]] = {}
    for body in pods:
        pod = read_assigned_pod(body)
        if pod is not None and pod.load_s is not None:
            name = body["metadata"]["labels"].get(INFERENCE_LABEL, "")
            measured.setdefault(ObjectKey(key_of(body).namespace, name), []).append(pod.load_s)
    return {key: median(seconds) for key, seconds in measured.items()}, ()


def _lacks_capacity(inference: Inference) -> bool:
    return inference.spec.tier is not Tier.OFFLINE and inference.spec.capacity is None


def _count_slices(inference: Inference) -> int:
    placement = inference.spec.placement
    return inference.status.replicas * (placement.slices if placement is not None else 1)


def _report_inference(
    inference: Inference, rates: Sequence[float | None], load_s: float | None
) -> RecordedInference:
    missing = [rate is None for rate in rates]
    return RecordedInference(
        inference=str(inference.key),
        tier=inference.spec.tier,
        load_seconds=load_s,
        missing=sum(missing),
        gaps=sum(is_gap for is_gap, _ in groupby(missing)),
        peak=max((rate for rate in rates if rate is not None), default=0.0),
    )


def _make_command(request: RecordingRequest) -> str:
    trace, manifest = request.directory / _TRACE, request.directory / _MANIFEST
    arguments = ["tidegate", "simulate", str(trace), "-f", str(manifest)]
    if request.end_time - request.begin < _DAY:
        arguments += ["--last", format_duration(request.end_time - request.begin)]
    return shlex.join([*arguments, "--interval", format_duration(request.step)])


def _render_trace(request: RecordingRequest, rates: Rates) -> str:
    """Return the trace as CSV; a gap is an empty cell, which continues the rate before it."""
    keys = sorted(rates)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([TIME_COLUMN, *map(str, keys)])
    for number in range(request.count):
        cells = ("" if (rate := rates[key][number]) is None else f"{rate:.6g}" for key in keys)
        writer.writerow([format_timestamp(request.begin + number * request.step), *cells])
    return text.getvalue()


def _render_manifests(
    report: RecordingReport,
    pool: ComputePool,
    inferences: Sequence[Inference],
    loads: Mapping[ObjectKey, float],
) -> str:
    """Return the manifests as YAML, with what the cluster measured as annotations, and the gaps as a comment."""
    documents = [
        _make_manifest(
            pool,
            {RECORDED_SLICES_ANNOTATION: str(report.slices), RECORDED_NODES_ANNOTATION: str(report.nodes)},
        )
    ]
    for inference in inferences:
        load_s = loads.get(inference.key)
        annotations = {} if load_s is None else {RECORDED_LOAD_ANNOTATION: f"{load_s:.0f}s"}
        documents.append(_make_manifest(inference, annotations))
    comments = [
        f"# Recorded by tidegate record, {format_timestamp(report.begin)} to {format_timestamp(report.end)} every {report.step}.",
        *(
            f"# {item.inference}: {item.missing} of {report.steps} rates are missing, in {item.gaps} gaps."
            for item in report.inferences
            if item.missing
        ),
        *(f"# {item.inference} is skipped: it {item.reason}." for item in report.skipped),
    ]
    return "\n".join([*comments, yaml.safe_dump_all(documents, sort_keys=False)])


def _make_manifest(resource: ComputePool | Inference, annotations: Mapping[str, str]) -> Manifest:
    key = resource.key
    metadata: dict[str, Any] = {"name": key.name}
    if key.namespace:
        metadata["namespace"] = key.namespace
    if annotations:
        metadata["annotations"] = dict(annotations)
    spec = resource.spec.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    return {"apiVersion": API_VERSION, "kind": resource.KIND, "metadata": metadata, "spec": spec}


def _write_files(directory: Path, texts: Mapping[str, str]) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        message = f"cannot write to {directory}: {error}"
        raise PermanentError(message) from error
