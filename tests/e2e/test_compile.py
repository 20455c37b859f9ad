"""Graphs are compiled on the cluster: under load, over a change of the version, and where the compiler has too little memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from builders.columns_model import COLUMNS, column_batches, publish_columns
from builders.load import PatientLoad
from builders.scoring_client import ScoringClient
from builders.user_model import USER_INPUTS, make_user_batches, publish_user_model
from builders.waiting import wait_until
from fixtures.installed import Space
from tidegate.api.reasons import Reason
from tidegate_localcluster.demo.load import CheckedLoad, ScoringBatch


def deploy(space: Space, *versions: int, **compile_spec: Any) -> None:
    """Serve the first of the versions, and wait until requests are answered."""
    for version in versions:
        publish_columns(space.folder("columns"), version, mark=space.namespace)
    space.apply(
        "Inference",
        "probe",
        {
            "model": {"name": "columns", "uri": space.uri("columns"), "version": str(versions[0])},
            "resources": {"cpu": "50m", "memory": "512Mi"},
            "compile": compile_spec,
        },
    )
    space.access()
    space.ready()


def wait_for_reason(space: Space, reason: Reason, version: int) -> None:
    """Wait until the condition Compiled has the reason, and speaks of the version."""

    def holds() -> bool:
        condition = space.condition("inference", "probe", "Compiled")
        return condition.get("reason") == reason.value and f"version {version}" in condition["message"]

    wait_until(
        holds,
        f"the graph of version {version}: {reason.value}",
        timeout_s=180,
        evidence=lambda: space.status("inference", "probe"),
    )


@contextmanager
def checked_load(space: Space, model: str, batches: Sequence[ScoringBatch]) -> Iterator[CheckedLoad]:
    """Ask through the gateway; each answer is compared with that of the version that it names."""
    access = {"x-tidegate-access": f"{space.namespace}/probe"}
    with PatientLoad(
        lambda: ScoringClient(space.installed.endpoints.gateway, model, access),
        batches,
        threads=2,
        pause_s=0.02,
    ) as load:
        yield load


def change_version(space: Space, load: CheckedLoad) -> None:
    """Serve version 2, and wait for some answers of its compiled graph."""
    space.patch("inference", "probe", {"model": {"version": "2"}})
    wait_for_reason(space, Reason.GRAPH_COMPILED, 2)
    answered = load.report().versions.get("2", 0)
    wait_until(lambda: load.report().versions.get("2", 0) > answered + 50, what="version 2 answers")


def assert_both_answered(load: CheckedLoad) -> None:
    """Check that no request was lost, no answer wrong, and that both versions answered."""
    results = load.finish()
    assert results.problems == ()
    assert set(results.versions) == {"1", "2"}


@pytest.mark.no_rerun("a lost request, a wrong answer")
def test_two_versions_are_compiled_under_load_and_no_answer_is_lost_or_wrong(space: Space) -> None:
    deploy(space, 1, 2, memory="1Gi")
    with checked_load(space, "columns", column_batches((1, 2))) as load:
        wait_for_reason(space, Reason.GRAPH_COMPILED, 1)
        graph = space.status("inference", "probe")["graph"]
        fused = next(each for each in graph["passes"] if each["name"] == "fuseEmbeddings")
        assert (graph["version"], fused["applied"], fused["changes"]) == ("1", True, COLUMNS)
        assert graph["nodes"] < graph["publishedNodes"] == 2 * COLUMNS + 3
        wait_until(
            lambda: space.status("inference", "probe")["graph"]["comparedRequests"] > 1,
            what="requests are compared",
            timeout_s=150,
        )
        change_version(space, load)
    assert_both_answered(load)


@pytest.mark.no_rerun("a lost request, a wrong answer")
def test_users_are_sent_once_over_two_versions_and_their_compilation(space: Space) -> None:
    for version in (1, 2):
        publish_user_model(space.folder("users"), version, mark=space.namespace)
    space.apply(
        "Inference",
        "probe",
        {
            "model": {
                "name": "users",
                "uri": space.uri("users"),
                "version": "1",
                "sharedInputs": list(USER_INPUTS),
            },
            "resources": {"cpu": "50m", "memory": "512Mi"},
            "compile": {"memory": "1Gi"},
        },
    )
    space.access()
    space.ready()
    with checked_load(space, "users", make_user_batches((1, 2))) as load:
        wait_for_reason(space, Reason.GRAPH_COMPILED, 1)
        graph = space.status("inference", "probe")["graph"]
        assert graph["sharedInputs"] == sorted(USER_INPUTS)
        change_version(space, load)
    assert_both_answered(load)


@pytest.mark.produces(Reason.COMPILE_FAILED)
def test_a_compiler_without_enough_memory_is_given_up_and_the_version_serves(space: Space) -> None:
    deploy(space, 1, memory="160Mi")
    with checked_load(space, "columns", column_batches((1,))) as load:
        wait_for_reason(space, Reason.COMPILE_FAILED, 1)
        message = space.condition("inference", "probe", "Compiled")["message"]
        assert "raise spec.compile.memory" in message
        space.ready("inference/probe")
        answered = load.report().versions.get("1", 0)
        wait_until(lambda: load.report().versions.get("1", 0) > answered + 20, what="version 1 answers")
    assert load.finish().problems == ()


@pytest.mark.produces(Reason.GRAPH_UNCHANGED)
def test_a_graph_that_no_pass_improves_is_served_as_published(space: Space) -> None:
    space.publish("probe", 1)
    space.inference()
    space.patch("inference", "probe", {"compile": {}})
    wait_for_reason(space, Reason.GRAPH_UNCHANGED, 1)
    reasons = {each["name"]: each["reason"] for each in space.status("inference", "probe")["graph"]["passes"]}
    assert reasons["fuseEmbeddings"] == "nothing to change"
