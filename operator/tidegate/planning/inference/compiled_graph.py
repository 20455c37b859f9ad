"""Report on the compiled graph in a condition of its own, because a version serves as published until it is there."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from tidegate.api.compilation import CompiledGraph, EngineBucket, GraphPassStatus, GraphSpeedup
from tidegate.api.conditions import ConditionStatus, ConditionType
from tidegate.api.inference import Inference
from tidegate.api.reasons import Reason
from tidegate.planning.inference.reported_problems import find_observed_condition
from tidegate.planning.inference.serving_status import Verdict, judge_compilers
from tidegate.planning.inference.swap_failures import ObservedReplica
from tidegate_dataplane.contract import CompilePhase, CompileReport, EngineReport

COMPILE_REQUEUE: Final = timedelta(seconds=5)
"""Nothing wakes the reconciler when a compilation ends."""
MIN_COMPARISON_REQUEUE: Final = timedelta(minutes=1)
MAX_COMPARISON_REQUEUE: Final = timedelta(hours=1)
"""Nor when a compiled graph is withdrawn, which was compared on requests."""

_SETTLED: Final = frozenset({CompilePhase.COMPILED, CompilePhase.UNCHANGED, CompilePhase.FAILED})
_MAX_REASON_CHARS: Final = 512
_MAX_BUCKETS: Final = 64


def describe_graph(inference: Inference, replicas: Sequence[ObservedReplica]) -> CompiledGraph | None:
    """Return what the compiler made of the version in the spec; None before it has ended on any replica."""
    if not inference.spec.has_graph_passes:
        return None
    reports = _list_reports(inference, replicas)
    compiled = sum(report.phase is CompilePhase.COMPILED for report in reports)
    tried = next((report for report in reports if report.passes), None) or next(
        (report for report in reports if report.engines is not None and report.engines.buckets), None
    )
    if tried is None:
        earlier = inference.status.graph
        same = earlier is not None and earlier.version == inference.spec.model.version
        return earlier.model_copy(update={"replicas": compiled}) if earlier is not None and same else None
    return CompiledGraph(
        version=str(tried.version),
        replicas=compiled,
        nodes=tried.nodes_after,
        published_nodes=tried.nodes_before,
        shared_inputs=tried.shared_inputs,
        compared_requests=tried.compared_requests,
        passes=tuple(
            GraphPassStatus(
                name=result.name,
                applied=result.applied,
                reason=result.reason[:_MAX_REASON_CHARS],
                changes=result.changes,
            )
            for result in tried.passes
        ),
        speedups=tuple(
            GraphSpeedup(rows=rows, ratio=f"{ratio:.2f}") for rows, ratio in sorted(tried.speedups.items())
        ),
        buckets=_describe_buckets(tried.engines) if inference.spec.has_engine else (),
    )


def _describe_buckets(engines: EngineReport | None) -> tuple[EngineBucket, ...]:
    """Return the buckets by shape; two shapes that are cut may become equal, and then the first stays."""
    buckets: dict[str, EngineBucket] = {}
    for bucket in engines.buckets[:_MAX_BUCKETS] if engines is not None else ():
        shape = bucket.shape[:_MAX_REASON_CHARS]
        buckets.setdefault(
            shape,
            EngineBucket(
                shape=shape,
                engine=bucket.engine,
                reason=bucket.reason[:_MAX_REASON_CHARS],
                ratio=f"{bucket.speedup:.2f}" if bucket.engine else "",
                error=f"{bucket.max_error:.1e}" if bucket.engine and bucket.max_error is not None else "",
            ),
        )
    return tuple(buckets.values())


def _explain_engines(inference: Inference, reports: Sequence[CompileReport]) -> str:
    """Return what engines do on the first replica that says so, to end a sentence with; empty without any."""
    engines = next((report.engines for report in reports if report.engines is not None), None)
    if engines is None or not inference.spec.has_engine:
        return ""
    run = sum(bool(bucket.engine) for bucket in engines.buckets)
    finished = sum(bool(bucket.engine or bucket.reason) for bucket in engines.buckets)
    shapes = (
        f"OpenVINO runs {run} of {finished} shapes that come often"
        if finished
        else "no shape has come often yet"
    )
    if finished and not run:
        reason = next(bucket.reason for bucket in engines.buckets if bucket.reason)
        shapes += f" ({reason[:_MAX_REASON_CHARS]}); remove spec.compile.engine if that stays so"
    return f"; {shapes}" + (f"; {engines.message[:_MAX_REASON_CHARS]}" if engines.message else "")


def _explain_cache(reports: Sequence[CompileReport]) -> str:
    """Return why the store for compiled graphs is not used, to end a sentence with; empty if nothing is wrong with it."""
    problem = next((report.cache_problem for report in reports if report.cache_problem), "")
    return f"; spec.compile.cache is not used: {problem[:_MAX_REASON_CHARS]}" if problem else ""


def is_compiling(inference: Inference, replicas: Sequence[ObservedReplica]) -> bool:
    """Return whether a replica has not finished, so that its agent has to be asked again."""
    if not inference.spec.has_graph_passes or not replicas:
        return False
    reports = _list_reports(inference, replicas)
    return len(reports) < len(replicas) or any(report.phase not in _SETTLED for report in reports)


def find_comparison_pause(
    inference: Inference, replicas: Sequence[ObservedReplica], now: datetime
) -> timedelta | None:
    """Return when to ask the agents for the next comparison of a compiled graph; None if none is served.

    A compiler waits twice as long after each comparison, so the next one comes when the graph is twice as old, and an hour later
    at most.
    """
    if not inference.spec.has_graph_passes:
        return None
    if all(report.phase is not CompilePhase.COMPILED for report in _list_reports(inference, replicas)):
        return None
    condition = find_observed_condition(ConditionType.COMPILED, inference.status.conditions)
    age = timedelta()
    if condition is not None and condition.status is ConditionStatus.TRUE:
        age = now - condition.last_transition_time
    return min(max(age, MIN_COMPARISON_REQUEUE), MAX_COMPARISON_REQUEUE)


def _list_reports(inference: Inference, replicas: Sequence[ObservedReplica]) -> list[CompileReport]:
    """Return the reports about the version in the spec."""
    return [
        replica.report.compile
        for replica in replicas
        if replica.report is not None
        and replica.report.compile is not None
        and str(replica.report.compile.version) == inference.spec.model.version
    ]


def judge_graphs(
    inference: Inference, replicas: Sequence[ObservedReplica], *, has_gpu: bool = False
) -> Verdict | None:
    """Return the failure that a replica has; else how many have compiled, True if all have come to the end.

    None if the spec asks for no graph passes.
    """
    if not inference.spec.has_graph_passes:
        return None
    version = inference.spec.model.version
    if has_gpu:
        return Verdict(
            False,
            Reason.COMPILE_FAILED,
            f"version {version} serves as published: graph passes are proved on CPUs, and the slices of its ComputePool have "
            "GPUs; remove spec.compile, or compile the model yourself and set spec.model.format to TensorRT or TorchExport",
        )
    if inference.spec.replicas == 0:
        return Verdict(False, Reason.SCALED_TO_ZERO, "spec.replicas is 0, no graph is compiled")
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
    problem = judge_compilers(replica.pod for replica in replicas)
    if problem is not None:
        return Verdict(
            False,
            Reason.COMPILE_FAILED,
            f"{problem.message}; the pod serves with the graph that it has, and no other is compiled there",
        )
    ended = phases[CompilePhase.COMPILED] + phases[CompilePhase.UNCHANGED]
    if not any(replica.report is not None and replica.report.serving is not None for replica in replicas):
        return Verdict(False, Reason.COMPILING, f"the graph of version {version} is compiled once it serves")
    if ended < len(replicas):
        return Verdict(
            False,
            Reason.COMPILING,
            f"the graph of version {version} is compiled on {ended} of {len(replicas)} replicas; meanwhile it serves as published"
            f"{_explain_cache(reports)}",
        )
    details = f"{_explain_engines(inference, reports)}{_explain_cache(reports)}"
    if not phases[CompilePhase.COMPILED]:
        return Verdict(
            True,
            Reason.GRAPH_UNCHANGED,
            f"no graph pass makes version {version} faster: it serves as published{details}",
        )
    return Verdict(
        True,
        Reason.GRAPH_COMPILED,
        f"{phases[CompilePhase.COMPILED]} of {len(replicas)} replicas run the compiled graph of version {version}{details}",
    )
