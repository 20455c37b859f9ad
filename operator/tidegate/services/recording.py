"""Record the demand and the objects of a pool, in the files that `tidegate simulate` reads."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from pathlib import Path

import yaml

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_pool import ComputePool
from tidegate.api.conditions import format_timestamp
from tidegate.api.durations import format_duration
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.errors import PermanentError, TidegateError
from tidegate.kube import kinds
from tidegate.kube.client import KubeClient
from tidegate.kube.port import Manifest
from tidegate.reports.recording import RecordedInference, RecordingReport, SkippedInference
from tidegate.resources.names import POOL_LABEL, to_label_value
from tidegate.services.listing import KindLister
from tidegate.services.objects import not_found_error
from tidegate.services.recorded_day import (
    PoolRecording,
    RecordedObjects,
    RecordedSpan,
    explain_skip,
    make_recorded_objects,
    read_recording,
)
from tidegate.simulation.trace import TIME_COLUMN
from tidegate.telemetry.recorded_rates import PrometheusRecording

_TRACE, _MANIFEST = "trace.csv", "pool.yaml"
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class RecordingRequest:
    """What to record; `overwrite` replaces files of an earlier record."""

    pool: str
    prometheus: str
    span: RecordedSpan
    directory: Path
    overwrite: bool


async def record_pool(client: KubeClient, request: RecordingRequest) -> RecordingReport:
    """Write the trace and the manifests of a pool. Raises TidegateError that names what is missing."""
    _check_absent(request)
    objects, notes = await _read_objects(client, request.pool)
    recording = await read_recording(PrometheusRecording(request.prometheus), objects, request.span)
    report = _make_report(request, recording, notes)
    texts = {_TRACE: _render_trace(recording), _MANIFEST: _render_manifests(report, recording)}
    _write_files(request.directory, texts)
    return report


def _make_report(
    request: RecordingRequest, recording: PoolRecording, notes: tuple[str, ...]
) -> RecordingReport:
    span = request.span
    return RecordingReport(
        pool=request.pool,
        slices=recording.slices,
        nodes=recording.nodes,
        begin=span.begin,
        end=span.end_time,
        step=format_duration(span.step),
        steps=span.count,
        inferences=tuple(
            _report_inference(inference, recording)
            for inference in recording.simulated
            if inference.key in recording.keys
        ),
        offline=len(recording.simulated) - len(recording.keys),
        skipped=tuple(
            SkippedInference(
                inference=str(inference.key),
                reason=explain_skip(inference) or "",
            )
            for inference in recording.skipped
        ),
        notes=notes,
        manifest=str(request.directory / _MANIFEST),
        trace=str(request.directory / _TRACE),
        command=_make_command(request),
    )


def _check_absent(request: RecordingRequest) -> None:
    existing = [path for name in (_TRACE, _MANIFEST) if (path := request.directory / name).exists()]
    if existing and not request.overwrite:
        message = f"{existing[0]} exists: choose another --directory, or replace it with --force"
        raise PermanentError(message)


async def _read_objects(client: KubeClient, name: str) -> tuple[RecordedObjects, tuple[str, ...]]:
    """Return a pool with its Inferences, and what of their load and drain times is unknown, and why."""
    body = await client.get(kinds.COMPUTE_POOL, ObjectKey("", name))
    if body is None:
        raise not_found_error(kinds.COMPUTE_POOL, ObjectKey("", name))
    lister = KindLister(client, ("",))
    inferences = await lister.list_parsed(kinds.INFERENCE, Inference)
    lister.check_readable()
    pods: Sequence[Manifest] = ()
    decisions: Sequence[AllocationDecision] = ()
    notes = list(lister.skipped)
    selector = f"{POOL_LABEL}={to_label_value(name)}"
    try:
        pods = await client.list(kinds.POD, selector=selector)
    except TidegateError as error:
        notes.append(f"load times are those of decisions alone, because pods cannot be listed: {error}")
    try:
        bodies = await client.list(kinds.ALLOCATION_DECISION, selector=selector)
        decisions = tuple(map(AllocationDecision.parse, bodies))
    except TidegateError as error:
        notes.append(f"no drain time is recorded, because allocation decisions cannot be listed: {error}")
    return make_recorded_objects(ComputePool.parse(body), inferences, pods, decisions), tuple(notes)


def _report_inference(inference: Inference, recording: PoolRecording) -> RecordedInference:
    rates, times = recording.rates[inference.key], recording.objects.get_times(inference.key)
    missing = [rate is None for rate in rates]
    return RecordedInference(
        inference=str(inference.key),
        tier=inference.spec.tier,
        load_seconds=times.load_s,
        drain_seconds=times.drain_s,
        missing=sum(missing),
        gaps=sum(is_gap for is_gap, _ in groupby(missing)),
        peak=max((rate for rate in rates if rate is not None), default=0.0),
    )


def _make_command(request: RecordingRequest) -> str:
    trace, manifest = request.directory / _TRACE, request.directory / _MANIFEST
    arguments = ["tidegate", "simulate", str(trace), "-f", str(manifest)]
    length = request.span.end_time - request.span.begin
    if length < _DAY:
        arguments += ["--last", format_duration(length)]
    return shlex.join([*arguments, "--interval", format_duration(request.span.step)])


def _render_trace(recording: PoolRecording) -> str:
    """Return the trace as CSV; a gap is an empty cell, which continues the rate before it."""
    span, rates = recording.span, recording.rates
    keys = sorted(rates)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([TIME_COLUMN, *map(str, keys)])
    for number in range(span.count):
        cells = ("" if (rate := rates[key][number]) is None else f"{rate:.6g}" for key in keys)
        writer.writerow([format_timestamp(span.begin + number * span.step), *cells])
    return text.getvalue()


def _render_manifests(report: RecordingReport, recording: PoolRecording) -> str:
    """Return the manifests as YAML, with the gaps as a comment."""
    comments = [
        f"# Recorded by tidegate record, {format_timestamp(report.begin)} to {format_timestamp(report.end)} every {report.step}.",
        *(
            f"# {item.inference}: {item.missing} of {report.steps} rates are missing, in {item.gaps} gaps."
            for item in report.inferences
            if item.missing
        ),
        *(f"# {item.inference} is skipped: it {item.reason}." for item in report.skipped),
    ]
    return "\n".join([*comments, yaml.safe_dump_all(recording.make_manifests(), sort_keys=False)])


def _write_files(directory: Path, texts: Mapping[str, str]) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        message = f"cannot write to {directory}: {error}"
        raise PermanentError(message) from error
