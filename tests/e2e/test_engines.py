"""Versions with passes, engines and buckets are swapped under load, compilers are killed, and no answer is lost or wrong."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from builders.columns_model import column_batches, publish_columns
from builders.load import PatientLoad
from builders.scoring_client import ScoringClient
from builders.waiting import wait_until
from fixtures.installed import Space
from tidegate_localcluster.demo.load import CheckedLoad

ROWS = [2, 4, 8]
VERSIONS = (1, 2)


@contextmanager
def start_load(space: Space) -> Generator[CheckedLoad]:
    """Serve the first of two versions, and ask: each answer is compared with that of the version that it names."""
    for version in VERSIONS:
        publish_columns(space.folder("columns"), version, mark=space.namespace)
    spec: Mapping[str, Any] = {
        "model": {"name": "columns", "uri": space.uri("columns"), "version": "1"},
        "resources": {"cpu": "50m", "memory": "1Gi"},
        "compile": {"memory": "1Gi", "engine": "OpenVINO", "buckets": {"rows": ROWS}},
    }
    space.apply("Inference", "probe", spec)
    space.access()
    space.ready()
    access = {"x-tidegate-access": f"{space.namespace}/probe"}
    with PatientLoad(
        lambda: ScoringClient(space.installed.endpoints.gateway, "columns", access),
        column_batches(VERSIONS),
        threads=2,
        pause_s=0.02,
    ) as load:
        yield load


def count_hits(space: Space, version: int) -> float:
    """Return how many requests the engines of a version answered, by the runner's own counter."""
    labels = {"model": "columns", "version": str(version), "way": "hit"}
    return sum(
        metric.value
        for pod in space.pods("probe")
        for metric in space.installed.metrics(space.namespace, pod["metadata"]["name"], 8002)
        if metric.name == "tidegate_model_bucket_requests_total" and labels.items() <= metric.labels.items()
    )


def read_graph(space: Space, version: int) -> Mapping[str, Any]:
    """Return status.graph, empty while it is of another version."""
    graph: Mapping[str, Any] = space.status("inference", "probe").get("graph", {})
    return graph if graph.get("version") == str(version) else {}


def read_buckets(space: Space, version: int) -> Mapping[str, str]:
    """Return the engine of each bucket of a version, or the reason for none."""
    buckets = read_graph(space, version).get("buckets", ())
    return {bucket["shape"]: bucket.get("engine") or bucket.get("reason", "") for bucket in buckets}


def wait_for_hits(space: Space, version: int) -> None:
    before = count_hits(space, version)
    wait_until(lambda: count_hits(space, version) > before + 20, f"engines of version {version} answer")


def wait_for_engines(space: Space, version: int) -> None:
    """Wait until the graph of a version is compiled, each of its buckets has an engine, and they answer."""

    wait_until(
        lambda: read_buckets(space, version) == {f"ids {rows}x60": "OpenVINO" for rows in ROWS},
        f"the engines of version {version}",
        timeout_s=240,
        evidence=lambda: space.status("inference", "probe"),
    )
    assert any(result["applied"] for result in read_graph(space, version)["passes"])
    wait_for_hits(space, version)


def kill_compilers(space: Space) -> None:
    """Let the compilers of the pods end at once, whatever they do, as on a node without memory."""
    uids = [pod["metadata"]["uid"] for pod in space.pods("probe")]
    wait_until(
        lambda: space.installed.kill_in_pods("tidegate_dataplane.compiler", uids) > 0,
        "a compiler is killed",
        timeout_s=120,
    )


def assert_no_problem(load: CheckedLoad, versions: Sequence[int]) -> None:
    results = load.finish()
    assert results.problems == ()
    assert set(results.versions) == set(map(str, versions))


@pytest.mark.no_rerun("a lost request, a wrong answer")
def test_versions_with_passes_engines_and_buckets_are_swapped_under_load(space: Space) -> None:
    with start_load(space) as load:
        # Once for each version: an engine whose compiler ends twice is given up.
        kill_compilers(space)
        wait_for_engines(space, 1)
        space.swap_version("probe", 2)
        wait_until(lambda: read_buckets(space, 2), "an engine is compiled or begun", timeout_s=240)
        kill_compilers(space)
        wait_for_engines(space, 2)
        for version in (1, 2):
            space.swap_version("probe", version)
            wait_for_engines(space, version)
        assert_no_problem(load, VERSIONS)
