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


def find_used_features(inference: Inference) -> ObjectKey | None:
    """Return the FeatureCompute that a batch or a stream names; None if it names none."""
    batch, nearline, namespace = inference.spec.batch, inference.spec.nearline, inference.key.namespace
    if batch is not None and batch.features is not None:
        return ObjectKey(namespace, batch.features.name)
    if nearline is not None and nearline.features is not None:
        return resolve_shared_name(nearline.features, namespace)
    return None


def list_used_features(inference: Inference) -> tuple[ObjectKey, ...]:
    """Return the FeatureCompute that a batch or a stream names, or nothing."""
    used = find_used_features(inference)
    return () if used is None else (used,)


def find_feature_jobs(
    features: Iterable[FeatureCompute], inferences: Iterable[Inference]
) -> tuple[FeatureJob, ...]:
    """Return the backfills of `features`, and the batches and streams of `inferences` that use features."""
    return (*_find_backfills(features), *_find_users(inferences))


def _find_backfills(features: Iterable[FeatureCompute]) -> Iterator[FeatureJob]:
    for item in features:
        backfill = item.spec.backfill
        if backfill is not None:
            kind = FeatureJobKind.BACKFILL
            yield FeatureJob(item.key, kind, item.key, backfill.input.uri, backfill.output.uri)


def _find_users(inferences: Iterable[Inference]) -> Iterator[FeatureJob]:
    for inference in inferences:
        compute, batch, nearline = (
            find_used_features(inference),
            inference.spec.batch,
            inference.spec.nearline,
        )
        if compute is None:
            continue
        if batch is not None:
            kind = FeatureJobKind.BATCH
            yield FeatureJob(compute, kind, inference.key, batch.input.uri, batch.output.uri)
        elif nearline is not None:
            rows, results = describe_stream(nearline.consume), f"bucket {nearline.produce.store.nats.bucket}"
            yield FeatureJob(compute, FeatureJobKind.STREAM, inference.key, rows, results)
