"""Find the work beside requests that uses FeatureComputes: batches and streams that name one, and backfills of its own."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.api.nearline import describe_stream
from tidegate.api.shared_names import resolve_shared_name


class FeatureJobKind(StrEnum):
    """The field that asks for the work."""

    BATCH = "Batch"
    """spec.batch.features of an Inference."""
    BACKFILL = "Backfill"
    """spec.backfill of the FeatureCompute itself."""
    STREAM = "Stream"
    """spec.nearline.features of an Inference."""


@dataclass(frozen=True, slots=True)
class FeatureJob:
    """A Job that computes features for rows in files, or an Inference that asks for those of messages."""

    feature_compute: ObjectKey
    kind: FeatureJobKind
    owner: ObjectKey
    """The object with the field."""
    rows: str
    """URI of the rows, or the stream with the messages."""
    results: str
    """URI of the folder with the folders of the runs, or the bucket with the results."""


def find_feature_jobs(
    features: Iterable[FeatureCompute], inferences: Iterable[Inference]
) -> tuple[FeatureJob, ...]:
    """Return the backfills of `features`, and the batches and streams of `inferences` that use features."""
    listed = tuple(inferences)
    return (*_find_backfills(features), *_find_batches(listed), *_find_streams(listed))


def _find_backfills(features: Iterable[FeatureCompute]) -> Iterator[FeatureJob]:
    for item in features:
        backfill = item.spec.backfill
        if backfill is not None:
            kind = FeatureJobKind.BACKFILL
            yield FeatureJob(item.key, kind, item.key, backfill.input.uri, backfill.output.uri)


def _find_batches(inferences: Iterable[Inference]) -> Iterator[FeatureJob]:
    for inference in inferences:
        batch = inference.spec.batch
        if batch is not None and batch.features is not None:
            compute = ObjectKey(inference.key.namespace, batch.features.name)
            kind = FeatureJobKind.BATCH
            yield FeatureJob(compute, kind, inference.key, batch.input.uri, batch.output.uri)


def _find_streams(inferences: Iterable[Inference]) -> Iterator[FeatureJob]:
    for inference in inferences:
        nearline = inference.spec.nearline
        if nearline is not None and nearline.features is not None:
            compute = resolve_shared_name(nearline.features, inference.key.namespace)
            rows = describe_stream(nearline.consume)
            results = f"bucket {nearline.produce.store.nats.bucket}"
            yield FeatureJob(compute, FeatureJobKind.STREAM, inference.key, rows, results)
