"""Explain features of one FeatureCompute: what each is made of, how current that is, and what reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from tidegate.api.conditions import ConditionType
from tidegate.api.feature_compute import Feature, FeatureCompute, FeatureSource
from tidegate.api.meta import ApiModel
from tidegate.errors import InvalidSpecError
from tidegate.planning.features.freshness import format_lag
from tidegate.planning.features.last_definitions import compile_features, resolve_if_usable
from tidegate.planning.features.lineage import (
    LineageKind,
    LineageStep,
    index_operations,
    list_source_names,
    trace_readers,
    trace_reads,
)
from tidegate.planning.features.operation_text import (
    list_parameters,
    summarize_declared,
    summarize_operation,
)
from tidegate.planning.features.shared_features import FindFeatures
from tidegate.planning.features.table_freshness import format_loaded_table
from tidegate.reports.feature_usage import (
    FeatureJobReport,
    FeatureUsage,
    ModelUseReport,
    PipelineProblemReport,
    report_problems,
)
from tidegate.reports.report import Report, align_columns, format_name
from tidegate.reports.shared import ConditionReport
from tidegate_dataplane.contract import FeaturePlan

_SHOWN_CONDITIONS = (ConditionType.PLAN_COMPILED, ConditionType.SOURCES_READY, ConditionType.FRESH)


class LineageStepReport(ApiModel):
    """One line of a tree, from its root to its leaves."""

    depth: int
    """From 1; a step is below the last one before it with a smaller depth."""
    kind: LineageKind
    reference: str
    """As in the spec, like `clicks.click`."""
    operation: str
    """The operation of a feature; empty for all other kinds."""
    repeated: bool
    """Whether the feature is in the tree already, and what is below it with it."""


class FeatureLineage(ApiModel):
    """One feature with all that it is made of, and all that reads it."""

    name: str
    operation: str
    parameters: tuple[str, ...]
    dtype: str | None
    """Absent if the plan does not compile, as is the shape."""
    shape: tuple[int, ...] | None
    reads: tuple[LineageStepReport, ...]
    read_by: tuple[LineageStepReport, ...]
    """Features of the same FeatureCompute."""
    shared_as: tuple[str, ...]
    """Features of other FeatureComputes that are this one, like `feed/home.age`."""
    taken_by_models: tuple[ModelUseReport, ...]
    """Models that take the feature itself, then those that take a feature which reads it, then those of `shared_as`."""
    sources: tuple[str, ...]
    """Names of the tables and streams that it is made of."""


class FeatureSourceReport(ApiModel):
    """A table or a stream of the explained features."""

    name: str
    kind: LineageKind
    entity: str
    address: str
    """URI of the table; subject or topic of the stream, and its broker."""
    parameters: tuple[str, ...]
    """How events are stored, or the pinned digest of the table, or how it is refreshed."""
    lag_s: int | None
    """Of a stream that replicas serve from, as in status.watermarks; absent if none has reported it."""
    refused_events: int | None
    refreshed: bool
    """Whether it is a table with refresh."""
    keys: int | None
    """Of a table with refresh that replicas serve from, as in status.tables; absent until a replica has counted them."""
    loaded_at: datetime | None
    """Of a table with refresh that replicas serve from; absent if none has reported it."""

    def format_state(self) -> str:
        """Format how current a stream or a table with refresh is; `-` for other tables."""
        if self.loaded_at is not None:
            return format_loaded_table(self.loaded_at, self.keys)
        if self.kind is not LineageKind.STREAM and not self.refreshed:
            return "-"
        if self.lag_s is None:
            return "not reported"
        refused = f", {self.refused_events:,} or more refused" if self.refused_events else ""
        return f"lags by {format_lag(self.lag_s)}{refused}"


class FeatureExplanation(Report):
    """Features of one FeatureCompute."""

    feature_compute: str
    """Namespace and name."""
    plan_hash: str | None
    """Hash of the plan of this spec; absent if it does not compile."""
    served_plan_hash: str | None
    """status.planHash; absent before the controllers have compiled a plan, and for a manifest."""
    problem: str
    """Why the plan does not compile, or only with the last definition of a shared feature; empty if it does."""
    conditions: tuple[ConditionReport, ...]
    """PlanCompiled, SourcesReady and Fresh, as far as the object has them."""
    features: tuple[FeatureLineage, ...]
    sources: tuple[FeatureSourceReport, ...]
    jobs: tuple[FeatureJobReport, ...]
    """Batches and backfills, which compute all features of the FeatureCompute."""
    pipeline_problems: tuple[PipelineProblemReport, ...]
    usage_known: bool
    """Whether the ModelAccesses and the Inferences with their status could be read; if not, no model is listed."""
    unread_namespaces: tuple[str, ...]
    """Namespaces that the FeatureCompute is shared with and whose models and Jobs are not listed."""
    skipped: tuple[str, ...]
    """What could not be read, and why."""

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield the plan, a tree for each feature, and the sources; `wide` adds healthy conditions."""
        yield f"featurecompute/{self.feature_compute}: {self._format_plan()}"
        for condition in self.conditions:
            if wide or not condition.healthy:
                yield f"  {condition.format_line()}"
        for feature in self.features:
            yield ""
            models_known = self.usage_known and not self.pipeline_problems
            yield from _render_feature(feature, models_known=models_known)
        if self.sources:
            yield ""
            yield from align_columns(list(_list_source_cells(self.sources)))
        if self.jobs or self.pipeline_problems or self.unread_namespaces or self.skipped:
            yield ""
        for job in self.jobs:
            yield job.format_text()
        for pipeline in self.pipeline_problems:
            yield pipeline.format_text()
        if self.unread_namespaces:
            yield f"shared with {', '.join(self.unread_namespaces)}: what uses it there is unknown without -A"
        for reason in self.skipped:
            yield f"left out   {reason}"

    def object_names(self) -> Iterator[str]:
        """Yield the FeatureCompute."""
        yield format_name(FeatureCompute.KIND, self.feature_compute.rpartition("/")[2])

    def _format_plan(self) -> str:
        if self.plan_hash is None:
            return f"the plan does not compile: {self.problem}"
        if self.served_plan_hash in {None, self.plan_hash}:
            return f"plan {self.plan_hash}"
        return f"plan {self.plan_hash}, and the cluster has compiled {self.served_plan_hash}"


def explain_features(
    item: FeatureCompute,
    explained: Sequence[Feature],
    usage: FeatureUsage,
    find: FindFeatures,
    *,
    skipped: Sequence[str] = (),
) -> FeatureExplanation:
    """Explain some features of `item`, from the object and the pipelines that call it.

    `find` returns the FeatureComputes that share features with it.
    """
    plan: FeaturePlan | None = None
    problem = ""
    try:
        compiled = compile_features(item, find)
    except InvalidSpecError as error:
        item, problem = resolve_if_usable(item, find), str(error)
    else:
        item, plan = compiled.features, compiled.plan
        problem = "" if compiled.outdated is None else str(compiled.outdated)
    operations = index_operations(item.spec)
    lineages = tuple(_trace_feature(item, operations[feature.name], plan, usage) for feature in explained)
    names = {name for lineage in lineages for name in lineage.sources}
    return FeatureExplanation(
        feature_compute=str(item.key),
        plan_hash=None if plan is None else plan.hash,
        served_plan_hash=item.status.plan_hash,
        problem=problem,
        conditions=tuple(
            ConditionReport.from_condition(condition)
            for condition in item.status.conditions
            if condition.type in _SHOWN_CONDITIONS
        ),
        features=lineages,
        sources=tuple(_report_source(item, source) for source in item.spec.sources if source.name in names),
        jobs=usage.report_jobs(item.key),
        pipeline_problems=report_problems(usage.list_pipelines(item.key)),
        usage_known=usage.is_known,
        unread_namespaces=usage.list_unread(item),
        skipped=tuple(skipped),
    )


def _trace_feature(
    item: FeatureCompute, feature: Feature, plan: FeaturePlan | None, usage: FeatureUsage
) -> FeatureLineage:
    outputs = () if plan is None else plan.outputs
    output = next((output for output in outputs if output.name == feature.name), None)
    reads, readers = trace_reads(item.spec, feature.name), trace_readers(item.spec, feature.name)
    downstream = dict.fromkeys(step.origin.owner for step in readers)
    shared = usage.list_shared(item.key, feature.name)
    return FeatureLineage(
        name=feature.name,
        operation=summarize_declared(feature),
        parameters=list_parameters(feature),
        dtype=None if output is None else output.dtype,
        shape=None if output is None else output.shape,
        reads=_report_steps(item, reads),
        read_by=_report_steps(item, readers),
        shared_as=tuple(use.full_name for use in shared),
        taken_by_models=(
            *usage.report_models(item.key, (feature.name, *downstream)),
            *(model for use in shared for model in usage.report_shared_models(use)),
        ),
        sources=list_source_names(reads),
    )


def _report_steps(item: FeatureCompute, steps: Sequence[LineageStep]) -> tuple[LineageStepReport, ...]:
    operations = {name: summarize_operation(feature) for name, feature in index_operations(item.spec).items()}
    return tuple(
        LineageStepReport(
            depth=step.depth,
            kind=step.origin.kind,
            reference=step.origin.reference,
            operation=operations[step.origin.owner] if step.origin.kind is LineageKind.FEATURE else "",
            repeated=step.repeated,
        )
        for step in steps
    )


def _report_source(item: FeatureCompute, source: FeatureSource) -> FeatureSourceReport:
    mark = next((mark for mark in item.status.watermarks if mark.source == source.name), None)
    refreshed = source.table is not None and source.table.refresh is not None
    loaded = next((table for table in item.status.tables if refreshed and table.source == source.name), None)
    return FeatureSourceReport(
        name=source.name,
        kind=LineageKind.TABLE if source.table is not None else LineageKind.STREAM,
        entity=source.entity,
        address=source.facts_address,
        parameters=tuple(_list_source_parameters(source)),
        lag_s=None if mark is None else mark.lag_seconds,
        refused_events=None if mark is None else mark.refused_events,
        refreshed=refreshed,
        keys=None if loaded is None else loaded.keys,
        loaded_at=None if loaded is None else loaded.loaded_at,
    )


def _list_source_parameters(source: FeatureSource) -> Iterator[str]:
    if source.table is not None and source.table.sha256 is not None:
        yield f"sha256 {source.table.sha256}"
    if source.table is not None and source.table.refresh is not None:
        yield f"refresh {source.table.refresh}"
        yield f"minKeysPercent {source.table.min_keys_percent}"
        if source.table.max_keys_percent is not None:
            yield f"maxKeysPercent {source.table.max_keys_percent}"
    if source.stream is not None:
        yield f"ttl {source.stream.ttl}"
        yield f"lateness {source.stream.lateness}"
        yield f"maxEvents {source.stream.max_events}"


def _render_feature(feature: FeatureLineage, *, models_known: bool) -> Iterator[str]:
    kind = "" if feature.dtype is None else f"   {feature.dtype} {list(feature.shape or ())}"
    yield f"{feature.name}{kind}   {', '.join((feature.operation, *feature.parameters))}"
    yield from _render_tree("reads", feature.reads)
    yield from _render_tree("read by", feature.read_by)
    if feature.shared_as:
        yield "  shared as"
    for reference in feature.shared_as:
        yield f"    {reference}"
    if models_known and not feature.taken_by_models:
        yield "  input of no model"
        return
    yield "  input of"
    for use in feature.taken_by_models:
        owner = "" if "." in use.feature else "feature."
        through = "" if use.feature == feature.name else f" through {owner}{use.feature}"
        yield f"    {use.format_text()}{through}"
    if not models_known:
        yield "    models unknown"


def _render_tree(title: str, steps: Sequence[LineageStepReport]) -> Iterator[str]:
    if not steps:
        return
    yield f"  {title}"
    for step in steps:
        operation = f"   {step.operation}" if step.operation else ""
        again = " (above)" if step.repeated else ""
        kind = "" if step.kind is LineageKind.FEATURE else f"   {step.kind.value.lower()}"
        yield f"{'  ' * (step.depth + 1)}{step.reference}{operation}{kind}{again}"


def _list_source_cells(sources: Sequence[FeatureSourceReport]) -> Iterator[tuple[str, ...]]:
    yield "SOURCE", "KIND", "ENTITY", "STATE", "ADDRESS", "PARAMETERS"
    for source in sources:
        yield (
            source.name,
            source.kind.value.lower(),
            source.entity,
            source.format_state(),
            source.address,
            ", ".join(source.parameters) or "-",
        )
