"""The dashboards as Grafana gets them: ids that stay, panels that fit, variables that are there, metrics that exist."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import pytest

from fixtures.grafana import documents, every_query, panels

REFERENCE: Final = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
UIDS: Final = {
    "tidegate-allocation",
    "tidegate-breakdown",
    "tidegate-control-plane",
    "tidegate-fleet",
    "tidegate-pool",
    "tidegate-release",
    "tidegate-work",
}
"""What bookmarks and links of others know: one that changes breaks them."""
NOT_OURS: Final = {
    # Triton
    "nv_gpu_memory_used_bytes",
    "nv_gpu_utilization",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_compute_input_duration_us",
    "nv_inference_compute_output_duration_us",
    "nv_inference_count",
    "nv_inference_exec_count",
    "nv_inference_pending_request_count",
    "nv_inference_queue_duration_us",
    "nv_inference_request_failure",
    "nv_inference_request_success",
    # Envoy
    "envoy_cluster_grpc_failure",
    "envoy_cluster_upstream_cx_none_healthy",
    "envoy_cluster_upstream_rq_active",
    "envoy_cluster_upstream_rq_active_overflow",
    "envoy_cluster_upstream_rq_cancelled",
    "envoy_cluster_upstream_rq_pending_failure_eject",
    "envoy_cluster_upstream_rq_pending_overflow",
    "envoy_cluster_upstream_rq_retry",
    "envoy_cluster_upstream_rq_time_bucket",
    "envoy_cluster_upstream_rq_timeout",
    "envoy_cluster_upstream_rq_total",
    "envoy_cluster_upstream_rq_xx",
    # cAdvisor
    "container_cpu_usage_seconds_total",
    "container_memory_working_set_bytes",
    # Any Python process
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
}
DOCUMENTS: Final = documents()
Document = Mapping[str, Any]


def known() -> set[str]:
    """Every name that a page or a rule has."""
    listed = re.findall(r"^\| `([\w:]+)`(?: \| (\w+))?", REFERENCE.read_text(), re.MULTILINE)
    histograms = {name for name, kind in listed if kind == "histogram"}
    return {name for name, _ in listed} | {f"{name}_bucket" for name in histograms} | NOT_OURS


def named(expression: str) -> Iterator[str]:
    """The metrics that a query asks for: names that are neither called, nor a grouping, nor within braces or quotes."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    bare = re.sub(r"\{[^}]*\}", "{}", bare)
    bare = re.sub(r"\[[^\]]*\]", "", bare)
    bare = re.sub(r"\b(by|on|group_left|group_right|ignoring|without)\s*\([^)]*\)", "", bare)
    for found in re.finditer(r"(?<![\w.])[a-zA-Z_:][\w:]*", bare):
        called = bare[found.end() :].lstrip().startswith("(")
        if not called and found[0] not in {"or", "and", "unless", "by", "on", "sum", "max", "min", "count"}:
            yield found[0]


def variables(document: Document) -> set[str]:
    return {each["name"] for each in document["templating"]["list"]}


def test_their_ids_stay() -> None:
    assert {document["uid"] for document in DOCUMENTS.values()} == UIDS


@pytest.mark.parametrize("name", DOCUMENTS)
def test_panels_have_their_place_and_their_words(name: str) -> None:
    document = DOCUMENTS[name]
    ids = Counter(panel["id"] for panel in document["panels"])
    titles = Counter(panel["title"] for panel in panels(document))
    assert ids.most_common(1)[0][1] == titles.most_common(1)[0][1] == 1
    for panel in panels(document):
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
    for one, other in combinations([panel["gridPos"] for panel in document["panels"]], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_one_leads_to_the_others_with_what_was_chosen(name: str) -> None:
    (link,) = DOCUMENTS[name]["links"]
    assert (link["type"], link["tags"], link["includeVars"]) == ("dashboards", ["tidegate"], True)
    assert DOCUMENTS[name]["tags"] == link["tags"]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_variable_that_is_used_can_be_chosen_and_the_other_way_round(name: str) -> None:
    document = DOCUMENTS[name]
    queries = [target["expr"] for panel in panels(document) for target in panel["targets"]]
    used = {found for query in queries for found in re.findall(r"\$([a-zA-Z_]\w*)", query) if found[0] != "_"}
    sources = {target["datasource"]["uid"] for panel in panels(document) for target in panel["targets"]}
    assert sources == {"${datasource}"}
    assert variables(document) == used | {"datasource"}


def test_queries_ask_for_metrics_that_exist() -> None:
    exist = known()
    queries = {asked.name: set(named(asked.expression)) for asked in every_query()}
    assert {
        name: metrics - exist for name, metrics in queries.items() if not metrics or metrics - exist
    } == {}
