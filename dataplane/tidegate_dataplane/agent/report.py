"""The agent's report: the observed state in the terms of the contract. Pure."""

from dataclasses import dataclass
from typing import Any

from tidegate_dataplane.agent.artefacts.receive import DownloadProgress
from tidegate_dataplane.agent.settings import OnnxBackend
from tidegate_dataplane.agent.state import (
    AgentMemory,
    FetchArtefact,
    LoadVersions,
    ObservedPod,
    content_of,
    serves_order,
)
from tidegate_dataplane.compiler.exchange import CompileResult
from tidegate_dataplane.contract import (
    AgentPhase,
    AgentReport,
    BatchingMode,
    BatchingReport,
    CompileOutcome,
    CompilePhase,
    CompileReport,
    DesiredState,
    EngineReport,
    ModelFormat,
    VersionFailure,
    VersionMemory,
)
from tidegate_dataplane.runner_interface import JoinLimit

_LIMIT_MESSAGES = {
    JoinLimit.ANY_SHAPE: "",
    JoinLimit.SAME_SHAPE: "an answer changes if a request is padded, so that requests of some shapes are not joined with others; to join "
    "all, export the model with a mask for zeros",
    JoinLimit.ALONE: "an answer changes with the other rows of its execution, or fails with them, as in a model that ranks the rows of a "
    "request",
}
_FOREIGN_BACKEND = (
    "a backend of Triton runs the model, and nothing compares its joined answers; if the rows of a request do not depend on "
    "each other, set batching.mode to Fixed"
)
_NO_ENGINES = (
    "a backend of Triton runs the model, and engines are chosen in Tidegate's runner: use Tidegate's Triton image, or remove "
    "spec.compile.engine"
)
_NO_FREE_DIMENSION = "the inputs and outputs do not all have the same free first dimension; export the model with one to have requests joined"


@dataclass(frozen=True, slots=True)
class CurrentStep:
    """The step in progress, if there is one, and the progress of a fetch."""

    step: FetchArtefact | LoadVersions | None = None
    progress: DownloadProgress | None = None


def served_model(desired: DesiredState | None, observed: ObservedPod, memory: AgentMemory) -> str | None:
    """Return the model that answers in this pod: the ordered one, or the proven one until that is loaded."""
    for order in (desired, memory.proven):
        if order is not None and observed.server.ready.get(order.model):
            return order.model
    return None


def make_report(
    pod: str,
    desired: DesiredState | None,
    observed: ObservedPod,
    memory: AgentMemory,
    current_step: CurrentStep,
) -> AgentReport:
    """Return the report: the served versions, the phase of the order and its failure."""
    model = served_model(desired, observed, memory)
    loaded = tuple(sorted(observed.server.ready.get(model, ()))) if model else ()
    order = content_of(desired) if desired else None
    setback = memory.find_setback(order) if order else None
    progress = current_step.progress if isinstance(current_step.step, FetchArtefact) else None
    return AgentReport(
        pod=pod,
        epoch=desired.epoch if desired else 0,
        generation=desired.generation if desired else 0,
        features_revision=desired.features_revision if desired else None,
        phase=_derive_phase(order, observed, memory, current_step),
        target=order.version if order else None,
        serving=max(loaded, default=None),
        loaded=loaded,
        memory=tuple(
            VersionMemory(version=version, bytes=taken)
            for version, taken in sorted(observed.server.memory.get(model or "", {}).items())
            if version in loaded
        ),
        inputs=observed.server.inputs if loaded else (),
        outputs=observed.server.outputs if loaded else (),
        bytes_done=progress.done if progress else None,
        bytes_total=progress.total if progress else None,
        compile=_make_compile_report(desired, observed, memory),
        events=observed.events,
        failure=VersionFailure(
            version=setback.order.version, reason=setback.refusal.reason, message=setback.refusal.message
        )
        if setback
        else None,
    )


def make_batching_report(
    order: DesiredState | None, version: int | None, limit: JoinLimit | None, *, native: bool, batched: bool
) -> BatchingReport | None:
    """Return which requests are joined, `limit` being what the runner reports.

    None unless the mode is Adaptive, and before the runner has reported. `batched` is a fact about the artefact.
    """
    if order is None or order.batching is not BatchingMode.ADAPTIVE or version is None:
        return None
    if limit is not None:
        return BatchingReport(version=version, limit=limit, message=_LIMIT_MESSAGES[limit])
    foreign = native or order.format is not ModelFormat.ONNX
    if batched and not foreign:
        return None
    message = _FOREIGN_BACKEND if foreign else _NO_FREE_DIMENSION
    return BatchingReport(version=version, limit=JoinLimit.ALONE, message=message)


def _make_compile_report(
    desired: DesiredState | None, observed: ObservedPod, memory: AgentMemory
) -> CompileReport | None:
    """Return what became of the graph of the ordered version; None if no passes are ordered."""
    if desired is None or not desired.graph_passes:
        return None
    result = observed.compile_result
    if result is None:
        phase = CompilePhase.COMPILING if observed.is_compiling else CompilePhase.WAITING
        return CompileReport(version=desired.version, phase=phase)
    refusal = memory.refused_graphs.get(result.graph_sha256, "")
    loaded = memory.loaded_graphs.get((desired.model, desired.version))
    outcome: dict[str, Any] = {name: getattr(result, name) for name in CompileOutcome.model_fields}
    outcome["message"] = result.message or refusal
    return CompileReport(
        version=desired.version,
        phase=_derive_compile_phase(result, loaded, refused=bool(refusal)),
        engines=_report_engines(observed, memory),
        **outcome,
    )


def _report_engines(observed: ObservedPod, memory: AgentMemory) -> EngineReport | None:
    if observed.engines is not None and memory.backend is OnnxBackend.NATIVE:
        return EngineReport(message=_NO_ENGINES)
    return observed.engines


def _derive_compile_phase(result: CompileResult, loaded: str | None, *, refused: bool) -> CompilePhase:
    if result.message or refused:
        return CompilePhase.FAILED
    if not result.graph_sha256:
        return CompilePhase.UNCHANGED
    return CompilePhase.COMPILED if loaded == result.graph_sha256 else CompilePhase.LOADING


def _derive_phase(
    order: DesiredState | None, observed: ObservedPod, memory: AgentMemory, current_step: CurrentStep
) -> AgentPhase:
    if order is None:
        return AgentPhase.STARTING
    if memory.find_setback(order):
        return AgentPhase.FAILED
    if memory.proven == order and serves_order(order, observed.server) and order.model not in observed.broken:
        return AgentPhase.READY
    if isinstance(current_step.step, FetchArtefact):
        return AgentPhase.FETCHING
    if isinstance(current_step.step, LoadVersions):
        return AgentPhase.LOADING
    return AgentPhase.LOADING if observed.server.live else AgentPhase.STARTING
