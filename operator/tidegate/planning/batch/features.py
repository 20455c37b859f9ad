"""Resolve the FeatureCompute that a batch names into what its pods compute, or say which field keeps it from that."""

from collections.abc import Iterator
from typing import Final

from tidegate.api.batch import BatchFeaturesSpec, BatchSpec
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
from tidegate_dataplane.contract import TABLE_SCHEMES, BatchFeatures, FeaturePlan, find_scheme

_PATH: Final = "spec.batch.features"


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
        message = f"{_PATH}.name: FeatureCompute {features.name}: {error}"
        return PlanRefusal(Reason.PLAN_INVALID, message)
    problem = next(_find_problems(batch, features, compute, plan), None)
    if problem is not None:
        return PlanRefusal(Reason.PLAN_INVALID, problem)
    order = BatchFeatures(
        compute=features.name,
        plan=plan,
        event_time=features.event_time or "",
        sources=_locate_sources(features, plan),
    )
    return ShardFeatures(order, compute.spec.resources.memory)


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


def _locate_sources(features: BatchFeaturesSpec, plan: FeaturePlan) -> dict[str, str]:
    """Return the URI of each table and stream of the plan that has one."""
    named = {source.name: source.uri for source in features.sources}
    uris = {table.name: table.uri for table in plan.tables} | named
    read = {table.name for table in plan.tables} | {stream.name for stream in plan.streams}
    return {name: uri for name, uri in uris.items() if name in read}


def _find_problems(
    batch: BatchSpec, features: BatchFeaturesSpec, compute: FeatureCompute, plan: FeaturePlan
) -> Iterator[str]:
    """Yield what does not fit, with the path of the field."""
    title = f"FeatureCompute {features.name}"
    declared = [source.name for source in compute.spec.sources]
    for source in features.sources:
        if source.name not in declared:
            names = ", ".join(declared) or "none"
            yield f"{_PATH}.sources[{source.name}]: {title} has no such source; it has {names}"
    uris = _locate_sources(features, plan)
    for stream in plan.streams:
        if stream.name not in uris:
            yield f"{_PATH}.sources: {title} reads events of stream {stream.name}: add it, with the URI of its events"
    for table in plan.tables:
        if find_scheme(uris[table.name]) not in TABLE_SCHEMES:
            yield (
                f"{_PATH}.sources: table {table.name} of {title} is at {table.uri}, which batches do not read: add it, with the "
                "URI of a copy"
            )
    if plan.streams and features.event_time is None:
        yield f"{_PATH}.eventTime: {title} reads events: name the column with the time of each row"
    if features.event_time is not None and not plan.streams:
        yield f"{_PATH}.eventTime: no feature of {title} reads events, so every row gets the same at any time: remove it"
    yield from _find_clashes(batch, features, plan)


def _find_clashes(batch: BatchSpec, features: BatchFeaturesSpec, plan: FeaturePlan) -> Iterator[str]:
    """Yield columns of the table that have the name of a feature, so that the name would mean two things."""
    outputs = {output.name for output in plan.outputs}
    renamed = {mapping.input: mapping.column for mapping in batch.input.columns}
    for name, column in renamed.items():
        path = f"spec.batch.input.columns[{name}]"
        if name in outputs:
            yield f"{path}: {name} is a feature of FeatureCompute {features.name}, which computes it: remove it"
        if column in outputs:
            yield f"{path}.column: {column} is also a feature of FeatureCompute {features.name}: rename the column"
    needed = {renamed.get(spec.name, spec.name) for spec in plan.inputs} | {features.event_time or ""}
    for column in sorted(needed & outputs):
        yield (
            f"{_PATH}: the rows need a column {column}, which is also a feature of FeatureCompute {features.name}: rename the "
            "column, and map it by spec.batch.input.columns"
        )
