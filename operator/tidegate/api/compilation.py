"""`spec.compile` of an Inference, and what the compiler made of a version's graph."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from tidegate.api.fields import Memory, ObjectStoreUri
from tidegate.api.meta import ApiModel, StatusModel
from tidegate.api.schema import ListAtomic, ListMap, ValidationRule
from tidegate_dataplane.contract import EnginePrecision


class GraphPasses(StrEnum):
    """Whether graph passes are applied."""

    AUTO = "Auto"
    DISABLED = "Disabled"


class CompileEngine(StrEnum):
    """What runs requests whose shape comes often."""

    ONNX_RUNTIME = "OnnxRuntime"
    OPENVINO = "OpenVINO"
    AUTO = "Auto"


SizeList = Annotated[
    tuple[Annotated[int, Field(strict=True, ge=1, le=65_536)], ...],
    Field(min_length=1, max_length=16),
    ListAtomic(),
]


def _require_increasing(field: str) -> ValidationRule:
    def is_increasing(buckets: CompileBuckets) -> bool:
        sizes = buckets.rows if field == "rows" else buckets.lengths
        return sizes is None or list(sizes) == sorted(set(sizes))

    return ValidationRule(
        cel=f"!has(self.{field}) || self.{field}.all(size, self.{field}.exists_one(other, other == size)) && "
        f"self.{field}.isSorted()",
        message=f"{field} must increase from one size to the next: sort them, and name each once",
        check=is_increasing,
        field=field,
    )


class CompileBuckets(ApiModel):
    """Sizes that requests are padded to, so that few shapes are compiled."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        _require_increasing("rows"),
        _require_increasing("lengths"),
    )

    rows: Annotated[
        SizeList | None,
        Field(
            description="Numbers of rows; a request gets copies of its last row up to the next of them. A request with more rows "
            "than the largest runs in ONNX Runtime. Absent: the numbers that come often."
        ),
    ] = None
    lengths: Annotated[
        SizeList | None,
        Field(
            description="Sizes of the other free dimensions, such as the length of a history; a request gets zeros up to the next of "
            "them, unless an answer changes by that, as in a model without a mask. Absent: the sizes that come often."
        ),
    ] = None


class CompileSpec(ApiModel):
    """Compiles the graph of an ONNX model; until that is done, and whatever fails, a version serves as published."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel="self.engine == 'OnnxRuntime' || self.passes == 'Auto'",
            message="engine OpenVINO or Auto compiles the graph that passes leave: set passes: Auto, or remove engine",
            check=lambda spec: spec.engine is CompileEngine.ONNX_RUNTIME or spec.passes is GraphPasses.AUTO,
            field="engine",
        ),
        ValidationRule(
            cel="self.engine != 'OnnxRuntime' || (self.precision == 'FP32' && !has(self.buckets))",
            message="precision BF16 and buckets are only for engine OpenVINO or Auto: set one of them, or remove precision and buckets",
            check=lambda spec: (
                spec.engine is not CompileEngine.ONNX_RUNTIME
                or (spec.precision is EnginePrecision.FP32 and spec.buckets is None)
            ),
            field="engine",
        ),
    )

    passes: Annotated[
        GraphPasses,
        Field(
            description="Auto applies each graph pass that proves equal on sampled requests and is not slower at any measured "
            "shape; Disabled applies none and starts no compiler. tidegate optimize shows what Auto would do."
        ),
    ] = GraphPasses.AUTO
    memory: Annotated[
        Memory | None,
        Field(
            description="Memory limit of the compiler, as a quantity; it takes several times the size of the model while it runs. "
            "Nothing is reserved for it. Absent: the memory of a replica."
        ),
    ] = None
    engine: Annotated[
        CompileEngine,
        Field(
            description="OnnxRuntime runs all requests. OpenVINO runs those whose shape comes often, compiled for it in the "
            "background, if the answers are those of the graph; Auto does so where OpenVINO is faster, by measurement in the pod. "
            "All others run in ONNX Runtime at once. Only on Tidegate's own ONNX runner, and not on GPUs."
        ),
    ] = CompileEngine.ONNX_RUNTIME
    precision: Annotated[
        EnginePrecision,
        Field(
            description="FP32 has answers that differ by at most 1e-5 of the largest number; BF16 computes in 16 bits, with answers "
            "that differ by up to 2e-2, where the processor has instructions for it."
        ),
    ] = EnginePrecision.FP32
    buckets: Annotated[CompileBuckets | None, Field(description=CompileBuckets.__doc__)] = None
    cache: Annotated[
        ObjectStoreUri | None,
        Field(
            description="Folder in which pods of all nodes share what they compile, read and written with the Secret of the model; "
            "whoever may write there can change what models answer. Absent: the node's cache alone."
        ),
    ] = None


class GraphPassStatus(StatusModel):
    """What became of one graph pass."""

    name: Annotated[str, Field(max_length=64, description="Name of the pass.")]
    applied: Annotated[bool, Field(description="Whether the compiled graph has it.")] = False
    reason: Annotated[str, Field(max_length=512, description="Why it was left out.")] = ""
    changes: Annotated[
        int, Field(ge=0, description="Places of the graph that it changed, such as columns fused.")
    ] = 0


class GraphSpeedup(StatusModel):
    """Measured speed-up of the compiled graph."""

    rows: Annotated[int, Field(ge=1, description="Rows of the request.")]
    ratio: Annotated[
        str, Field(max_length=16, description="Time of the published graph over that of the compiled one.")
    ]


class EngineBucket(StatusModel):
    """A shape that comes often, and what runs it."""

    shape: Annotated[str, Field(max_length=512, description="Name and size of each input.")]
    engine: Annotated[
        str,
        Field(
            max_length=32,
            description="The engine; empty while it is compiled, or if ONNX Runtime runs the shape.",
        ),
    ] = ""
    reason: Annotated[str, Field(max_length=512, description="Why ONNX Runtime runs the shape.")] = ""
    ratio: Annotated[
        str,
        Field(
            max_length=16, description="Time of ONNX Runtime over that of the engine, as measured in the pod."
        ),
    ] = ""
    error: Annotated[
        str,
        Field(
            max_length=16,
            description="Largest difference of an answer, as a share of the output's largest number.",
        ),
    ] = ""


class CompiledGraph(StatusModel):
    """What the compiler made of the version's graph, on the first replica where it has ended."""

    version: Annotated[str, Field(max_length=9, description="The version.")]
    replicas: Annotated[int, Field(ge=0, description="Number of replicas that serve the compiled graph.")] = 0
    nodes: Annotated[int, Field(ge=0, description="Operations of the graph that is to be served.")] = 0
    published_nodes: Annotated[int, Field(ge=0, description="Operations of the published graph.")] = 0
    shared_inputs: Annotated[
        tuple[Annotated[str, Field(max_length=256)], ...],
        Field(
            max_length=256,
            description="The inputs of spec.model.sharedInputs for which the compiled graph accepts one row for all rows of a request.",
        ),
        ListAtomic(),
    ] = ()
    compared_requests: Annotated[
        int,
        Field(
            ge=0,
            description="Number of requests of clients that the compiled and the published graph have answered alike on that replica.",
        ),
    ] = 0
    passes: Annotated[
        tuple[GraphPassStatus, ...],
        Field(max_length=32, description="The graph passes, in the order in which they were tried."),
        ListMap("name"),
    ] = ()
    speedups: Annotated[
        tuple[GraphSpeedup, ...],
        Field(
            max_length=16, description="Speed-up of all passes together, measured in the pod of that replica."
        ),
        ListMap("rows"),
    ] = ()
    buckets: Annotated[
        tuple[EngineBucket, ...],
        Field(
            max_length=64,
            description="With an engine, the shapes that came often, in the order in which they did.",
        ),
        ListMap("shape"),
    ] = ()
