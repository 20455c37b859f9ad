"""What is found wrong with an installation, and what is not when all of it is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tidegate.api.crd import DEFINITIONS, custom_resource_definition
from tidegate.planning.installation import (
    COMPONENTS,
    POLICIES,
    Installation,
    Leader,
    Process,
    examine,
    looked_at,
    unlike,
)

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
WELL = Installation(
    release="tidegate",
    namespace="tidegate-system",
    kubernetes="v1.34.1",
    command="0.1.0",
    now=NOW,
    schemas={"inferences.tidegate.io": ()},
    processes=dict.fromkeys(COMPONENTS, Process(2, 2, "0.1.0")),
    leader=Leader("tidegate-controllers-1", NOW + timedelta(seconds=10)),
    policies=frozenset(POLICIES),
    certificates={"tidegate-xds-certificate": NOW + timedelta(days=300)},
)
WITHOUT_XDS = {**dict.fromkeys(COMPONENTS, Process(2, 2, "0.1.0")), "xds": None}
ONE_OF_TWO = {**dict.fromkeys(COMPONENTS, Process(2, 2, "0.1.0")), "web": Process(2, 1, "0.1.0")}
NEWER = {**dict.fromkeys(COMPONENTS, Process(2, 2, "0.1.0")), "gateway": Process(2, 2, "0.2.0")}


def test_nothing_is_found_where_all_is_well_and_nothing_where_nothing_may_be_read() -> None:
    assert examine(WELL) == ()
    assert looked_at(WELL) == 2 + 1 + len(COMPONENTS) + len(POLICIES) + 1
    blind = replace(WELL, schemas=None, processes=None, leader=None, policies=None, certificates=None)
    assert (examine(blind), looked_at(blind)) == ((), 2)
    # Who leads nobody may say who may not read the Lease.
    assert examine(replace(WELL, leader=None)) == ()


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"kubernetes": "v1.29.9"}, "TG9007", "v1.29.9; Tidegate needs 1.30"),
        ({"schemas": {"inferences.tidegate.io": None}}, "TG9001", "not there"),
        (
            {"schemas": {"inferences.tidegate.io": ("+a", "+b", "-c", "-d")}},
            "TG9002",
            "+a, +b, -c and 1 more",
        ),
        ({"processes": WITHOUT_XDS}, "TG9003", "no Deployment tidegate-xds in namespace tidegate-system"),
        ({"processes": ONE_OF_TWO}, "TG9004", "1 of 2 pods are ready: kubectl describe pods"),
        ({"processes": NEWER}, "TG9006", "of version 0.2.0, and this command of 0.1.0"),
        ({"leader": Leader("", NOW)}, "TG9005", "nobody holds the Lease"),
        ({"leader": Leader("one", NOW - timedelta(seconds=61))}, "TG9005", "one held the Lease until"),
        ({"policies": frozenset({"override-end"})}, "TG9008", "undoing its successor's work"),
        ({"certificates": {"a": NOW + timedelta(days=29)}}, "TG9009", "ends at 2026-12-21"),
        ({"certificates": {"a": NOW - timedelta(days=1)}}, "TG9009", "ended at 2026-11-21"),
    ],
)
def test_each_fault_has_its_code_and_its_words(change: Mapping[str, Any], code: str, said: str) -> None:
    [found] = examine(replace(WELL, **change))
    assert found.text.code == code
    assert said in found.message


def test_where_the_controllers_are_missing_no_leader_is() -> None:
    absent = {**dict.fromkeys(COMPONENTS, Process(2, 2, "0.1.0")), "controllers": None}
    assert [each.text.code for each in examine(replace(WELL, processes=absent, leader=None))] == ["TG9003"]


def schema_of(plural: str) -> dict[str, Any]:
    (found,) = (each for each in DEFINITIONS if plural == each.resource.PLURAL)
    schema: dict[str, Any] = custom_resource_definition(found)["spec"]["versions"][0]["schema"][
        "openAPIV3Schema"
    ]
    return schema


def without(schema: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    first, *rest = path
    properties = dict(schema["properties"])
    if rest:
        properties[first] = without(properties[first], rest)
    else:
        del properties[first]
    return {**schema, "properties": properties}


def test_a_schema_is_like_itself_and_unlike_an_older_one() -> None:
    ours = schema_of("inferences")
    assert unlike(ours, ours) == ()
    older = without(ours, ("spec", "tier"))
    assert unlike(ours, older) == ("+spec.tier",)
    assert unlike(older, ours) == ("-spec.tier",)
    assert any("[]" in path for path in unlike(schema_of("modelaccesses"), {}))
