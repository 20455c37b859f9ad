"""What became of a version's graph in a pod whose order asks for graph passes."""

from enum import StrEnum

from pydantic import Field

from tidegate_dataplane.contract.base import ContractModel


class CompilePhase(StrEnum):
    """How far the graph of a version is."""

    WAITING = "Waiting"
    """The compiler has not begun: the version is not served yet, the compiler starts, or it waits for requests of clients."""
    COMPILING = "Compiling"
    UNCHANGED = "Unchanged"
    """No pass applies or pays: the version is served as published."""
    LOADING = "Loading"
    """A faster graph is there, and the server does not run it yet."""
    COMPILED = "Compiled"
    """The server runs the faster graph."""
    FAILED = "Failed"
    """The version is served as published; the message has the reason and the way out."""


class EngineMode(StrEnum):
    """What runs the graph where a request has the shape of a bucket."""

    OPENVINO = "OpenVINO"
    AUTO = "Auto"
    """The fastest, by measurement."""


class EnginePrecision(StrEnum):
    """Precision of the numbers that an engine computes with."""

    FP32 = "FP32"
    BF16 = "BF16"


class EngineOrder(ContractModel):
    """Which engine to compile for the shapes that come often, and the sizes that they are rounded up to."""

    engine: EngineMode
    precision: EnginePrecision = EnginePrecision.FP32
    rows: tuple[int, ...] = Field(default=(), description="numbers of rows; empty: those that come often")
    lengths: tuple[int, ...] = Field(
        default=(), description="of other free dimensions; empty: those that come often"
    )


class BucketResult(ContractModel):
    """What became of the shape that requests had often."""

    shape: str
    engine: str = Field(default="", description="the engine that runs it; empty: the original graph")
    reason: str = Field(default="", description="why no engine runs it; empty while it is compiled")
    speedup: float = Field(default=0.0, description="time of the original graph over that of the engine")
    max_error: float | None = Field(
        default=0.0, description="of an answer, as a share of the output's largest number"
    )
    cached: bool = Field(default=False, description="whether another pod had compiled it")


class EngineReport(ContractModel):
    """The buckets of the ordered version, in the order in which they were compiled."""

    buckets: tuple[BucketResult, ...] = ()
    message: str = Field(default="", description="why no engine can be used, or a dimension is not padded")


class PassResult(ContractModel):
    """What became of one graph pass."""

    name: str
    applied: bool
    reason: str = Field(default="", description="why it was left out; empty if it was applied")
    changes: int = Field(default=0, description="places that it changed, such as columns fused")
    max_error: float | None = Field(
        default=None,
        description="of an answer, as a share of the output's largest number; absent where an answer was missing",
    )


class CompileOutcome(ContractModel):
    """What graph passes made of a graph."""

    message: str = Field(default="", description="why it failed, and the way out")
    passes: tuple[PassResult, ...] = ()
    speedups: dict[int, float] = Field(
        default_factory=dict[int, float],
        description="time of the published graph over that of the compiled one, by rows of the request",
    )
    shared_inputs: tuple[str, ...] = Field(
        default=(),
        description="inputs for which the compiled graph accepts one row for all rows of a request",
    )
    nodes_before: int = 0
    nodes_after: int = 0
    seconds: float = Field(default=0.0, description="how long the passes took, where they ran")
    cached: bool = Field(default=False, description="whether another pod had compiled it")
    compared_requests: int = Field(
        default=0, description="requests of clients that both graphs have answered alike"
    )


class CompileReport(CompileOutcome):
    """What became of the graph of the ordered version."""

    version: int
    phase: CompilePhase
    engines: EngineReport | None = Field(default=None, exclude_if=lambda engines: engines is None)
    cache_problem: str = Field(
        default="",
        exclude_if=lambda problem: not problem,
        description="why the object store for compiled graphs cannot be used",
    )
