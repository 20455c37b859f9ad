"""Report which models take a feature, which Jobs compute it, and the pipelines whose models are unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.meta import ApiModel, ObjectKey
from tidegate.api.shared_names import list_shared_namespaces
from tidegate.planning.access.feature_uses import ModelUse, PipelineUse
from tidegate.planning.features.feature_jobs import FeatureJob, FeatureJobKind
from tidegate.planning.features.lineage import SharedUse


@dataclass(frozen=True, slots=True)
class FeatureUsage:
    """What was read about the pipelines that call FeatureComputes, the Jobs that compute their features, and the FeatureComputes
    that use some of them by name.
    """

    pipelines: Sequence[PipelineUse] = ()
    jobs: Sequence[FeatureJob] = ()
    shared: Sequence[SharedUse] = ()
    is_known: bool = True
    """Whether the ModelAccesses and the Inferences with their status could be read."""
    namespace: str = ""
    """That of what was read; empty means all."""

    def list_unread(self, features: FeatureCompute) -> tuple[str, ...]:
        """Return the namespaces that a FeatureCompute is shared with and that were not read."""
        return list_shared_namespaces(features) if self.namespace else ()

    def list_pipelines(self, feature_compute: ObjectKey) -> tuple[PipelineUse, ...]:
        """Return the pipelines that call a FeatureCompute."""
        return tuple(use for use in self.pipelines if use.feature_compute == feature_compute)

    def report_jobs(self, feature_compute: ObjectKey) -> tuple[FeatureJobReport, ...]:
        """Return the reports of the Jobs that compute the features of a FeatureCompute."""
        return tuple(
            FeatureJobReport.from_job(job) for job in self.jobs if job.feature_compute == feature_compute
        )

    def list_shared(self, feature_compute: ObjectKey, feature: str) -> tuple[SharedUse, ...]:
        """Return the uses of a feature by other FeatureComputes."""
        return tuple(use for use in self.shared if (use.origin, use.feature) == (feature_compute, feature))

    def report_shared_models(self, use: SharedUse) -> tuple[ModelUseReport, ...]:
        """Return the reports of the models that take a feature where it is shared, or one that reads it there."""
        models = self.report_models(use.user, (use.name, *use.readers))
        return tuple(model.model_copy(update={"feature": f"{use.user}.{model.feature}"}) for model in models)

    def report_models(
        self, feature_compute: ObjectKey, features: Sequence[str]
    ) -> tuple[ModelUseReport, ...]:
        """Return the reports of the models that take some features, one for each of these inputs."""
        return tuple(
            ModelUseReport.from_use(model, feature)
            for feature in features
            for use in self.list_pipelines(feature_compute)
            for model in use.models
            if feature in model.features
        )


class ModelUseReport(ApiModel):
    """A model that takes a feature as the input of the same name."""

    feature: str
    """With the FeatureCompute before it, like `feed/home.age`, if that is another one which shares the feature."""
    access: str
    """The ModelAccess with the pipeline, namespace/name."""
    route: str
    part: str
    """Name of the model's output in the response of the pipeline."""
    model: str
    """Kind and name, like `Inference ctr`."""

    @classmethod
    def from_use(cls, use: ModelUse, feature: str) -> Self:
        """Return the report of a model that takes `feature`."""
        return cls(feature=feature, access=str(use.access), route=use.route, part=use.part, model=use.model)

    def format_text(self) -> str:
        """Format the model with its pipeline."""
        return f"{self.model}, route {self.route} of modelaccess/{self.access}"


class FeatureJobReport(ApiModel):
    """A Job that computes all features of the FeatureCompute for rows in files, or a stream whose messages get features."""

    kind: FeatureJobKind
    owner: str
    """The Inference with the batch or stream, or the FeatureCompute with the backfill: namespace/name."""
    rows: str
    """URI of the rows, or the stream with the messages."""
    results: str
    """URI of the folder with the folders of the runs, or the bucket with the results."""

    @classmethod
    def from_job(cls, job: FeatureJob) -> Self:
        """Return the report of a Job."""
        return cls(kind=job.kind, owner=str(job.owner), rows=job.rows, results=job.results)

    def format_user(self) -> str:
        """Format the Job as a user of a feature."""
        if self.kind is FeatureJobKind.BACKFILL:
            return "backfill"
        return f"{self.kind.value.lower()} {self.owner.rpartition('/')[2]}"

    def format_text(self) -> str:
        """Format the Job with its files."""
        field = "featurecompute" if self.kind is FeatureJobKind.BACKFILL else "inference"
        return f"{self.kind.value.lower()} of {field}/{self.owner}, from {self.rows} to {self.results}"


class PipelineProblemReport(ApiModel):
    """A pipeline that calls the FeatureCompute and cannot be compiled, so that the inputs of its models are unknown."""

    access: str
    route: str
    feature_compute: str
    message: str

    @classmethod
    def from_use(cls, use: PipelineUse) -> Self:
        """Return the report of a pipeline with a problem."""
        return cls(
            access=str(use.access),
            route=use.route,
            feature_compute=str(use.feature_compute),
            message=use.problem,
        )

    def format_text(self) -> str:
        """Format the problem as a line."""
        reason = self.message.removeprefix(f"pipeline of route {self.route}: ")
        return f"modelaccess/{self.access} route {self.route}: its models are unknown, because {reason}"


def report_problems(pipelines: Sequence[PipelineUse]) -> tuple[PipelineProblemReport, ...]:
    """Return the reports of the pipelines that cannot be compiled."""
    return tuple(PipelineProblemReport.from_use(use) for use in pipelines if use.problem)
