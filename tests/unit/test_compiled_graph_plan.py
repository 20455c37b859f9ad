"""Plan compiled graphs: what agents are told, which container pods have, and what the status says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from builders.inference import an_inference
from builders.pods import a_pod, a_report
from tidegate.api.inference import Inference
from tidegate.api.reasons import Reason
from tidegate.errors import InvalidSpecError
from tidegate.planning.inference.compiled_graph import (
    COMPILE_REQUEUE,
    MAX_COMPARISON_REQUEUE,
    MIN_COMPARISON_REQUEUE,
    judge_graphs,
)
from tidegate.planning.inference.observed import InferenceObserved
from tidegate.planning.inference.planner import plan_inference
from tidegate.planning.plan import ReconcilePlan
from tidegate.planning.pods import PodProblem
from tidegate.resources.inference import build_inference_objects, hash_source, make_desired_state
from tidegate.resources.serving import find_deployment, find_template_hash
from tidegate.resources.settings import ServingSettings
from tidegate.resources.slices import SliceResources
from tidegate_dataplane.contract import (
    AgentReport,
    BucketResult,
    CompilePhase,
    CompileReport,
    EngineMode,
    EngineOrder,
    EnginePrecision,
    EngineReport,
    PassResult,
)

SETTINGS = ServingSettings(
    dataplane_image="dataplane:1",
    triton_image="triton:1",
    models_host_path="/models",
    node_cache_path="/cache",
    node_cache_bytes=5,
)
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SLICES = SliceResources(labels={}, node_selector={}, tolerations=(), cpu="950m", memory="1920Mi")
PASSES = (
    PassResult(name="simplify", applied=False, reason="nothing to change"),
    PassResult(name="fuseEmbeddings", applied=True, changes=300),
)

NO_CONDITION = ("", "", "")
NO_PROBLEMS: Mapping[int, PodProblem] = {}


def plan(
    inference: Inference, *reports: AgentReport, problems: Mapping[int, PodProblem] = NO_PROBLEMS
) -> ReconcilePlan:
    template = find_template_hash(build_inference_objects(inference, SETTINGS, ""))
    pods = [
        a_pod(f"p{number}", source=hash_source(inference), template=template, trouble=problems.get(number))
        for number in range(len(reports))
    ]
    observed = InferenceObserved(
        inference,
        NOW,
        epoch=3,
        pods=pods,
        reports={pod.uid: report for pod, report in zip(pods, reports, strict=True)},
    )
    return plan_inference(observed, SETTINGS)


def compile_report(phase: CompilePhase, version: int = 1, **fields: Any) -> AgentReport:
    return a_report(version, compile=CompileReport(version=version, phase=phase, **fields))


def compiled() -> AgentReport:
    return compile_report(
        CompilePhase.COMPILED,
        passes=PASSES,
        speedups={1: 16.7, 16: 6.59},
        shared_inputs=("user",),
        nodes_before=602,
        nodes_after=12,
        compared_requests=8,
    )


def condition(plan: ReconcilePlan) -> tuple[str, str, str] | None:
    conditions: Any = plan.status["conditions"]
    found = next((item for item in conditions if item["type"] == "Compiled"), None)
    return (found["status"], found["reason"], found["message"]) if found else None


def containers(inference: Inference) -> dict[str, Any]:
    deployment: Any = find_deployment(build_inference_objects(inference, SETTINGS, ""))
    return {each["name"]: each for each in deployment["spec"]["template"]["spec"]["containers"]}


@pytest.mark.parametrize("changes", [{}, {"compile": {"passes": "Disabled"}}])
def test_without_passes_there_is_no_compiler_no_order_and_no_condition(changes: dict[str, Any]) -> None:
    inference = an_inference(**changes)
    planned = plan(inference, a_report(1))

    assert containers(inference).keys() == {"triton"}
    assert "graphPasses" not in make_desired_state(inference, SETTINGS, epoch=1).to_json()
    assert condition(planned) is None
    assert "graph" not in planned.status
    assert planned.requeue_after is None


def test_the_compiler_requests_nothing_and_has_the_memory_of_a_replica_unless_the_spec_says_otherwise() -> (
    None
):
    inference = an_inference(compile={}, resources={"cpu": "1", "memory": "3Gi"})
    compiler = containers(inference)["compiler"]
    bigger = containers(an_inference(compile={"memory": "8Gi"}))["compiler"]

    assert compiler["resources"] == {"requests": {"cpu": "0", "memory": "0"}, "limits": {"memory": "3Gi"}}
    assert bigger["resources"]["limits"] == {"memory": "8Gi"}
    assert make_desired_state(inference, SETTINGS, epoch=1).graph_passes


def test_only_graphs_of_onnx_are_compiled_and_none_of_a_batch() -> None:
    with pytest.raises(InvalidSpecError, match="compile is only for format ONNX"):
        an_inference(compile={}, model={"uri": "s3://models/ctr", "version": "1", "format": "Python"})


def test_while_a_replica_compiles_the_version_serves_and_its_agent_is_asked_again() -> None:
    inference = an_inference(compile={}, replicas=2)
    planned = plan(inference, compiled(), compile_report(CompilePhase.COMPILING))

    assert condition(planned) == (
        "False",
        "Compiling",
        "the graph of version 1 is compiled on 1 of 2 replicas; meanwhile it serves as published",
    )
    ready: Any = planned.status["conditions"]
    assert next(item for item in ready if item["type"] == "Ready")["status"] == "True"
    assert planned.requeue_after == COMPILE_REQUEUE


def test_the_status_has_the_passes_and_the_measured_speed_up() -> None:
    planned = plan(an_inference(compile={}, replicas=2), compiled(), compiled())

    assert condition(planned) == (
        "True",
        "GraphCompiled",
        "2 of 2 replicas run the compiled graph of version 1",
    )
    assert planned.status["graph"] == {
        "version": "1",
        "replicas": 2,
        "nodes": 12,
        "publishedNodes": 602,
        "sharedInputs": ["user"],
        "comparedRequests": 8,
        "passes": [
            {"name": "simplify", "applied": False, "reason": "nothing to change", "changes": 0},
            {"name": "fuseEmbeddings", "applied": True, "reason": "", "changes": 300},
        ],
        "speedups": [{"rows": 1, "ratio": "16.70"}, {"rows": 16, "ratio": "6.59"}],
        "buckets": [],
    }
    assert "GraphCompiled" in [event.reason for event in planned.events]
    assert planned.requeue_after == MIN_COMPARISON_REQUEUE


@pytest.mark.parametrize(
    ("age", "pause"),
    [
        (timedelta(seconds=5), MIN_COMPARISON_REQUEUE),
        (timedelta(minutes=7), timedelta(minutes=7)),
        (timedelta(days=30), MAX_COMPARISON_REQUEUE),
    ],
)
def test_agents_are_asked_for_comparisons_as_seldom_as_compilers_make_them(
    age: timedelta, pause: timedelta
) -> None:
    since = (NOW - age).isoformat()
    status = {"conditions": [{"type": "Compiled", "status": "True", "lastTransitionTime": since}]}

    assert plan(an_inference(compile={}, status=status), compiled()).requeue_after == pause


def test_agents_whose_graphs_are_published_ones_are_not_asked_again() -> None:
    unchanged = compile_report(CompilePhase.UNCHANGED, passes=PASSES[:1])

    assert plan(an_inference(compile={}), unchanged).requeue_after is None


ENGINES = EngineReport(
    buckets=(
        BucketResult(shape="x 16x4", engine="OpenVINO", speedup=1.314, max_error=2e-7),
        BucketResult(shape="x 1x4", reason="OpenVINO is no faster than ONNX Runtime: 0.87x"),
        BucketResult(shape="x 2x4"),
    ),
    message="padding the length changes the answers",
)


def test_an_engine_is_ordered_with_its_buckets_and_the_server_may_load_it() -> None:
    spec = {"engine": "Auto", "precision": "BF16", "buckets": {"rows": [1, 16]}}
    inference = an_inference(compile=spec)

    order = make_desired_state(inference, SETTINGS, epoch=1)

    assert order.engine == EngineOrder(
        engine=EngineMode.AUTO, precision=EnginePrecision.BF16, rows=(1, 16), lengths=()
    )
    mounts = {
        name: [mount["name"] for mount in each["volumeMounts"]]
        for name, each in containers(inference).items()
    }
    assert "compile" in mounts["triton"]
    assert "compile" in mounts["compiler"]
    without = an_inference(compile={})
    assert make_desired_state(without, SETTINGS, epoch=1).engine is None
    # The runner keeps requests there, on which the compiler compares both graphs.
    assert "compile" in [mount["name"] for mount in containers(without)["triton"]["volumeMounts"]]
    plain = containers(an_inference())
    assert "compiler" not in plain
    assert "compile" not in [mount["name"] for mount in plain["triton"]["volumeMounts"]]
    slices = replace(SLICES, devices={"nvidia.com/gpu": "1"})
    assert make_desired_state(inference, SETTINGS, epoch=1, slices=slices).engine is None


def test_the_status_has_the_shapes_that_come_often_and_what_runs_them() -> None:
    inference = an_inference(compile={"engine": "Auto"})

    planned = plan(inference, compile_report(CompilePhase.UNCHANGED, passes=PASSES[:1], engines=ENGINES))

    graph: Any = planned.status["graph"]
    assert graph["buckets"] == [
        {"shape": "x 16x4", "engine": "OpenVINO", "reason": "", "ratio": "1.31", "error": "2.0e-07"},
        {
            "shape": "x 1x4",
            "engine": "",
            "reason": "OpenVINO is no faster than ONNX Runtime: 0.87x",
            "ratio": "",
            "error": "",
        },
        {"shape": "x 2x4", "engine": "", "reason": "", "ratio": "", "error": ""},
    ]
    assert (condition(planned) or NO_CONDITION)[2] == (
        "no graph pass makes version 1 faster: it serves as published; OpenVINO runs 1 of 2 shapes that come often; padding the "
        "length changes the answers"
    )
    assert planned.requeue_after is not None


def test_where_no_engine_runs_any_shape_the_condition_has_a_reason_and_what_to_do() -> None:
    reason = "OpenVINO does not compile the graph: operator Foo is unknown"
    engines = EngineReport(buckets=(BucketResult(shape="x 1x4"), BucketResult(shape="x 2x4", reason=reason)))

    planned = plan(
        an_inference(compile={"engine": "OpenVINO"}),
        compile_report(CompilePhase.COMPILED, passes=PASSES, engines=engines),
    )

    assert (condition(planned) or NO_CONDITION)[2].endswith(
        f"; OpenVINO runs 0 of 1 shapes that come often ({reason}); remove spec.compile.engine if that stays so"
    )


def test_a_store_for_compiled_graphs_is_ordered_and_its_failure_is_named() -> None:
    inference = an_inference(compile={"cache": "s3://models/compiled"})

    assert make_desired_state(inference, SETTINGS, epoch=1).compile_cache == "s3://models/compiled"
    assert make_desired_state(an_inference(compile={}), SETTINGS, epoch=1).compile_cache == ""
    disabled = an_inference(compile={"passes": "Disabled", "cache": "s3://models/compiled"})
    assert make_desired_state(disabled, SETTINGS, epoch=1).compile_cache == ""
    problem = "s3://models/compiled/a.graph may not be written"
    for phase in (CompilePhase.COMPILING, CompilePhase.UNCHANGED, CompilePhase.COMPILED):
        planned = plan(inference, compile_report(phase, cache_problem=problem))
        assert (condition(planned) or NO_CONDITION)[2].endswith(
            f"; spec.compile.cache is not used: {problem}"
        )


def test_the_status_has_the_shapes_although_the_passes_failed() -> None:
    failure = compile_report(CompilePhase.FAILED, message="no memory", engines=ENGINES)

    planned = plan(an_inference(compile={"engine": "Auto"}), failure)

    graph: Any = planned.status["graph"]
    assert [bucket["shape"] for bucket in graph["buckets"]] == ["x 16x4", "x 1x4", "x 2x4"]
    assert graph["passes"] == []
    assert (condition(planned) or NO_CONDITION)[1] == "CompileFailed"
    without = plan(an_inference(compile={"engine": "Auto"}), compile_report(CompilePhase.FAILED))
    assert "graph" not in without.status


def test_before_a_shape_comes_often_the_condition_says_so() -> None:
    inference = an_inference(compile={"engine": "OpenVINO"})

    planned = plan(inference, compile_report(CompilePhase.COMPILED, passes=PASSES, engines=EngineReport()))

    assert (condition(planned) or NO_CONDITION)[2].endswith("; no shape has come often yet")


def test_a_graph_that_no_pass_improves_is_well() -> None:
    planned = plan(an_inference(compile={}), compile_report(CompilePhase.UNCHANGED, passes=PASSES[:1]))

    assert condition(planned) == (
        "True",
        "GraphUnchanged",
        "no graph pass makes version 1 faster: it serves as published",
    )


def test_a_failure_says_which_version_serves_as_published_and_what_to_do() -> None:
    failure = compile_report(CompilePhase.FAILED, message="it needs more memory: raise spec.compile.memory")
    planned = plan(an_inference(compile={}, replicas=2), compiled(), failure)

    assert condition(planned) == (
        "False",
        "CompileFailed",
        "version 1 serves as published on 1 of 2 replicas: it needs more memory: raise spec.compile.memory",
    )
    assert "CompileFailed" in [event.reason for event in planned.events]
    assert planned.requeue_after == MIN_COMPARISON_REQUEUE, "the other replica's graph may be withdrawn"


def test_a_compiler_that_keeps_ending_in_a_pod_that_serves_is_named() -> None:
    problem = PodProblem(Reason.POD_FAILING, "container compiler keeps ending (Error, exit code 1)")
    inference = an_inference(compile={}, replicas=2)

    planned = plan(inference, compiled(), a_report(1), problems={1: problem})

    assert condition(planned) == (
        "False",
        "CompileFailed",
        "pod p1: container compiler keeps ending (Error, exit code 1); the pod serves with the graph that it has, and no other "
        "is compiled there",
    )
    assert "CompileFailed" in [event.reason for event in planned.events]
    conditions: Any = planned.status["conditions"]
    assert next(item["reason"] for item in conditions if item["type"] == "Ready") == "AllReplicasReady"


def test_before_a_version_serves_it_says_so() -> None:
    planned = plan(an_inference(compile={}), a_report(None, target=1))

    assert (condition(planned) or NO_CONDITION)[2] == "the graph of version 1 is compiled once it serves"


def test_on_slices_with_gpus_no_graph_is_compiled_and_the_condition_says_why() -> None:
    inference = an_inference(compile={}, placement={"pool": "gpu-a"})
    slices = replace(SLICES, devices={"nvidia.com/gpu.shared": "1"})

    assert not make_desired_state(inference, SETTINGS, epoch=1, slices=slices).graph_passes
    assert make_desired_state(inference, SETTINGS, epoch=1, slices=SLICES).graph_passes
    verdict = judge_graphs(inference, (), has_gpu=True)
    assert verdict is not None
    assert (verdict.reason, "remove spec.compile" in verdict.message) == (Reason.COMPILE_FAILED, True)


def test_a_report_about_another_version_does_not_count() -> None:
    planned = plan(an_inference(compile={}), compile_report(CompilePhase.COMPILED, version=7))

    assert (condition(planned) or NO_CONDITION)[1] == "Compiling"


@pytest.mark.parametrize(
    ("changes", "policy"),
    [
        ({}, "AlwaysAllow"),
        ({"compile": {"passes": "Disabled"}}, "AlwaysAllow"),
        ({"compile": {}}, "IfHealthyBudget"),
    ],
)
def test_pods_that_serve_without_their_compiler_are_evicted_within_the_budget(
    changes: dict[str, Any], policy: str
) -> None:
    inference = an_inference(replicas=2, **changes)
    applied: Any = plan_inference(InferenceObserved(inference, NOW, epoch=1), SETTINGS).apply

    budget = next(one["spec"] for one in applied if one["kind"] == "PodDisruptionBudget")
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, policy)
