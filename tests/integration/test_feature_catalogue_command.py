"""`tidegate features list` and `explain` against the real API server: features, and the models that take them."""

from __future__ import annotations

import json

import pytest

from builders.feature_compute import feature_compute_body
from builders.inference import inference_body
from builders.live_features import live_features_spec
from builders.model_access import model_access_body
from builders.pipeline import a_tensor
from fixtures.command_line import CommandLine
from fixtures.control_plane import Kubectl, may

pytestmark = pytest.mark.usefixtures("crds")


@pytest.fixture
def features(kubectl: Kubectl, namespace: str) -> str:
    """A namespace with two FeatureComputes, and a pipeline whose model takes a feature of the first."""
    pipeline = {"models": [{"inference": "ctr", "as": "p"}], "features": "live"}
    broken = [{"name": "a", "log": {"field": "feature.b"}}]
    bodies = {
        "live": feature_compute_body(**live_features_spec()),
        "broken": feature_compute_body(features=broken),
        "ctr": inference_body("ctr"),
        "scene": model_access_body(routes=[{"name": "home", "pipeline": pipeline}]),
    }
    for name, body in bodies.items():
        kubectl.apply({**body, "metadata": {"name": name}}, namespace=namespace)
    tensors = {"inputs": [a_tensor("idle_log"), a_tensor("price")], "outputs": [a_tensor("score")]}
    statuses = {
        ("inference", "ctr"): {"model": {"name": "ctr", **tensors}},
        ("featurecompute", "live"): {"watermarks": [{"source": "clicks", "lagSeconds": 15}]},
    }
    for (kind, name), status in statuses.items():
        options = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
        kubectl("patch", kind, name, "-n", namespace, *options)
    return namespace


def test_features_are_listed_and_explained_with_the_models_that_take_them(
    features: str, command_line: CommandLine
) -> None:
    listed = command_line("features", "list", "-n", features)

    assert listed["skipped"] == []
    assert [item["featureCompute"] for item in listed["items"]] == ["broken"] + ["live"] * 10
    users = {item["name"]: item["takenByModels"] for item in listed["items"]}
    assert [(use["access"], use["model"]) for use in users["idle_log"]] == [
        (f"{features}/scene", "Inference ctr")
    ]
    assert users["age"] == []
    (problem,) = listed["planProblems"]
    assert problem["featureCompute"] == f"{features}/broken"
    text = command_line.run("features", "list", "-A").stdout
    assert any(line.startswith(f"{features} ") and " live " in line for line in text.splitlines())

    explained = command_line("features", "explain", "live.idle", "-n", features)

    (lineage,) = explained["features"]
    assert [step["reference"] for step in lineage["reads"]] == ["clicks"]
    assert [use["feature"] for use in lineage["takenByModels"]] == ["idle_log"]
    (source,) = explained["sources"]
    assert (source["name"], source["lagS"]) == ("clicks", 15)
    assert f"similar names: {features}/live" in command_line.refused(
        "features", "explain", "lives", "-n", features
    )


def test_a_user_without_the_right_to_read_models_is_not_told_that_there_are_none(
    features: str, kubectl: Kubectl, command_line: CommandLine
) -> None:
    here = ("-n", features)
    kubectl(
        *("create", "role", "reader", *here, "--verb=get,list"),
        "--resource=featurecomputes.tidegate.io,modelaccesses.tidegate.io",
    )
    kubectl("create", "rolebinding", "reader", *here, "--role=reader", "--user=fred")
    may(kubectl, "fred", "list", "featurecomputes.tidegate.io", features)

    done = command_line.run("features", "list", *here, "--as", "fred", "-o", "json")

    assert done.exit_code == 0, done.output
    listed = json.loads(done.stdout)
    assert (len(listed["items"]), listed["usageKnown"], listed["pipelineProblems"]) == (11, False, [])
    assert [reason.partition(":")[0] for reason in listed["skipped"]] == ["inferences"]
    text = command_line.run("features", "explain", "live.age", *here, "--as", "fred").stdout
    assert "input of no model" not in text
    assert "left out   inferences: " in text
    assert 'User "gwen" cannot list' in command_line.refused("features", "list", *here, "--as", "gwen")
