"""Compare the features of recent rows with those of training, from files that `tidegate features compute` has written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from tidegate.errors import PermanentError
from tidegate.planning.features.column_profile import ColumnProfile, IdCounter, ValueSample
from tidegate.planning.features.drift import TOP_IDS, IdBins, NumberBins, make_number_bins
from tidegate.reports.feature_drift import DriftReport, MissingFeatureReport, report_drift
from tidegate.services.feature_files import (
    FeatureFiles,
    is_integer_type,
    is_number_type,
    open_files,
    parse_default,
)

_SEED: Final = 0
"""Two runs over the same files choose the same bins."""


@dataclass(frozen=True, slots=True)
class DriftRequest:
    """Which files to compare."""

    training: Path
    recent: Path
    features: Sequence[str] = ()
    """Columns to compare; all features, if there is none."""
    ids: Sequence[str] = ()
    """Columns whose numbers only identify something, besides those that the files name."""


def compare_features(request: DriftRequest) -> DriftReport:
    """Compare each feature that both sets have.

    The training set is read twice: its quantiles and frequent ids make the bins. Memory does not grow with the rows.
    Raises PermanentError if files cannot be read, a column holds no numbers, or ids are no whole numbers.
    """
    training, recent = open_files(request.training), open_files(request.recent)
    names = _select_names(request, training, recent)
    both = [name for name in names if name in training.types and name in recent.types]
    for files in (training, recent):
        _check_types(files, both)
    ids = _select_ids(request, training, both)
    for files in (training, recent):
        _check_id_types(files, ids)
    bins = _make_bins(training, both, ids)
    defaults = {name: _find_default(training, name) for name in both}
    profiles = [_make_profiles(files, bins, defaults, ids) for files in (training, recent)]
    return report_drift(
        {name: (profiles[0][name], profiles[1][name]) for name in both},
        missing=tuple(
            MissingFeatureReport(name=name, path=str(files.path))
            for name in names
            for files in (training, recent)
            if name not in files.types
        ),
        training_plans=training.plan_hashes,
        recent_plans=recent.plan_hashes,
    )


def _select_names(request: DriftRequest, training: FeatureFiles, recent: FeatureFiles) -> list[str]:
    names = list(dict.fromkeys(request.features or (*training.columns, *recent.columns)))
    if not names:
        message = (
            f"{training.path} and {recent.path} do not name their features, as files of `tidegate features compute` do: "
            "choose columns with --features"
        )
        raise PermanentError(message)
    for name in names:
        if name not in training.types and name not in recent.types:
            columns = ", ".join(sorted(training.types)) or "none"
            message = f"neither set has a column '{name}'; {training.path} has {columns}"
            raise PermanentError(message)
    return names


def _check_types(files: FeatureFiles, names: Sequence[str]) -> None:
    for name in names:
        for file, kind in files.types[name].items():
            if not is_number_type(kind):
                raise PermanentError(f"{file}: column '{name}' holds {kind}, and numbers are needed")


def _check_id_types(files: FeatureFiles, ids: Iterable[str]) -> None:
    for name in sorted(ids):
        for file, kind in files.types[name].items():
            if not is_integer_type(kind):
                raise PermanentError(f"{file}: column '{name}' holds {kind}, and ids are whole numbers")


def _select_ids(request: DriftRequest, training: FeatureFiles, names: Sequence[str]) -> frozenset[str]:
    for name in request.ids:
        if name not in names:
            raise PermanentError(f"--ids {name}: that is none of the features: {', '.join(names)}")
    declared = {name for name in names if name in training.columns and training.columns[name].is_id}
    return frozenset(request.ids) | declared


def _make_bins(
    training: FeatureFiles, names: Sequence[str], ids: frozenset[str]
) -> Mapping[str, NumberBins | IdBins]:
    random = np.random.default_rng(_SEED)
    samples = {name: ValueSample(random) for name in names if name not in ids}
    counters = {name: IdCounter() for name in names if name in ids}
    for batch in training.read_batches(names, ids):
        if batch.name in counters:
            counters[batch.name].add_values(batch.values.astype(np.int64, copy=False))
        else:
            samples[batch.name].add_values(batch.values.astype(np.float64, copy=False))
    return {
        **{name: make_number_bins(sample.values) for name, sample in samples.items()},
        **{name: IdBins(counter.select_frequent(TOP_IDS)) for name, counter in counters.items()},
    }


def _find_default(training: FeatureFiles, name: str) -> float | None:
    column: Any = training.columns.get(name)
    if column is None or column.default is None:
        return None
    return parse_default(column.default, training.types[name][training.files[0]])


def _make_profiles(
    files: FeatureFiles,
    bins: Mapping[str, NumberBins | IdBins],
    defaults: Mapping[str, float | None],
    ids: frozenset[str],
) -> Mapping[str, ColumnProfile]:
    profiles = {name: ColumnProfile(bins[name], defaults[name]) for name in bins}
    for batch in files.read_batches(list(bins), ids):
        profiles[batch.name].add_batch(
            batch.values, row_count=batch.row_count, missing_count=batch.missing_count
        )
    return profiles
