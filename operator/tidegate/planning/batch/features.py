"""Resolve the features of a batch or a backfill into what its pods compute, or say which field keeps it from that."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.api.batch import BatchColumn, BatchFeatureSource, BatchSpec
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.quantities import parse_quantity
from tidegate.api.reasons import Reason
from tidegate.errors import InvalidSpecError
from tidegate.planning.features.feature_plan import compile_plan
from tidegate.planning.inference.serving_status import PlanRefusal
from tidegate.resources.batch import find_shard_memory
from tidegate.resources.batch_features import ShardFeatures
from tidegate.resources.slices import SliceResources
from tidegate_dataplane.contract import BATCH_PATH, TABLE_SCHEMES, BatchFeatures, FeaturePlan, find_scheme

_PATH: Final = f"{BATCH_PATH}.features"


def resolve_features(
    inference: Inference, batch: BatchSpec, compute: FeatureCompute | None
) -> ShardFeatures | PlanRefusal | None:
    """Return the features of a batch with `compute`, the FeatureCompute of that name; None if the batch has none."""
    features = batch.features
    if features is None:
        return None
    if compute is None:
        message = (
            f"{_PATH}.name: FeatureCompute {features.name} does not exist in namespace {inference.metadata.namespace}: create it, or "
            "correct the name"
        )
        return PlanRefusal(Reason.TARGET_NOT_FOUND, message, stalled=False)
    try:
        plan = compile_plan(compute)
    except InvalidSpecError as error:
        # Its spec may be mended, and an object whose features it shares may come, at any time.
        message = f"{_PATH}.name: FeatureCompute {features.name}: {error}; the run waits"
        return PlanRefusal(Reason.TARGET_NOT_READY, message, stalled=False)
    rows = FeatureRows(
        path=_PATH,
        input_path=f"{BATCH_PATH}.input",
        compute=compute,
        event_time=features.event_time,
        sources=features.sources,
        columns=batch.input.columns,
    )
    problem = next(find_row_problems(rows, plan), None)
    if problem is not None:
        return PlanRefusal(Reason.PLAN_INVALID, problem)
    return ShardFeatures(
        rows.make_order(plan), compute.spec.resources.memory, compute.spec.table_storage or ""
    )


def refuse_memory(features: ShardFeatures, slices: SliceResources | None) -> PlanRefusal | None:
    """Return why a pod's slices have too little memory for its features; None if they suffice, or without a pool."""
    available = None if slices is None else find_shard_memory(slices)
    if available is None or parse_quantity(features.memory) <= available:
        return None
    title = f"FeatureCompute {features.order.compute}"
    message = (
        f"{_PATH}.name: each pod needs the {features.memory} of {title} (its spec.resources.memory), and its slices have "
        f"{available // (1 << 20)}Mi for features: raise spec.placement.slices, or lower the memory of {title}"
    )
    return PlanRefusal(Reason.PLAN_INVALID, message)


@dataclass(frozen=True, slots=True)
class FeatureRows:
    """The fields of a spec that say how features are computed for rows of files."""

    path: str
    """Where the fields are, like `spec.batch.features`."""
    input_path: str
    """Where the columns are mapped, like `spec.batch.input`."""
    compute: FeatureCompute
    event_time: str | None
    sources: Sequence[BatchFeatureSource]
    columns: Sequence[BatchColumn]

    @property
    def compute_title(self) -> str:
        """Return the FeatureCompute as messages name it."""
        return f"FeatureCompute {self.compute.metadata.name}"

    def make_order(self, plan: FeaturePlan) -> BatchFeatures:
        """Return what the pods compute."""
        return BatchFeatures(
            compute=self.compute.metadata.name,
            plan=plan,
            event_time=self.event_time or "",
            sources=self.locate_sources(plan),
        )

    def locate_sources(self, plan: FeaturePlan) -> dict[str, str]:
        """Return the URI of each table and stream of the plan that has one."""
        named = {source.name: source.uri for source in self.sources}
        uris = {table.name: table.uri for table in plan.tables} | named
        read = {table.name for table in plan.tables} | {stream.name for stream in plan.streams}
        return {name: uri for name, uri in uris.items() if name in read}


def find_row_problems(rows: FeatureRows, plan: FeaturePlan) -> Iterator[str]:
    """Yield what does not fit, with the path of the field."""
    declared = [source.name for source in rows.compute.spec.sources]
    for source in rows.sources:
        if source.name not in declared:
            names = ", ".join(declared) or "none"
            yield f"{rows.path}.sources[{source.name}]: {rows.compute_title} has no such source; it has {names}"
    uris = rows.locate_sources(plan)
    for stream in plan.streams:
        if stream.name not in uris:
            yield (
                f"{rows.path}.sources: {rows.compute_title} reads events of stream {stream.name}: add it, with the URI of its events"
            )
    for table in plan.tables:
        if find_scheme(uris[table.name]) not in TABLE_SCHEMES:
            yield (
                f"{rows.path}.sources: table {table.name} of {rows.compute_title} is at {table.uri}, which Jobs do not read: add it, with "
                "the URI of a copy"
            )
    if plan.streams and rows.event_time is None:
        yield f"{rows.path}.eventTime: {rows.compute_title} reads events: name the column with the time of each row"
    if rows.event_time is not None and not plan.streams:
        yield f"{rows.path}.eventTime: no feature of {rows.compute_title} reads events, so every row gets the same at any time: remove it"
    yield from _find_clashes(rows, plan)


def _find_clashes(rows: FeatureRows, plan: FeaturePlan) -> Iterator[str]:
    """Yield columns of the table that have the name of a feature, so that the name would mean two things."""
    outputs = {output.name for output in plan.outputs}
    renamed = {mapping.input: mapping.column for mapping in rows.columns}
    for name, column in renamed.items():
        path = f"{rows.input_path}.columns[{name}]"
        if name in outputs:
            yield f"{path}: {name} is a feature of {rows.compute_title}, which computes it: remove it"
        if column in outputs:
            yield f"{path}.column: {column} is also a feature of {rows.compute_title}: rename the column"
    needed = {renamed.get(spec.name, spec.name) for spec in plan.inputs} | {rows.event_time or ""}
    for column in sorted(needed & outputs):
        yield (
            f"{rows.path}: the rows need a column {column}, which is also a feature of {rows.compute_title}: rename the "
            f"column, and map it by {rows.input_path}.columns"
        )
