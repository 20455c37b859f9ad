"""A route's pipeline: features first, then several models at the same time, and one answer of all of them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from tidegate.api.fields import DurationText, Identifier, ObjectName, Resources, between
from tidegate.api.matching import exactly_one
from tidegate.api.meta import ApiModel
from tidegate.api.schema import ListMap, Rule, Rules, lacks, matches

MAX_PARTS: Final = 16
MAX_PIPELINE_REPLICAS: Final = 100

PartName = Annotated[
    Identifier,
    Rules(
        lacks(
            "^(features|tidegate_defaulted)$",
            "must not be features or tidegate_defaulted, which mean something else",
        )
    ),
]

ModelName = Annotated[
    str,
    Field(min_length=1, max_length=128),
    Rules(
        matches(
            r"[A-Za-z0-9][A-Za-z0-9._-]*",
            "must begin with a letter or digit and go on with letters, digits, dots, dashes and underscores",
        )
    ),
]

TensorName = Annotated[str, Field(min_length=1, max_length=256)]


class PipelineModel(ApiModel):
    """One of the models that a pipeline asks at the same time: an Inference, or all that stands behind a ModelAccess."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        exactly_one("inference", "access"),
        Rule(
            cel="self.optional == has(self.default)",
            message="default is what an optional model that does not answer is taken to have said: give both or neither",
            check=lambda part: part.optional == (part.default is not None),
            field="default",
        ),
        Rule(
            cel="!self.optional || has(self.timeout)",
            message="an optional model needs a timeout of its own, after which its default is taken",
            check=lambda part: not part.optional or part.timeout is not None,
            field="timeout",
        ),
    )

    inference: Annotated[
        ObjectName | None,
        Field(
            description="Name of an Inference in the same namespace. Protection of this ModelAccess holds for it too."
        ),
    ] = None
    access: Annotated[
        ObjectName | None,
        Field(
            description="Name of a ModelAccess in the same namespace, in place of an Inference: its weights, fallbacks and "
            "limits decide who answers. Its route without match takes the calls; it must have neither a pipeline nor auth."
        ),
    ] = None
    name: Annotated[
        PartName,
        Field(
            alias="as",
            description="What its answer is called: the name of an output of the pipeline, unique in it.",
        ),
    ]
    output: Annotated[
        TensorName | None,
        Field(description="Which of the model's outputs is answered. Absent: its only one."),
    ] = None
    optional: Annotated[
        bool,
        Field(
            strict=True,
            description="Whether a request is answered without it where it fails, is shed or is too slow: "
            "with default in its place, and its name in the output tidegate_defaulted. "
            "By default the whole request fails, and the error names the model.",
        ),
    ] = False
    timeout: Annotated[
        Annotated[DurationText, between("1ms", "1h")] | None,
        Field(
            description="Longest that is waited for its answer, as a duration from 1ms to 1h, shorter than the route's. "
            "Absent: nine tenths of the route's, so that the error can still name it."
        ),
    ] = None
    default: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=32,
            pattern=r"^-?[0-9]{1,15}(\.[0-9]{1,9})?$",
            description="The value of every element of its answer where it has none; a decimal in quotes.",
        ),
    ] = None


class Pipeline(ApiModel):
    """Answers a request with several models at the same time; Triton pods of its own on CPU do that, a batch at a time."""

    model_name: Annotated[
        ModelName | None,
        Field(
            description="Name that clients ask for. Where the object has other routes with targets, it must be the name "
            "that those serve. Absent: the name of the ModelAccess."
        ),
    ] = None
    features: Annotated[
        ObjectName | None,
        Field(
            description="Name of a FeatureCompute in the same namespace, asked before the models: clients then send its keys, "
            "and inputs of models that are called like a feature get that feature. Absent: clients send all inputs."
        ),
    ] = None
    models: Annotated[
        tuple[PipelineModel, ...],
        Field(
            min_length=1,
            max_length=MAX_PARTS,
            description="The models, all asked at the same time, once for all requests of a batch.",
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

    def served_name(self, access: str) -> str:
        """The name that clients ask for, in the ModelAccess called `access`."""
        return self.model_name or access

    @property
    def inferences(self) -> frozenset[str]:
        """Every Inference among its models."""
        return frozenset(part.inference for part in self.models if part.inference is not None)

    @property
    def accesses(self) -> frozenset[str]:
        """Every ModelAccess among its models."""
        return frozenset(part.access for part in self.models if part.access is not None)
