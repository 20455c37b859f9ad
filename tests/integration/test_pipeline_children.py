"""Pipelines on a real API server: children of each, their end with the route, and parts that do not fit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builders.feature_compute import feature_compute_body
from builders.inference import inference_body
from builders.model_access import model_access_body
from builders.pipeline import a_tensor
from builders.waiting import wait_until
from fixtures.control_plane import Kubectl, a_namespace
from fixtures.processes import Running
from tidegate.api.reasons import Reason

CHILDREN = "configmaps,deployments,poddisruptionbudgets"


class Scene:
    """A ModelAccess with pipelines, as its user sees it."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self.kubectl, self.namespace = kubectl, namespace

    def apply(self, body: dict[str, Any]) -> None:
        named = {"name": body["metadata"]["name"], "namespace": self.namespace}
        self.kubectl.apply({**body, "metadata": named}, namespace=self.namespace)

    def routes(self, **models: str) -> None:
        """One route for each Inference, the last without a match; its pipeline has two replicas, and so a budget."""
        routes: list[dict[str, Any]] = [
            {
                "name": name,
                "match": {"headers": [{"name": "x-scene", "exact": name}]},
                "pipeline": {"models": [{"inference": inference, "as": "p"}]},
            }
            for name, inference in models.items()
        ]
        del routes[-1]["match"]
        routes[-1]["pipeline"]["replicas"] = 2
        self.apply(model_access_body("scene", routes=routes))

    def loaded(self, name: str, *outputs: str) -> None:
        """Says of an Inference what its agents would."""
        tensors = {"inputs": [a_tensor("x")], "outputs": [a_tensor(output) for output in outputs]}
        patch = json.dumps({"status": {"model": {"name": name, **tensors}}})
        options = ("--subresource=status", "--type=merge", "-p", patch)
        self.kubectl("patch", "inference", name, "-n", self.namespace, *options)

    def children(self) -> dict[str, list[str]]:
        """Names of the children by kind."""
        found = self.kubectl.json("get", CHILDREN, "-n", self.namespace, "-l", "tidegate.io/access=scene")
        names: dict[str, list[str]] = {}
        for one in found["items"]:
            names.setdefault(one["kind"], []).append(one["metadata"]["name"])
        return names

    def says(self, reason: Reason) -> str:
        """Waits until Ready has this reason; its message."""

        def ready() -> dict[str, Any]:
            found = self.kubectl.json("get", "modelaccess", "scene", "-n", self.namespace)
            conditions = found.get("status", {}).get("conditions", [])
            return next((item for item in conditions if item["type"] == "Ready"), {})

        wait_until(
            lambda: ready().get("reason") == reason,
            what=f"Ready says {reason}, not {ready()}",
        )
        return str(ready()["message"])

    def has(self, deployments: int, budgets: int = 0) -> None:
        """Waits until so many pipelines have all their children, and nobody has any other."""
        counts = {**dict.fromkeys(("ConfigMap", "Deployment"), deployments), "PodDisruptionBudget": budgets}
        expected = {kind: count for kind, count in counts.items() if count}
        wait_until(
            lambda: {kind: len(names) for kind, names in self.children().items()} == expected,
            what=f"{deployments} pipelines have their children, not {self.children()}",
        )


@pytest.fixture
def scene(controllers: Running, kubectl: Kubectl, namespace: str) -> Scene:
    del controllers
    return Scene(kubectl, namespace)


@pytest.mark.produces(Reason.PIPELINE_INVALID)
def test_pipelines_come_and_go_with_their_routes_and_what_does_not_fit_is_named(scene: Scene) -> None:
    scene.routes(home="ctr", other="cvr")
    scene.says(Reason.TARGET_NOT_FOUND)
    for name in ("ctr", "cvr"):
        scene.apply(inference_body(name))
    # What goes in and out is not known before a model is loaded: nothing is made until then.
    scene.says(Reason.TARGET_NOT_READY)
    assert scene.children() == {}

    scene.loaded("ctr", "score")
    scene.loaded("cvr", "score", "embedding")
    assert "Inference cvr has outputs score, embedding: name one as output of p" in scene.says(
        Reason.PIPELINE_INVALID
    )
    scene.has(deployments=1)
    scene.loaded("cvr", "score")
    scene.says(Reason.UNSCHEDULABLE)
    scene.has(deployments=2, budgets=1)

    scene.routes(other="cvr")
    scene.has(deployments=1, budgets=1)
    (deployment,) = scene.children()["Deployment"]
    assert deployment.startswith("mac-scene-other-")

    scene.apply(model_access_body("scene", routes=[{"name": "all", "targets": [{"inference": "ctr"}]}]))
    scene.has(deployments=0)


def test_features_of_another_namespace_are_called_while_it_shares_them(scene: Scene) -> None:
    with a_namespace(scene.kubectl, "sharing-features") as owner:

        def annotate(change: str) -> None:
            scene.kubectl("annotate", "featurecompute", "user-features", "-n", owner, "--overwrite", change)

        features = feature_compute_body("user-features", replicas=0)
        scene.kubectl.apply({**features, "metadata": {"name": "user-features"}}, namespace=owner)
        scene.apply(inference_body("ctr"))
        tensors = {"inputs": [a_tensor("age", "INT64")], "outputs": [a_tensor("score")]}
        patch = json.dumps({"status": {"model": {"name": "ctr", **tensors}}})
        options = ("--subresource=status", "--type=merge", "-p", patch)
        scene.kubectl("patch", "inference", "ctr", "-n", scene.namespace, *options)
        pipeline = {"models": [{"inference": "ctr", "as": "p"}], "features": f"{owner}/user-features"}
        scene.apply(model_access_body("scene", routes=[{"name": "home", "pipeline": pipeline}]))
        message = scene.says(Reason.TARGET_NOT_FOUND)
        assert f"FeatureCompute {owner}/user-features does not exist, or does not share with" in message
        assert (
            f"annotate featurecompute user-features -n {owner} tidegate.io/shared-with={scene.namespace}"
            in message
        )

        annotate(f"tidegate.io/shared-with=shop,{scene.namespace}")
        scene.has(deployments=1)
        scene.says(Reason.UNSCHEDULABLE)

        annotate("tidegate.io/shared-with=shop")
        scene.has(deployments=0)
        scene.says(Reason.TARGET_NOT_FOUND)
        scene.kubectl("delete", "featurecompute", "user-features", "-n", owner, "--wait=false")
