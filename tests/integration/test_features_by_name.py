"""Features by name on a real API server: consent, a changed origin, its end, and who sees it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from builders.feature_compute import feature_compute_body
from builders.live_features import live_features_spec
from builders.shared_features import shared, using_spec
from builders.waiting import wait_until
from fixtures.command_line import CommandLine
from fixtures.control_plane import Kubectl, a_namespace
from tidegate.api.reasons import Reason

pytestmark = pytest.mark.usefixtures("controllers")

EVERY_S = 60.0


def read_status(kubectl: Kubectl, namespace: str) -> Mapping[str, Any]:
    status = kubectl.json("get", "featurecompute", "home", "-n", namespace).get("status", {})
    conditions = {item["type"]: item for item in status.get("conditions", [])}
    return {**status, "compiled": conditions.get("PlanCompiled", {})}


def wait_for_reason(kubectl: Kubectl, namespace: str, reason: Reason) -> str:
    """Wait for the reason of PlanCompiled; return its message."""
    wait_until(
        lambda: read_status(kubectl, namespace)["compiled"].get("reason") == reason,
        what=f"PlanCompiled says {reason}",
        timeout_s=EVERY_S,
    )
    return str(read_status(kubectl, namespace)["compiled"]["message"])


def list_children(kubectl: Kubectl, namespace: str) -> list[str]:
    children = kubectl.json(
        "get", "deployments,configmaps", "-n", namespace, "-l", "tidegate.io/feature-compute"
    )
    return sorted(f"{item['kind']} {item['metadata']['name']}" for item in children["items"])


def test_a_feature_follows_the_object_that_declares_it_while_that_shares_it(
    kubectl: Kubectl, namespace: str, command_line: CommandLine
) -> None:
    with a_namespace(kubectl, "declares-features") as owner:
        live = ("featurecompute", "live", "-n", owner)
        body = feature_compute_body("live", replicas=0, **live_features_spec())
        kubectl.apply({**body, "metadata": {"name": "live"}}, namespace=owner)
        features = [shared(name, owner=f"{owner}/live") for name in ("age", "idle_bucket")]
        # Its only stream is that of a shared feature.
        store = {"redis": {"address": "redis.feed:6379"}}
        home = feature_compute_body("home", replicas=0, **using_spec(*features, store=store))
        kubectl.apply({**home, "metadata": {"name": "home"}}, namespace=namespace)

        message = wait_for_reason(kubectl, namespace, Reason.TARGET_NOT_FOUND)
        assert f"annotate featurecompute live -n {owner} tidegate.io/shared-with={namespace}" in message
        assert list_children(kubectl, namespace) == []

        kubectl("annotate", *live, f"tidegate.io/shared-with={namespace}")
        message = wait_for_reason(kubectl, namespace, Reason.PLAN_COMPILED)
        assert message.startswith(f"2 features, 2 of them of FeatureCompute {owner}/live, plan ")
        before = read_status(kubectl, namespace)
        assert [output["name"] for output in before["outputs"]] == ["age", "idle_bucket"]
        wait_until(
            lambda: len(list_children(kubectl, namespace)) == 3, what="there are children", timeout_s=EVERY_S
        )

        listed = command_line("features", "list", "-n", namespace)
        assert [item["sources"] for item in listed["items"]] == [
            [f"feature {owner}/live.age"],
            [f"feature {owner}/live.idle_bucket"],
        ]
        (lineage,) = command_line("features", "explain", f"{owner}/live.age", "-A")["features"]
        assert lineage["sharedAs"] == [f"{namespace}/home.age"]

        boundaries = {"op": "replace", "path": "/spec/features/7/bucketize/boundaries", "value": [1, 2]}
        kubectl("patch", *live, "--type=json", "-p", json.dumps([boundaries]))
        wait_until(
            lambda: read_status(kubectl, namespace)["planHash"] != before["planHash"],
            what="the plan follows its origin",
            timeout_s=EVERY_S,
        )
        wait_until(
            lambda: any(
                "while this spec is unchanged" in item["message"] and f"{owner}/live" in item["message"]
                for item in kubectl.json("get", "events", "-n", namespace)["items"]
            ),
            what="an event names the origin",
            timeout_s=EVERY_S,
        )

        kubectl("delete", *live)
        message = wait_for_reason(kubectl, namespace, Reason.TARGET_NOT_FOUND)
        after = read_status(kubectl, namespace)
        assert f"of FeatureCompute {owner}/live counts, in plan {after['planHash'][:12]}" in message
        # The rest of the spec applies.
        home_name = ("featurecompute", "home", "-n", namespace)
        kubectl("patch", *home_name, "--type=merge", "-p", '{"spec": {"resources": {"memory": "777Mi"}}}')
        wait_until(
            lambda: (
                "777Mi"
                in json.dumps(
                    kubectl.json("get", "deployments", "-n", namespace, "-l", "tidegate.io/feature-compute")
                )
            ),
            what="the pods have the new memory",
            timeout_s=EVERY_S,
        )
        assert read_status(kubectl, namespace)["planHash"] == after["planHash"]
        kinds = {name.partition(" ")[0] for name in list_children(kubectl, namespace)}
        assert kinds == {"ConfigMap", "Deployment"}
