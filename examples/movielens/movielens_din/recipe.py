"""The recipe from end to end: data, tables and events, features, training, export, check, publication."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from movielens_din import din, export, publish
from movielens_din.archive import sha256_of
from movielens_din.data import MovieLens, TimeSplit, split_by_time
from movielens_din.din import Architecture
from movielens_din.events import EVENTS, write_events
from movielens_din.features import Inputs, OfflineFeatures
from movielens_din.metrics import area_under_curve
from movielens_din.publish import VersionReport
from movielens_din.tables import write_tables
from movielens_din.training import Training

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that training a version needs; the same for all versions."""

    output: Path
    split: TimeSplit
    plan_hash: str
    architecture: Architecture
    train_inputs: Inputs
    test_inputs: Inputs


def prepare(data: MovieLens, manifest: Path, output: Path) -> Prepared:
    """Writes tables and events, and computes the inputs of all rows by the FeatureCompute of `manifest`.

    Each row has the features of the moment before its rating, from all events until then: what was served, or would
    have been.
    """
    split = split_by_time(data.ratings)
    write_tables(output / "tables", data.users, data.items)
    write_events(output / EVENTS, data.ratings)
    features = OfflineFeatures.compile(manifest, output / "tables", output / EVENTS)
    train_inputs = features.compute(split.train)
    return Prepared(
        output=output,
        split=split,
        plan_hash=features.plan.hash,
        architecture=features.make_architecture(train_inputs),
        train_inputs=train_inputs,
        test_inputs=features.compute(split.test),
    )


def training_of(version: str) -> Training:
    """Version 1 is one quick pass over the data; every later one is longer and starts from another seed."""
    return Training(seed=int(version), epochs=1 if version == "1" else 2)


def make_version(prepared: Prepared, version: str, progress: Progress) -> VersionReport:
    """Trains, exports, checks and writes one version.

    Raises ExportError when the graph is not the trained function.
    """
    training = training_of(version)
    started = time.monotonic()
    rows = len(prepared.split.train)
    progress(
        f"version {version}: training on {rows:,} ratings, {training.epochs} epochs, seed {training.seed}"
    )
    parameters = din.train(
        prepared.architecture, training, prepared.train_inputs, prepared.split.train.labels
    )
    metadata = {"tidegate.version": version, "tidegate.planHash": prepared.plan_hash}
    model = export.to_onnx(prepared.architecture, parameters, metadata).SerializeToString(deterministic=True)
    difference = export.largest_difference(model, prepared.architecture, parameters, prepared.test_inputs)
    seconds = time.monotonic() - started
    scores = export.run_onnx(model, prepared.test_inputs)
    auc = area_under_curve(prepared.split.test.labels, scores)
    publish.write_held_out(prepared.output, prepared.split.test, {version: scores})
    path = publish.write_version(prepared.output, version, model)
    report = VersionReport(version, sha256_of(path), auc, difference, seconds)
    publish.write_report(prepared.output, report)
    progress(
        f"version {version}: AUC {auc:.4f} on {len(scores):,} later ratings; ONNX and jax differ by "
        f"{difference:.1e} at most; {seconds:.1f} s; sha256 {report.sha256}"
    )
    return report
