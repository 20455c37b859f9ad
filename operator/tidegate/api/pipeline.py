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

OutputName = Annotated[
    Identifier,
    ValidationRules(
        must_not_match(
            "^(features|tidegate_defaulted)$",
            "must not be features or tidegate_defaulted, which mean something else",
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


class PipelineModel(ApiModel):
    """A model of a pipeline: an Inference, or a ModelAccess with its routing."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        exactly_one("inference", "access"),
        ValidationRule(
            cel="self.optional == has(self.default)",
            message="default is what an optional model that does not answer is taken to have said: give both or neither",
            check=lambda model: model.optional == (model.default is not None),
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
        ObjectName | None,
        Field(
            description="Name of an Inference in the same namespace. Protection of this ModelAccess applies to it, too."
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
            description="Value of every element of the output when the model does not answer; a decimal in quotes.",
        ),
    ] = None


class PipelineSpec(ApiModel):
    """Answers requests with several models in parallel, in its own Triton pods on CPU."""

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
            description="Models, all called in parallel, once per batch of requests.",
        ),
        ListMap("as", attribute="name"),
    ]
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
    def inference_names(self) -> frozenset[str]:
        """Return the names of the Inferences among the models."""
        return frozenset(model.inference for model in self.models if model.inference is not None)

    @property
    def access_names(self) -> frozenset[str]:
        """Return the names of the ModelAccesses among the models."""
        return frozenset(model.access for model in self.models if model.access is not None)
