"""What the graph passes of `spec.compile` gain on six recommendation models, exported as users export them.

    python bench/passes.py [--models din bst ...] [--output build/passes] [--seconds 0.4] [--state-dir DIR]

Trains the models of examples/recommenders once, into OUTPUT. Each is compiled as in a pod, and compared with the published
graph in ONNX Runtime on one thread, in turns, at twelve shapes: 1 to 128 candidates of one user with histories of 20, 50 and
200 films where the model takes any, else 1 to 512 candidates. Models with inputs of the user are compared at 1, 20 and 200
candidates as well, with the user's inputs sent once (`sharedInputs`) against the published graph with one row per candidate.
With --state-dir, also through the gateway of a local cluster: three Inferences of each model, `compile.passes` Disabled and
Auto, and with shared inputs, asked in turns by one client. Prints one JSON document; exits 1 if an answer differs or a
speed-up misses its target.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "movielens"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "recommenders"))

from builders.recommenders import random_events
from movielens_din.archive import cache_root, fetch_wheel
from movielens_din.data import read_movielens
from movielens_din.publish import write_version
from movielens_din.training import Training
from recommender_models.columns import USER_COLUMNS, Events, read_events
from recommender_models.recipe import MODELS, train_model
from tidegate_dataplane.compiler.exchange import GRAPH_FILE, CompileResult
from tidegate_dataplane.compiler.optimize import compile_file
from tidegate_dataplane.graph_passes.pipeline import TOLERANCE
from tidegate_dataplane.graph_passes.proof import Session, measure_error

Inputs: TypeAlias = Mapping[str, NDArray[Any]]
Arm: TypeAlias = Callable[[Inputs], Sequence[NDArray[Any]]]
Asked: TypeAlias = tuple[Mapping[str, int], Inputs, Inputs]
"""What a request is like, and what each of the two arms gets."""
TARGETS = {"minimum": 0.97, "geometric_mean": 1.3}
SHARED_TARGETS = {"speedup": 3.0, "fewer_bytes": 10.0}
"""For 200 candidates, where the user's side is heavy: a tower of the user."""
HISTORY = "history"
SHAPES_WITH_HISTORY = tuple((rows, length) for rows in (1, 8, 32, 128) for length in (20, 50, 200))
SHARED_SHAPES = tuple((rows, 50) for rows in (1, 20, 200))
SHAPES = tuple((rows, 50) for rows in (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512))
MIN_RUNS = 20
COMPILED_S = 900.0


def train_missing(names: Sequence[str], output: Path) -> None:
    """Train the models that OUTPUT does not have."""
    missing = [name for name in names if not (output / name / "1" / "model.onnx").exists()]
    events: Events | None = None
    for name in missing:
        events = events or read_events(read_movielens(fetch_wheel(cache_root())))
        trained = train_model(name, events, Training(seed=1, epochs=1))
        print(f"{name}: AUC {trained.areas}, by the film's mean {trained.baseline:.4f}", file=sys.stderr)
        write_version(output / name, "1", trained.graph.SerializeToString(deterministic=True))


def compile_graph(folder: Path, shared: Sequence[str] = ()) -> tuple[onnx.ModelProto, CompileResult]:
    """Compile a version as the compiler in a pod does; return the graph to serve."""
    source, scratch = folder / "1" / "model.onnx", folder / "compiled"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    compile_file([str(source), str(scratch), *(f"--shared-input={name}" for name in shared)])
    result = CompileResult.model_validate_json((scratch / "result.json").read_bytes())
    return onnx.load(scratch / GRAPH_FILE if result.graph_sha256 else source), result


def list_user_inputs(name: str) -> list[str]:
    """Return the inputs of a model that are equal for all candidates of a user."""
    return [each for each in MODELS[name].INPUTS if each in USER_COLUMNS or each == HISTORY]


def list_requests(name: str) -> list[Asked]:
    """Return one request of each shape."""
    has_history = HISTORY in MODELS[name].INPUTS
    requests: list[Asked] = []
    for rows, length in SHAPES_WITH_HISTORY if has_history else SHAPES:
        inputs = MODELS[name].make_inputs(random_events(rows, length))
        facts = {"rows": rows, **({HISTORY: length} if has_history else {})}
        requests.append((facts, inputs, inputs))
    return requests


def list_shared_requests(name: str) -> list[Asked]:
    """Return requests of one user, for one arm with the user's inputs repeated and for the other with one row of them."""
    requests: list[Asked] = []
    for rows, length in SHARED_SHAPES:
        inputs = MODELS[name].make_inputs(random_events(rows, length))
        once = {each: values[:1] for each, values in inputs.items() if each in list_user_inputs(name)}
        repeated = {each: np.repeat(values, rows, axis=0) for each, values in once.items()}
        requests.append(({"rows": rows}, {**inputs, **repeated}, {**inputs, **once}))
    return requests


def measure_arms(
    requests: Sequence[Asked], arms: Sequence[Arm], seconds: float, clock: Callable[[], float]
) -> list[dict[str, Any]]:
    """Ask both arms in turn for each request; return medians, speed-up and difference of the answers."""
    measured: list[dict[str, Any]] = []
    for facts, *inputs in requests:
        expected, answer = (arm(given) for arm, given in zip(arms, inputs, strict=True))
        times: tuple[list[float], list[float]] = ([], [])
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(times[0]) < MIN_RUNS:
            for arm, given, taken in zip(arms, inputs, times, strict=True):
                start = clock()
                arm(given)
                taken.append(clock() - start)
        published, compiled = map(statistics.median, times)
        sizes = [sum(values.nbytes for values in given.values()) for given in inputs]
        measured.append(
            {
                **facts,
                "published_ms": round(published * 1e3, 4),
                "compiled_ms": round(compiled * 1e3, 4),
                "per_second": [round(len(taken) / sum(taken)) for taken in times],
                "speedup": round(published / compiled, 3),
                "fewer_bytes": round(sizes[0] / sizes[1], 1),
                "error": max(map(measure_error, expected, answer)),
            }
        )
    return measured


def summarize(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures that have targets."""
    speedups = [shape["speedup"] for shape in measured]
    return {
        "minimum": min(speedups),
        "geometric_mean": round(statistics.geometric_mean(speedups), 3),
        "error": max(shape["error"] for shape in measured),
    }


def make_offline_arm(graph: onnx.ModelProto) -> Arm:
    """Return an arm that runs the graph here."""
    session = Session(graph)

    def run_graph(inputs: Inputs) -> Sequence[NDArray[Any]]:
        answer = session.run_request(inputs)
        assert answer is not None, "a valid request is answered"
        return answer

    return run_graph


def measure_offline(name: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Compare the two graphs of a model in this process."""
    published = onnx.load(folder / "1" / "model.onnx")
    compiled, result = compile_graph(folder)
    # Processor time: the session runs on this thread alone, so that other work does not count.
    arms = [make_offline_arm(published), make_offline_arm(compiled)]
    measured = measure_arms(list_requests(name), arms, seconds, time.thread_time)
    return {
        "nodes": [len(published.graph.node), len(compiled.graph.node)],
        "passes": {outcome.name: outcome.applied or outcome.reason for outcome in result.passes},
        **summarize(measured),
        "shapes": measured,
    }


def measure_sharing(name: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Compare the published graph of a model with one that takes one row of the user, in this process."""
    published = onnx.load(folder / "1" / "model.onnx")
    compiled, result = compile_graph(folder, list_user_inputs(name))
    arms = [make_offline_arm(published), make_offline_arm(compiled)]
    requests = list_shared_requests(name)
    if not result.shared_inputs:
        requests = [(facts, repeated, repeated) for facts, repeated, _ in requests]
    return {
        "passes": {outcome.name: outcome.applied or outcome.reason for outcome in result.passes},
        "shared_inputs": result.shared_inputs,
        "shapes": measure_arms(requests, arms, seconds, time.thread_time),
    }


def judge_sharing(models: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of each model; the targets are for the two-tower, whose user has a tower."""
    wrong = [
        name for name, model in models.items() if any(each["error"] > TOLERANCE for each in model["shapes"])
    ]
    largest = {name: model["shapes"][-1] for name, model in models.items()}
    missed = [
        f"{name}: {largest['two-tower'][name]} of {target}"
        for name, target in SHARED_TARGETS.items()
        if "two-tower" in largest and largest["two-tower"][name] < target
    ]
    return {"missed": missed, "wrong": wrong, "models": models}


def measure_gateway(names: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """Compare two Inferences of each model through the gateway of a local cluster."""
    from harness import open_space

    with open_space(options.state_dir, "passes") as space:
        return {name: measure_inferences(space, name, options) for name in names}


def measure_inferences(space: Any, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Serve a model without passes, with them, and with shared inputs; compare the answers and their times."""
    shutil.copytree(options.output / name / "1", space.folder(name) / "1", dirs_exist_ok=True)
    user_inputs = list_user_inputs(name)
    inferences = {f"{name}-disabled": ("Disabled", []), f"{name}-auto": ("Auto", [])}
    if user_inputs:
        inferences[f"{name}-shared"] = ("Auto", user_inputs)
    for inference, (passes, shared) in inferences.items():
        spec = {
            "model": {"name": name, "uri": space.uri(name), "version": "1", "sharedInputs": shared},
            "resources": {"cpu": "200m", "memory": "512Mi"},
            "batching": {"maxBatchSize": 512},
            "compile": {"passes": passes, "memory": "2Gi"},
        }
        space.apply("Inference", inference, spec)
        space.access((inference, 100), name=inference)
    space.ready(*(f"{kind}/{inference}" for inference in inferences for kind in ("inference", "modelaccess")))
    for inference in list(inferences)[1:]:
        wait_until_compiled(space, inference)
    published, compiled, *shared_arms = (make_gateway_arm(space, name, each) for each in inferences)
    measured = measure_arms(list_requests(name), [published, compiled], options.seconds, time.perf_counter)
    result = {"passes": {**summarize(measured), "shapes": measured}}
    for arm in shared_arms:
        requests = list_shared_requests(name)
        result["sharing"] = {
            "shared_inputs": space.status("inference", f"{name}-shared")["graph"].get("sharedInputs", []),
            "shapes": measure_arms(requests, [published, arm], options.seconds, time.perf_counter),
        }
    for inference in inferences:
        space.kubectl.run("delete", "inference,modelaccess", inference, "-n", space.namespace)
    return result


def wait_until_compiled(space: Any, inference: str) -> None:
    """Wait until the compiler has come to an end."""
    from builders.waiting import wait_until

    def is_compiled() -> bool:
        reason = space.condition("inference", inference, "Compiled").get("reason")
        assert reason != "CompileFailed", space.status("inference", inference)
        return reason in ("GraphCompiled", "GraphUnchanged")

    wait_until(is_compiled, f"{inference} is compiled", timeout_s=COMPILED_S)


def make_gateway_arm(space: Any, model: str, access: str) -> Arm:
    """Return an arm that asks an Inference over a connection of its own."""
    import tritonclient.grpc as triton
    from tritonclient.utils import np_to_triton_dtype

    client = triton.InferenceServerClient(space.installed.endpoints.gateway)
    headers = {"x-tidegate-access": f"{space.namespace}/{access}"}

    def ask_model(inputs: Inputs) -> Sequence[NDArray[Any]]:
        tensors = []
        for name, values in inputs.items():
            tensor = triton.InferInput(name, list(values.shape), np_to_triton_dtype(values.dtype))
            tensor.set_data_from_numpy(values)
            tensors.append(tensor)
        result: Any = client.infer(model, tensors, headers=headers, client_timeout=30.0)
        return [result.as_numpy(output) for output in MODELS[model].OUTPUTS]

    return ask_model


def judge(models: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures over all models, and which targets they miss."""
    minimum = min(model["minimum"] for model in models.values())
    mean = statistics.geometric_mean(
        shape["speedup"] for model in models.values() for shape in model["shapes"]
    )
    figures = {"minimum": minimum, "geometric_mean": round(mean, 3)}
    missed = [
        f"{name}: {figures[name]} of {target}" for name, target in TARGETS.items() if figures[name] < target
    ]
    wrong = [name for name, model in models.items() if model["error"] > TOLERANCE]
    return {**figures, "missed": missed, "wrong": wrong, "models": models}


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--output", type=Path, default=Path("build/passes"))
    parser.add_argument("--seconds", type=float, default=0.4, help="for each shape")
    parser.add_argument("--state-dir", type=Path, help="a local cluster, to measure through its gateway too")
    options = parser.parse_args()
    train_missing(options.models, options.output)
    shared = [name for name in options.models if list_user_inputs(name)]
    folders = {name: options.output / name for name in options.models}
    results = {
        "offline": judge({name: measure_offline(name, folders[name], options.seconds) for name in folders}),
        "sharing": judge_sharing(
            {name: measure_sharing(name, folders[name], options.seconds) for name in shared}
        ),
    }
    if options.state_dir is not None:
        served = measure_gateway(options.models, options)
        results["gateway"] = judge({name: model["passes"] for name, model in served.items()})
        results["gateway_sharing"] = judge_sharing({name: served[name]["sharing"] for name in shared})
    targets = {"passes": TARGETS, "sharing": SHARED_TARGETS}
    print(json.dumps({"targets": targets, **results}, indent=1))
    return int(any(arm["missed"] or arm["wrong"] for arm in results.values()))


if __name__ == "__main__":
    sys.exit(main())
