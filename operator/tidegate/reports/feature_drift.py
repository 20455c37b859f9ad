"""Report how far the features of recent rows have moved away from those of training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from math import isfinite
from typing import Self

import numpy as np

from tidegate.api.meta import ApiModel
from tidegate.planning.features.column_profile import ColumnProfile
from tidegate.planning.features.drift import (
    Counts,
    DriftState,
    IdBins,
    compute_psi,
    estimate_chance_psi,
    exceeds_chance,
    judge_psi,
)
from tidegate.reports.report import Report, align_columns


class ColumnKind(StrEnum):
    """How the values of a feature are compared."""

    NUMBER = "Number"
    """By ten bins that hold equal shares of the training set."""
    ID = "Id"
    """By the twenty most frequent values of the training set, and all others together."""


class ColumnProfileReport(ApiModel):
    """A feature in one set of rows."""

    row_count: int
    value_count: int
    """Without missing values; lists count their elements."""
    missing_share: float
    """Nulls, and numbers that are not finite, as a share of all values."""
    default_share: float | None
    """Values that are the default or padding, as a share of those that are not missing; absent without a default."""
    mean: float | None
    """Absent for ids, without values, and if it exceeds float64, as is the deviation."""
    deviation: float | None
    distinct: int | None
    """Number of different ids; absent for numbers."""
    distinct_exact: bool
    """Whether `distinct` is exact; beyond 65,536 ids it is a lower bound."""

    @classmethod
    def from_profile(cls, profile: ColumnProfile) -> Self:
        """Return the report of a column."""
        is_id, count = isinstance(profile.bins, IdBins), profile.value_count
        has_moments = bool(count) and not is_id
        return cls(
            row_count=profile.row_count,
            value_count=count,
            missing_share=profile.missing_count / max(count + profile.missing_count, 1),
            default_share=None if profile.default is None else profile.default_count / max(count, 1),
            mean=_drop_infinite(profile.mean) if has_moments else None,
            deviation=_drop_infinite(profile.standard_deviation) if has_moments else None,
            distinct=profile.ids.distinct if is_id else None,
            distinct_exact=profile.ids.is_exact,
        )


class DriftBinReport(ApiModel):
    """The shares of a bin in both sets."""

    label: str
    training_share: float
    recent_share: float


class FeatureDriftReport(ApiModel):
    """One feature in both sets."""

    name: str
    kind: ColumnKind
    training: ColumnProfileReport
    recent: ColumnProfileReport
    psi: float | None
    """Population stability index; absent if one of the sets has no values."""
    chance_psi: float | None
    """The index that sets of these sizes have on average if nothing has changed."""
    state: DriftState
    bins: tuple[DriftBinReport, ...]
    """Missing values are a last bin if one of the sets has some."""

    def exceeds_psi(self, limit: float) -> bool:
        """Return whether the index is greater than `limit`, and clearly above what chance gives."""
        if self.psi is None or self.chance_psi is None:
            return False
        return self.psi > limit and exceeds_chance(self.psi, self.chance_psi)


class MissingFeatureReport(ApiModel):
    """A feature that some file of a set does not have."""

    name: str
    path: str
    """The set that lacks it."""


class DriftReport(Report):
    """All features, those that have moved farthest first."""

    training_plans: tuple[str, ...]
    """Hashes of the plans that computed the training set."""
    recent_plans: tuple[str, ...]
    features: tuple[FeatureDriftReport, ...]
    missing: tuple[MissingFeatureReport, ...]

    def list_failures(self, limit: float) -> Iterator[str]:
        """Yield a line for the features with a greater index that chance does not explain, and for those without any."""
        moved = [f"{item.name} ({item.psi:.3f})" for item in self.features if item.exceeds_psi(limit)]
        if moved:
            yield f"the index is above {limit:g}: {', '.join(moved)}"
        empty = [item.name for item in self.features if item.psi is None]
        if empty:
            yield f"there is no index, because a set has no values: {', '.join(empty)}"
        for path in dict.fromkeys(item.path for item in self.missing):
            names = [item.name for item in self.missing if item.path == path]
            yield f"columns are missing in {path}: {', '.join(names)}"

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield a table with `training -> recent` in its cells; `wide` adds the shares of all bins."""
        if self.training_plans != self.recent_plans:
            yield (
                "the sets are of different plans, so a feature may be computed in another way: "
                f"{_format_plans(self.training_plans)} -> {_format_plans(self.recent_plans)}"
            )
        if self.features:
            yield from align_columns(list(self._list_cells()))
        for item in self.missing:
            yield f"missing   {item.name} in {item.path}"
        for feature in self.features if wide else ():
            yield ""
            yield from align_columns(list(_list_bin_cells(feature)))

    def object_names(self) -> Iterator[str]:
        """Yield the features."""
        return (feature.name for feature in self.features)

    def _list_cells(self) -> Iterator[tuple[str, ...]]:
        yield (
            *("FEATURE", "KIND", "ROWS", "DEFAULTS", "MISSING", "MEAN", "STD", "DISTINCT"),
            *("PSI", "BY CHANCE", "STATE"),
        )
        for item in self.features:
            before, after = item.training, item.recent
            yield (
                item.name,
                item.kind.value,
                f"{before.row_count} -> {after.row_count}",
                _format_change(_format_share(before.default_share), _format_share(after.default_share)),
                _format_change(_format_share(before.missing_share), _format_share(after.missing_share)),
                _format_change(_format_number(before.mean), _format_number(after.mean)),
                _format_change(_format_number(before.deviation), _format_number(after.deviation)),
                _format_change(_format_distinct(before), _format_distinct(after)),
                "-" if item.psi is None else f"{item.psi:.3f}",
                "-" if item.chance_psi is None else f"{item.chance_psi:.3f}",
                item.state.value,
            )


def report_drift(
    profiles: Mapping[str, tuple[ColumnProfile, ColumnProfile]],
    *,
    missing: tuple[MissingFeatureReport, ...],
    training_plans: tuple[str, ...],
    recent_plans: tuple[str, ...],
) -> DriftReport:
    """Report features by name, from the profiles of training and recent rows with the same bins."""
    features = [_report_feature(name, *sides) for name, sides in profiles.items()]
    return DriftReport(
        training_plans=training_plans,
        recent_plans=recent_plans,
        features=tuple(sorted(features, key=_sort_key)),
        missing=missing,
    )


def _sort_key(feature: FeatureDriftReport) -> tuple[float, str]:
    return (-(float("inf") if feature.psi is None else feature.psi), feature.name)


def _report_feature(name: str, training: ColumnProfile, recent: ColumnProfile) -> FeatureDriftReport:
    labels, before, after = training.bins.bin_labels, training.bin_counts, recent.bin_counts
    if training.missing_count or recent.missing_count:
        labels = (*labels, "missing")
        before, after = (np.append(side.bin_counts, side.missing_count) for side in (training, recent))
    is_comparable = bool(before.sum() and after.sum())
    psi = compute_psi(before, after) if is_comparable else None
    chance_psi = estimate_chance_psi(before, after) if is_comparable else None
    return FeatureDriftReport(
        name=name,
        kind=ColumnKind.ID if isinstance(training.bins, IdBins) else ColumnKind.NUMBER,
        training=ColumnProfileReport.from_profile(training),
        recent=ColumnProfileReport.from_profile(recent),
        psi=psi,
        chance_psi=chance_psi,
        state=judge_psi(psi, chance_psi),
        bins=tuple(
            DriftBinReport(label=label, training_share=share, recent_share=recent_share)
            for label, share, recent_share in zip(
                labels, _compute_shares(before), _compute_shares(after), strict=True
            )
        ),
    )


def _drop_infinite(value: float) -> float | None:
    return value if isfinite(value) else None


def _compute_shares(counts: Counts) -> list[float]:
    return [int(count) / max(int(counts.sum()), 1) for count in counts]


def _list_bin_cells(feature: FeatureDriftReport) -> Iterator[tuple[str, ...]]:
    yield (feature.name.upper(), "TRAINING", "RECENT")
    for item in feature.bins:
        yield item.label, _format_share(item.training_share), _format_share(item.recent_share)


def _format_plans(hashes: tuple[str, ...]) -> str:
    return ", ".join(plan[:12] for plan in hashes) or "unknown"


def _format_change(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _format_share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _format_distinct(side: ColumnProfileReport) -> str:
    if side.distinct is None:
        return "-"
    return f"{side.distinct}" if side.distinct_exact else f"> {side.distinct}"
