"""Report on the compiled graph in a condition of its own, because a version serves as published until it is there."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from tidegate.api.conditions import Condition, ConditionType, ObservedCondition
from tidegate.api.inference import CompiledGraph, GraphPassStatus, GraphSpeedup, Inference
from tidegate.api.reasons import Reason
from tidegate.planning.inference import side_conditions
from tidegate.planning.inference.serving_status import Verdict, make_condition
from tidegate.planning.inference.swap_failures import ObservedReplica
from tidegate.planning.plan import Event, EventType
from tidegate_dataplane.contract import CompilePhase, CompileReport

COMPILE_REQUEUE: Final = timedelta(seconds=5)
"""Nothing wakes the reconciler when a compilation ends."""
_SETTLED: Final = frozenset({CompilePhase.COMPILED, CompilePhase.UNCHANGED, CompilePhase.FAILED})
_MAX_REASON_CHARS: Final = 512


def compile_conditions(inference: Inference, replicas: Sequence[ObservedReplica]) -> tuple[Condition, ...]:
    """Return Compiled if the spec asks for graph passes, else nothing."""
    if not inference.spec.has_graph_passes:
        return ()
    verdict = _judge_graphs(inference, replicas)
    return (make_condition(ConditionType.COMPILED, verdict, inference.metadata.generation),)


def drop_compile_condition(
    inference: Inference, conditions: Sequence[ObservedCondition]
) -> tuple[ObservedCondition, ...]:
    """Drop Compiled from the conditions of an object whose spec asks for no graph passes any more."""
    if inference.spec.has_graph_passes:
        return tuple(conditions)
    return side_conditions.drop_condition(ConditionType.COMPILED, conditions)


def compile_events(
    previous: Sequence[ObservedCondition], current: Sequence[ObservedCondition]
) -> tuple[Event, ...]:
    """Return an event when the compiled graphs serve, and one when a compilation has failed."""
    old, new = (
        next((condition for condition in side if condition.type == ConditionType.COMPILED.value), None)
        for side in (previous, current)
    )
    if new is None or (old is not None and (old.reason, old.message) == (new.reason, new.message)):
        return ()
    if new.reason == Reason.COMPILE_FAILED.value:
        return (Event(EventType.WARNING, new.reason, new.message),)
    if new.reason == Reason.GRAPH_COMPILED.value:
        return (Event(EventType.NORMAL, new.reason, new.message),)
    return ()


def describe_graph(inference: Inference, replicas: Sequence[ObservedReplica]) -> CompiledGraph | None:
    """Return what the compiler made of the version in the spec; None before it has ended on any replica."""
    if not inference.spec.has_graph_passes:
        return None
    reports = _list_reports(inference, replicas)
    settled = next((report for report in reports if report.passes), None)
    if settled is None:
        earlier = inference.status.graph
        return earlier if earlier is not None and earlier.version == inference.spec.model.version else None
    return CompiledGraph(
        version=str(settled.version),
        replicas=sum(report.phase is CompilePhase.COMPILED for report in reports),
        nodes=settled.nodes_after,
        published_nodes=settled.nodes_before,
        passes=tuple(
            GraphPassStatus(
                name=result.name,
                applied=result.applied,
                reason=result.reason[:_MAX_REASON_CHARS],
                changes=result.changes,
            )
            for result in settled.passes
        ),
        speedups=tuple(
            GraphSpeedup(rows=rows, ratio=f"{ratio:.2f}") for rows, ratio in sorted(settled.speedups.items())
        ),
    )


def is_compiling(inference: Inference, replicas: Sequence[ObservedReplica]) -> bool:
    """Return whether a replica is not at the end of it, so that its agent has to be asked again."""
    if not inference.spec.has_graph_passes or not replicas:
        return False
    reports = _list_reports(inference, replicas)
    return len(reports) < len(replicas) or any(report.phase not in _SETTLED for report in reports)


def _list_reports(inference: Inference, replicas: Sequence[ObservedReplica]) -> list[CompileReport]:
    """Return the reports about the version in the spec."""
    return [
        replica.report.compile
        for replica in replicas
        if replica.report is not None
        and replica.report.compile is not None
        and str(replica.report.compile.version) == inference.spec.model.version
    ]


def _judge_graphs(inference: Inference, replicas: Sequence[ObservedReplica]) -> Verdict:
    """Return the failure that a replica has; else how many have compiled; True if all have come to the end."""
    if inference.spec.replicas == 0:
        return Verdict(False, Reason.SCALED_TO_ZERO, "spec.replicas is 0, no graph is compiled")
    version = inference.spec.model.version
    reports = _list_reports(inference, replicas)
    phases = Counter(report.phase for report in reports)
    failed = next((report for report in reports if report.phase is CompilePhase.FAILED), None)
    if failed is not None:
        share = f"on {phases[CompilePhase.FAILED]} of {len(replicas)} replicas"
        return Verdict(
            False,
            Reason.COMPILE_FAILED,
            f"version {version} serves as published {share}: {failed.message}",
        )
    ended = phases[CompilePhase.COMPILED] + phases[CompilePhase.UNCHANGED]
    if not replicas or ended < len(replicas):
        return Verdict(
            False,
            Reason.COMPILING,
            f"the graph of version {version} is compiled on {ended} of {len(replicas)} replicas; meanwhile it serves as published",
        )
    if not phases[CompilePhase.COMPILED]:
        return Verdict(
            True,
            Reason.GRAPH_UNCHANGED,
            f"no graph pass makes version {version} faster: it serves as published",
        )
    return Verdict(
        True,
        Reason.GRAPH_COMPILED,
        f"{phases[CompilePhase.COMPILED]} of {len(replicas)} replicas run the compiled graph of version {version}",
    )
