"""A pipeline on real pods: features, two models and their end, on the counters of the Tritons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from builders.waiting import LIMIT_S, wait_until
from fixtures.installed import Space, refused

USERS = 50
LABEL = "tidegate.io/pipeline=scene.home"


def _ask(space: Space, *users: int) -> Mapping[str, list[Any]]:
    """The pipeline's answer. Raises InferenceServerException."""
    rows = triton.InferInput("user_id", [len(users), 1], "INT64")
    rows.set_data_from_numpy(np.array(users, dtype=np.int64)[:, None])
    with triton.InferenceServerClient(space.installed.endpoints.gateway) as client:
        headers = {"x-tidegate-access": f"{space.namespace}/scene"}
        answer: Any = client.infer("scene", [rows], headers=headers, client_timeout=LIMIT_S)
        return {
            output.name: answer.as_numpy(output.name).ravel().tolist()
            for output in answer.get_response().outputs
        }


def _calls(space: Space) -> Counter[tuple[str, ...]]:
    """What the pipeline's Tritons say that they have done, by metric and labels."""
    found: Counter[tuple[str, ...]] = Counter()
    for pod in space.installed.pods(space.namespace, LABEL):
        for sample in space.installed.metrics(space.namespace, pod["metadata"]["name"], 8002):
            if sample.name.startswith("tidegate_pipeline_"):
                labels = (sample.labels[name] for name in ("part", "outcome") if name in sample.labels)
                found[sample.name, *labels] += int(sample.value)
    return found


def _publish(space: Space) -> None:
    folder = space.folder("tables")
    folder.mkdir(parents=True, exist_ok=True)
    x = pa.array([float(user) for user in range(USERS)], pa.float32())
    pq.write_table(pa.table({"user_id": list(range(USERS)), "x": x}), folder / "users.parquet")
    features = {
        "entities": [{"name": "user", "key": "user_id", "type": "int64"}],
        "sources": [
            {"name": "profiles", "entity": "user", "table": {"uri": f"{space.uri('tables')}/users.parquet"}}
        ],
        "features": [{"name": "x", "lookup": {"field": "profiles.x", "type": "float32", "default": "-1"}}],
        "resources": {"cpu": "50m", "memory": "512Mi"},
    }
    space.apply("FeatureCompute", "users", features)
    for name, version in (("a", 1), ("b", 2)):
        space.publish(name, version)
        space.inference(name, version=version)


def _scene(space: Space) -> None:
    # Its default is for when nobody serves it: a busy machine is waited for, within the time of the route.
    optional = {"optional": True, "timeout": f"{LIMIT_S / 2:g}s", "default": "0.5"}
    models = [{"inference": "a", "as": "first"}, {"inference": "b", "as": "second", **optional}]
    resources = {"cpu": "50m", "memory": "512Mi"}
    pipeline = {"features": "users", "models": models, "resources": resources}
    route = {"name": "home", "timeout": f"{LIMIT_S:g}s", "pipeline": pipeline}
    space.apply("ModelAccess", "scene", {"routes": [route]})


def _nobody_else_calls_its_models(space: Space) -> None:
    """Its pod just did, through the Service; who knows where it calls is refused all the same."""
    (uid,) = space.kubectl.run(
        "get", "modelaccess", "scene", "-n", space.namespace, "-o", "jsonpath={.metadata.uid}"
    ).split()
    headers = {"x-tidegate-access": f"pipeline/of/{uid}", "x-tidegate-part": "a"}
    x = triton.InferInput("x", [1, 1], "FP32")
    x.set_data_from_numpy(np.zeros((1, 1), dtype=np.float32))
    with triton.InferenceServerClient(space.installed.endpoints.gateway) as client:
        answer = refused(lambda: client.infer("a", [x], headers=headers, client_timeout=LIMIT_S))
    assert answer.status() == "StatusCode.PERMISSION_DENIED"


def test_a_pipeline_answers_whole_and_without_its_optional_model(space: Space) -> None:
    _publish(space)
    _scene(space)
    space.ready("featurecompute/users", "inference/a", "inference/b", "modelaccess/scene")

    asked: list[object] = []

    def answered() -> object:
        """The answer, or why there is none: gateways know of a route, and of who is there again, after its status."""
        try:
            asked.append(_ask(space, 3, 7))
        except InferenceServerException as error:
            asked.append(str(error))
        return asked[-1]

    def parts() -> tuple[int, list[int]]:
        (route,) = space.status("modelaccess", "scene")["routes"]
        pipeline = route["pipeline"]
        return pipeline["readyReplicas"], [part["endpoints"] for part in pipeline["models"]]

    # It is Ready without its optional model.
    wait_until(lambda: parts() == (1, [1, 1]), "all of its parts are there", evidence=parts)
    whole = {"first": [1003.0, 1007.0], "second": [2003.0, 2007.0], "tidegate_defaulted": [b"", b""]}
    wait_until(lambda: answered() == whole, "the answer is whole", evidence=answered)
    with ThreadPoolExecutor(32) as clients:
        answers = list(clients.map(lambda user: _ask(space, user), [user % USERS for user in range(64)]))
    assert answers == [
        {"first": [1000.0 + user], "second": [2000.0 + user], "tidegate_defaulted": [b""]}
        for user in (number % USERS for number in range(64))
    ]
    # Counters follow the answers by a moment; how far those counted that got none is unknown.
    least = 64 + asked.count(whole)
    parts_answered = [
        ("tidegate_pipeline_requests_total", part, "answered") for part in ("features", "first", "second")
    ]
    wait_until(
        lambda: all(_calls(space)[counter] >= least for counter in parts_answered),
        "the pipeline has counted the requests",
        evidence=lambda: _calls(space),
    )
    done = _calls(space)
    for part in ("features", "first", "second"):
        assert done["tidegate_pipeline_requests_total", part, "answered"] <= 64 + len(asked)
        assert done["tidegate_pipeline_call_rows_total", part] >= least + asked.count(whole)
        assert 1 <= done["tidegate_pipeline_calls_total", part] < 64 + len(asked)

    _nobody_else_calls_its_models(space)
    (pod,) = (pod["metadata"]["uid"] for pod in space.installed.pods(space.namespace, LABEL))
    space.kubectl.run("delete", "inference", "b", "-n", space.namespace)
    marked = {**whole, "second": [0.5, 0.5], "tidegate_defaulted": [b"second", b"second"]}
    wait_until(lambda: answered() == marked, "answers go on with the default", evidence=answered)
    wait_until(
        lambda: space.condition("modelaccess", "scene").get("reason") == "TargetNotFound",
        "Ready says TargetNotFound",
    )
    space.inference("b", version=2)
    wait_until(lambda: answered() == whole, "the answer is whole again", evidence=answered)
    # All that time the same pod has answered.
    assert [one["metadata"]["uid"] for one in space.installed.pods(space.namespace, LABEL)] == [pod]

    space.apply("ModelAccess", "scene", {"routes": [{"name": "only", "targets": [{"inference": "a"}]}]})
    wait_until(lambda: not space.installed.pods(space.namespace, LABEL), "the pods go with their route")
