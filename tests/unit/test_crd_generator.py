"""The generated CRDs: those in the repository are current, small, and written the way the API server wants them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidegate.api.crd import (
    KIND_DEFINITIONS,
    MAX_CRD_BYTES,
    find_outdated_files,
    main,
    render_crds,
    write_crds,
)

PLURALS = tuple(definition.resource.PLURAL for definition in KIND_DEFINITIONS)
DOCUMENTS = render_crds()


@functools.cache
def custom_resource_definition(plural: str) -> dict[str, Any]:
    definition: dict[str, Any] = yaml.load(DOCUMENTS[f"tidegate.io_{plural}.yaml"], Loader=yaml.CSafeLoader)
    return definition


def schema(plural: str) -> dict[str, Any]:
    result: dict[str, Any] = custom_resource_definition(plural)["spec"]["versions"][0]["schema"][
        "openAPIV3Schema"
    ]
    return result


def test_crds_stay_small() -> None:
    assert [name for name, text in DOCUMENTS.items() if len(text.encode()) >= MAX_CRD_BYTES] == []


def test_check_names_what_is_out_of_date(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_crds(tmp_path)
    assert main(["--output", str(tmp_path), "--check"]) == 0
    (tmp_path / "tidegate.io_inferences.yaml").write_text("changed")
    (tmp_path / "tidegate.io_gone.yaml").write_text("stale")
    assert main(["--output", str(tmp_path), "--check"]) == 1
    said = capsys.readouterr().err
    assert "tidegate.io_gone.yaml, tidegate.io_inferences.yaml out of date" in said


def test_writing_removes_the_crd_of_a_kind_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "tidegate.io_gone.yaml").write_text("stale")
    assert main(["--output", str(tmp_path)]) == 0
    assert list(find_outdated_files(tmp_path)) == []


def undescribed(node: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Paths of the properties that say nothing of themselves, in lists and maps too."""
    for name, child in node.get("properties", {}).items():
        if not child.get("description", "").strip():
            yield f"{path}.{name}"
        yield from undescribed(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from undescribed(node[key], f"{path}[]")


def test_every_property_says_what_it_is() -> None:
    # Of metadata the API server says it: a CRD must leave that to it.
    for plural in PLURALS:
        assert [*undescribed(schema(plural))] == [".metadata"], plural


def test_an_optional_field_has_no_null_and_no_default() -> None:
    name = schema("inferences")["properties"]["spec"]["properties"]["model"]["properties"]["name"]
    assert name["type"] == "string"
    assert "default" not in name
    assert "anyOf" not in name


def test_a_nested_object_defaults_to_empty_so_that_its_own_defaults_apply() -> None:
    batching = schema("inferences")["properties"]["spec"]["properties"]["batching"]
    assert batching["default"] == {}
    assert batching["properties"]["mode"]["default"] == "Disabled"


def test_a_status_claims_nothing_by_default_but_that_nobody_has_looked() -> None:
    status = copy.deepcopy(schema("inferences")["properties"]["status"])
    assert (status.pop("default"), status["properties"]["observedGeneration"].pop("default")) == ({}, -1)
    assert "default" not in str(status)
    assert "default" not in str(schema("allocationdecisions")["properties"]["status"])


def test_every_list_says_how_it_merges() -> None:
    def lists(path: str, node: dict[str, Any]) -> list[str]:
        missing = [path] if node.get("type") == "array" and "x-kubernetes-list-type" not in node else []
        for name, child in node.get("properties", {}).items():
            missing += lists(f"{path}.{name}", child)
        return missing + (lists(f"{path}[]", node["items"]) if "items" in node else [])

    for plural in PLURALS:
        assert lists(plural, schema(plural)) == []


def test_every_string_and_list_of_a_spec_is_bounded() -> None:
    """The API server multiplies a rule's cost by the largest sizes; without bounds it refuses the CRD."""

    def unbounded(path: str, node: dict[str, Any]) -> list[str]:
        limit = {"string": ("maxLength", "enum"), "array": ("maxItems",)}.get(node.get("type", ""), ())
        bounded = any(name in node for name in limit) or node.get("format") == "date-time"
        found = [path] if limit and not bounded else []
        for name, child in node.get("properties", {}).items():
            found += unbounded(f"{path}.{name}", child)
        return found + (unbounded(f"{path}[]", node["items"]) if "items" in node else [])

    for plural in PLURALS:
        assert unbounded(plural, schema(plural)["properties"]["spec"]) == []


def test_a_map_of_labels_keeps_the_keys_that_a_user_gives() -> None:
    selector = schema("computepools")["properties"]["spec"]["properties"]["nodeSelector"]
    assert selector["additionalProperties"] == {"type": "string", "maxLength": 63}
    assert "properties" not in selector


def test_a_pool_is_of_no_namespace() -> None:
    assert custom_resource_definition("computepools")["spec"]["scope"] == "Cluster"
