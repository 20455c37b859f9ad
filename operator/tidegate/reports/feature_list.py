"""Report the features of several FeatureComputes as a table: how each is made, and what uses it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidegate.api.feature_compute import Feature, FeatureCompute
from tidegate.api.meta import ApiModel
from tidegate.errors import InvalidSpecError
from tidegate.planning.features.last_definitions import compile_features, resolve_if_usable
from tidegate.planning.features.lineage import LineageKind, Origin, index_readers, resolve_origins
from tidegate.planning.features.operation_text import list_parameters, summarize_declared
from tidegate.planning.features.shared_features import FindFeatures
from tidegate.reports.feature_usage import (
    FeatureJobReport,
    FeatureUsage,
    ModelUseReport,
    PipelineProblemReport,
    report_problems,
)
from tidegate.reports.report import Report, align_columns, format_name
from tidegate_dataplane.contract import TensorSpec


class ListedFeature(ApiModel):
    """One feature."""

    namespace: str
    feature_compute: str
    name: str
    operation: str
    """Name of the operation and its main parameters, like `window Sum 1h`."""
    parameters: tuple[str, ...]
    """Its other parameters, like `default -1`."""
    sources: tuple[str, ...]
    """What the feature reads itself, like `stream clicks` or `feature idle`."""
    dtype: str | None
    """Absent if the plan of the FeatureCompute does not compile, as is the shape."""
    shape: tuple[int, ...] | None
    read_by_features: tuple[str, ...]
    """Other features of the same FeatureCompute."""
    shared_as: tuple[str, ...]
    """Features of other FeatureComputes that are this one, like `feed/home.age`."""
    taken_by_models: tuple[ModelUseReport, ...]
    computed_by_jobs: tuple[FeatureJobReport, ...]
    """Batches and backfills, which compute all features of the FeatureCompute."""
    unread_namespaces: tuple[str, ...]
    """Namespaces that the FeatureCompute is shared with and whose models and Jobs are not listed."""


class PlanProblemReport(ApiModel):
    """A FeatureCompute whose plan does not compile."""

    feature_compute: str
    message: str


class FeatureListReport(Report):
    """Features by FeatureCompute, in the order of their outputs."""

    namespace: str | None
    """Absent if the list has all namespaces."""
    items: tuple[ListedFeature, ...]
    plan_problems: tuple[PlanProblemReport, ...]
    pipeline_problems: tuple[PipelineProblemReport, ...]
    usage_known: bool
    """Whether the ModelAccesses and the Inferences with their status could be read; if not, no model is listed."""
    skipped: tuple[str, ...]
    """What could not be read, and why."""

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield a table, then a line for each problem; `wide` adds parameters, and the route of each model."""
        if self.items:
            yield from align_columns(list(self._list_cells(wide=wide)))
        for plan in self.plan_problems:
            yield f"featurecompute/{plan.feature_compute} does not compile: {plan.message}"
        for pipeline in self.pipeline_problems:
            yield pipeline.format_text()
        for reason in self.skipped:
            yield f"left out   {reason}"

    def empty_message(self) -> str:
        """Return that there is no FeatureCompute, and where."""
        place = f" in namespace {self.namespace}" if self.namespace is not None else ""
        return "" if self.items else f"no FeatureCompute{place}"

    def object_names(self) -> Iterator[str]:
        """Yield the FeatureComputes."""
        for name in dict.fromkeys(row.feature_compute for row in self.items):
            yield format_name(FeatureCompute.KIND, name)

    def _list_cells(self, *, wide: bool) -> Iterator[tuple[str, ...]]:
        namespaced = self.namespace is None
        first = ("NAMESPACE",) if namespaced else ()
        yield (*first, "FEATURE", "FEATURECOMPUTE", "OPERATION", "SOURCE", "TYPE", "USED BY")
        for row in self.items:
            yield (
                *((row.namespace,) if namespaced else ()),
                row.name,
                row.feature_compute,
                ", ".join((row.operation, *(row.parameters if wide else ()))),
                ", ".join(row.sources),
                "-" if row.dtype is None else f"{row.dtype} {list(row.shape or ())}",
                self._format_users(row, wide=wide),
            )

    def _format_users(self, row: ListedFeature, *, wide: bool) -> str:
        users = [f"feature {name}" for name in (*row.read_by_features, *row.shared_as)]
        models = [use.format_text() if wide else use.model for use in row.taken_by_models]
        users += dict.fromkeys(models)
        users += [job.format_text() if wide else job.format_user() for job in row.computed_by_jobs]
        owner = f"{row.namespace}/{row.feature_compute}"
        if not self.usage_known or any(
            problem.feature_compute == owner for problem in self.pipeline_problems
        ):
            users.append("models unknown")
        if row.unread_namespaces:
            users.append("other namespaces unknown")
        return ", ".join(users) or "-"


def report_feature_list(
    features: Sequence[FeatureCompute],
    usage: FeatureUsage,
    find: FindFeatures,
    *,
    namespace: str | None,
    skipped: Sequence[str] = (),
) -> FeatureListReport:
    """Report all features; one whose FeatureCompute does not compile has no type, and the error is listed.

    `find` returns the FeatureComputes that share features with them.
    """
    ordered = sorted(features, key=lambda item: item.key)
    rows: list[ListedFeature] = []
    problems: list[PlanProblemReport] = []
    for declared in ordered:
        outputs: dict[str, TensorSpec] = {}
        problem: InvalidSpecError | None = None
        try:
            compiled = compile_features(declared, find)
        except InvalidSpecError as error:
            item, problem = resolve_if_usable(declared, find), error
        else:
            item, problem = compiled.features, compiled.outdated
            outputs = {output.name: output for output in compiled.plan.outputs}
        if problem is not None:
            problems.append(PlanProblemReport(feature_compute=str(item.key), message=str(problem)))
        readers = index_readers(item.spec)
        rows += [
            _report_row(item, feature, outputs, readers.get(feature.name, ()), usage)
            for feature in item.spec.features
            if not feature.is_hidden
        ]
    pipelines = [use for item in ordered for use in usage.list_pipelines(item.key)]
    return FeatureListReport(
        namespace=namespace,
        items=tuple(rows),
        plan_problems=tuple(problems),
        pipeline_problems=report_problems(pipelines),
        usage_known=usage.is_known,
        skipped=tuple(skipped),
    )


def format_origin(origin: Origin) -> str:
    """Format what a feature reads: a source by its name, another value by its own."""
    if origin.kind is LineageKind.KEY:
        return f"key {origin.reference}"
    if origin.kind is LineageKind.UNKNOWN:
        return f"unknown {origin.reference}"
    return f"{origin.kind.value.lower()} {origin.owner}"


def _report_row(
    item: FeatureCompute,
    feature: Feature,
    outputs: dict[str, TensorSpec],
    readers: Sequence[str],
    usage: FeatureUsage,
) -> ListedFeature:
    output = outputs.get(feature.name)
    origins = resolve_origins(item.spec, feature.name)
    return ListedFeature(
        namespace=item.key.namespace,
        feature_compute=item.key.name,
        name=feature.name,
        operation=summarize_declared(feature),
        parameters=list_parameters(feature),
        sources=tuple(dict.fromkeys(map(format_origin, origins))),
        dtype=None if output is None else output.dtype,
        shape=None if output is None else output.shape,
        read_by_features=tuple(readers),
        shared_as=tuple(use.full_name for use in usage.list_shared(item.key, feature.name)),
        taken_by_models=usage.report_models(item.key, (feature.name,)),
        computed_by_jobs=usage.report_jobs(item.key),
        unread_namespaces=usage.list_unread(item),
    )
