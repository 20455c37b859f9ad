"""Find the Jobs that compute the features of FeatureComputes: batches that name one, and backfills of its own."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey


class FeatureJobKind(StrEnum):
    """The field that asks for the Job."""

    BATCH = "Batch"
    """spec.batch.features of an Inference."""
    BACKFILL = "Backfill"
    """spec.backfill of the FeatureCompute itself."""


@dataclass(frozen=True, slots=True)
class FeatureJob:
    """A Job that computes all features of a FeatureCompute for rows in files."""

    feature_compute: ObjectKey
    kind: FeatureJobKind
    owner: ObjectKey
    """The object with the field."""
    rows: str
    """URI of the rows."""
    results: str
    """URI of the folder with the folders of the runs."""


def find_feature_jobs(
    features: Iterable[FeatureCompute], inferences: Iterable[Inference]
) -> tuple[FeatureJob, ...]:
    """Return the backfills of `features`, and the batches of `inferences` that compute features."""
    return (*_find_backfills(features), *_find_batches(inferences))


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
