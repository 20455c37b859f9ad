"""`pipeline` of a route: features first, then several models in parallel, and one response."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from tidegate.api.fields import (
    DurationText,
    Identifier,
    ObjectName,
    Resources,
    SharedName,
    duration_between,
)
from tidegate.api.matching import exactly_one
from tidegate.api.meta import ApiModel
from tidegate.api.schema import ListMap, ValidationRule, ValidationRules, must_match, must_not_match

MAX_PIPELINE_MODELS: Final = 16
MAX_PIPELINE_REPLICAS: Final = 100
MAX_CANDIDATES: Final = 4096

OutputName = Annotated[
    Identifier,
    ValidationRules(
        must_not_match(
            "^(features|tidegate_defaulted|tidegate_not_current)$",
            "must not be features, tidegate_defaulted or tidegate_not_current, which mean something else",
        )
    ),
]

ModelName = Annotated[
    str,
    Field(min_length=1, max_length=128),
    ValidationRules(
        must_match(
            r"[A-Za-z0-9][A-Za-z0-9._-]*",
            "must begin with a letter or digit and go on with letters, digits, dots, dashes and underscores",
        )
    ),
]

TensorName = Annotated[str, Field(min_length=1, max_length=256)]


class CandidateLimit(ApiModel):
    """The rows of a request that a model gets: those with the highest output of another model, like those of a pre-ranking."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="!has(self.min) || self.min < self.max",
            message="min must be less than max: remove min if the number of candidates never changes",
            check=lambda limit: limit.min_rows is None or limit.min_rows < limit.max_rows,
            field="min",
        ),
        ValidationRule(
            cel="!has(self.reducedValuePercent) || has(self.min)",
            message="reducedValuePercent is what an answer with min rows is worth: give min, too",
            check=lambda limit: limit.reduced_value_percent is None or limit.min_rows is not None,
            field="reducedValuePercent",
        ),
    )

    by: Annotated[
        OutputName,
        Field(
            description="Output, by its `as`, of a model further up in the list; it has one number for each row."
        ),
    ]
    max_rows: Annotated[
        int,
        Field(
            alias="max",
            strict=True,
            ge=1,
            le=MAX_CANDIDATES,
            description=f"Most rows of one request that the model gets, 1 to {MAX_CANDIDATES}. The output of the others is default.",
        ),
    ]
    min_rows: Annotated[
        int | None,
        Field(
            alias="min",
            strict=True,
            ge=1,
            le=MAX_CANDIDATES,
            description="Most rows that it gets of a request with the header x-tidegate-candidates: min, which gateways add "
            "under overload (pipeline.reducedValuePercent) and clients may. With min:<as> only that model does. Absent: max.",
        ),
    ] = None
    reduced_value_percent: Annotated[
        int | None,
        Field(
            strict=True,
            ge=1,
            le=100,
            description="What an answer is worth in which this model alone has min rows, as a percentage of the route's value, where "
            "several models have min, each of a required Inference of its own. While only its Inference lacks capacity, gateways ask "
            "for such answers. "
            "Absent: pipeline.reducedValuePercent, that of an answer with all of them.",
        ),
    ] = None


class PipelineModel(ApiModel):
    """A model of a pipeline: an Inference, or a ModelAccess with its routing."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        exactly_one("inference", "access"),
        ValidationRule(
            cel="has(self.default) == (self.optional || has(self.candidates))",
            message="default is the output where a model does not answer: give it with optional or candidates, and only there",
            check=lambda model: (
                (model.default is not None) == (model.optional or model.candidates is not None)
            ),
            field="default",
        ),
        ValidationRule(
            cel="!self.optional || has(self.timeout)",
            message="an optional model needs a timeout of its own, after which its default is taken",
            check=lambda model: not model.optional or model.timeout is not None,
            field="timeout",
        ),
    )

    inference: Annotated[
        SharedName | None,
        Field(
            description="Name of an Inference in the same namespace. Or <namespace>/<name> of one in another namespace whose "
            "annotation tidegate.io/shared-with lists this namespace. Protection of this ModelAccess applies to it, too."
        ),
    ] = None
    access: Annotated[
        ObjectName | None,
        Field(
            description="Name of a ModelAccess in the same namespace, instead of an Inference, with its weights, fallbacks and "
            "limits. Its route without match gets the requests; it must have neither a pipeline nor auth."
        ),
    ] = None
    name: Annotated[
        OutputName,
        Field(
            alias="as",
            description="Name of the model's output in the response of the pipeline, unique in it.",
        ),
    ]
    output: Annotated[
        TensorName | None,
        Field(description="Output of the model that is returned. Absent: its only one."),
    ] = None
    optional: Annotated[
        bool,
        Field(
            strict=True,
            description="Whether a request is answered without the model if it fails, is overloaded or is too slow: "
            "with default instead, and the model's name in the output tidegate_defaulted. "
            "By default the request fails, and the error names the model.",
        ),
    ] = False
    timeout: Annotated[
        Annotated[DurationText, duration_between("1ms", "1h")] | None,
        Field(
            description="Longest time that the pipeline waits for the model, as a duration from 1ms to 1h, shorter than the route's. "
            "Absent: nine tenths of the route's, so that the error can still name the model."
        ),
    ] = None
    default: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=32,
            pattern=r"^-?[0-9]{1,15}(\.[0-9]{1,9})?$",
            description="Value of every element of the output when the model does not answer, and for rows that are no "
            "candidates; a decimal in quotes.",
        ),
    ] = None
    candidates: Annotated[
        CandidateLimit | None,
        Field(description=f"{CandidateLimit.__doc__} Absent: the model gets all rows."),
    ] = None


class PipelineSpec(ApiModel):
    """Answers requests with several models in parallel, in its own Triton pods on CPU."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="!has(self.reducedValuePercent) || self.models.exists(m, has(m.candidates) && has(m.candidates.min))",
            message="reducedValuePercent is what an answer with fewer candidates is worth: give a model candidates.min",
            check=lambda pipeline: (
                pipeline.reduced_value_percent is None
                or any(
                    model.candidates is not None and model.candidates.min_rows is not None
                    for model in pipeline.models
                )
            ),
            field="reducedValuePercent",
        ),
        ValidationRule(
            cel="self.models.all(m, !has(m.candidates) || !has(m.candidates.reducedValuePercent) || "
            "(has(self.reducedValuePercent) && m.candidates.reducedValuePercent >= self.reducedValuePercent))",
            message="candidates.reducedValuePercent is that of an answer with fewer rows for one model, so at least "
            "pipeline.reducedValuePercent, which has to be given too",
            check=lambda pipeline: all(
                pipeline.reduced_value_percent is not None and percent >= pipeline.reduced_value_percent
                for percent in (
                    model.candidates.reduced_value_percent
                    for model in pipeline.models
                    if model.candidates is not None
                )
                if percent is not None
            ),
            field="models",
        ),
    )

    model_name: Annotated[
        ModelName | None,
        Field(
            description="Model name in requests. If the object has other routes with targets, it must be their model "
            "name. Absent: the name of the ModelAccess."
        ),
    ] = None
    features: Annotated[
        SharedName | None,
        Field(
            description="Name of a FeatureCompute in the same namespace, called before the models: clients then send its keys, "
            "and model inputs with the name of a feature get that feature. Or <namespace>/<name> of one in another namespace whose "
            "annotation tidegate.io/shared-with lists this namespace. Absent: clients send all inputs."
        ),
    ] = None
    models: Annotated[
        tuple[PipelineModel, ...],
        Field(
            min_length=1,
            max_length=MAX_PIPELINE_MODELS,
            description="Models, called once per batch of requests and in parallel, except those with candidates.",
        ),
        ListMap("as", attribute="name"),
    ]
    reduced_value_percent: Annotated[
        int | None,
        Field(
            strict=True,
            ge=1,
            le=100,
            description="What an answer with candidates.min rows is worth, as a percentage of the route's value. With "
            "protection.admissionControl.mode: Priced, gateways then ask for such answers before they reject requests, those "
            "of low value first, where that keeps more value than it saves capacity. "
            "tidegate_pipeline_best_rows_total counts how often the best row would be kept. Absent: they never ask.",
        ),
    ] = None
    replicas: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=MAX_PIPELINE_REPLICAS,
            description=f"Number of pods, 1 to {MAX_PIPELINE_REPLICAS}.",
        ),
    ] = 1
    resources: Annotated[Resources, Field(description="CPU and memory of one replica.")] = Resources()

    def resolve_served_name(self, access: str) -> str:
        """Return the model name in requests, for the ModelAccess with the name `access`."""
        return self.model_name or access

    @property
    def separately_reduced(self) -> tuple[PipelineModel, ...]:
        """Return the models of which each alone may get its fewest candidates: none where only one model has any.

        Nor where gateways could not tell which of them lacks capacity: each must be a required Inference, and of its own.
        """
        models = tuple(
            model
            for model in self.models
            if model.candidates is not None and model.candidates.min_rows is not None
        )
        names = {model.inference for model in models if model.inference is not None and not model.optional}
        is_told_apart = len(models) > 1 and len(names) == len(models)
        return models if is_told_apart and self.reduced_value_percent is not None else ()

    @property
    def inference_names(self) -> frozenset[str]:
        """Return the names of the Inferences among the models."""
        return frozenset(model.inference for model in self.models if model.inference is not None)

    @property
    def access_names(self) -> frozenset[str]:
        """Return the names of the ModelAccesses among the models."""
        return frozenset(model.access for model in self.models if model.access is not None)
