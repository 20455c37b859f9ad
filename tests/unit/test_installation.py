"""What is found wrong with an installation, and what is not when all of it is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tidegate.api.crd import KIND_DEFINITIONS, build_crd
from tidegate.planning.diagnosis.installation import (
    COMPONENTS,
    POLICIES,
    ComponentDeployment,
    LeaseHolder,
    ObservedInstallation,
    count_checks,
    diff_schemas,
    find_installation_problems,
)

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
WELL = ObservedInstallation(
    release="tidegate",
    namespace="tidegate-system",
    kubernetes="v1.34.1",
    command="0.1.0",
    now=NOW,
    schemas={"inferences.tidegate.io": ()},
    processes=dict.fromkeys(COMPONENTS, ComponentDeployment(2, 2, "0.1.0")),
    leader=LeaseHolder("tidegate-controllers-1", NOW + timedelta(seconds=10)),
    policies=frozenset(POLICIES),
    certificates={"tidegate-xds-certificate": NOW + timedelta(days=300)},
)
WITHOUT_XDS = {**dict.fromkeys(COMPONENTS, ComponentDeployment(2, 2, "0.1.0")), "xds": None}
ONE_OF_TWO = {
    **dict.fromkeys(COMPONENTS, ComponentDeployment(2, 2, "0.1.0")),
    "web": ComponentDeployment(2, 1, "0.1.0"),
}
NEWER = {
    **dict.fromkeys(COMPONENTS, ComponentDeployment(2, 2, "0.1.0")),
    "gateway": ComponentDeployment(2, 2, "0.2.0"),
}


def test_nothing_is_found_where_all_is_well_and_nothing_where_nothing_may_be_read() -> None:
    assert find_installation_problems(WELL) == ()
    assert count_checks(WELL) == 2 + 1 + len(COMPONENTS) + len(POLICIES) + 1
    blind = replace(WELL, schemas=None, processes=None, leader=None, policies=None, certificates=None)
    assert (find_installation_problems(blind), count_checks(blind)) == ((), 2)
    # Who leads nobody may say who may not read the Lease.
    assert find_installation_problems(replace(WELL, leader=None)) == ()


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
        ({"leader": LeaseHolder("", NOW)}, "TG9005", "nobody holds the Lease"),
        ({"leader": LeaseHolder("one", NOW - timedelta(seconds=61))}, "TG9005", "one held the Lease until"),
        ({"policies": frozenset({"override-end"})}, "TG9008", "undoing its successor's work"),
        ({"certificates": {"a": NOW + timedelta(days=29)}}, "TG9009", "ends at 2026-12-21"),
        ({"certificates": {"a": NOW - timedelta(days=1)}}, "TG9009", "ended at 2026-11-21"),
    ],
)
def test_each_fault_has_its_code_and_its_words(change: Mapping[str, Any], code: str, said: str) -> None:
    [found] = find_installation_problems(replace(WELL, **change))
    assert found.text.code == code
    assert said in found.message


def test_where_the_controllers_are_missing_no_leader_is() -> None:
    absent = {**dict.fromkeys(COMPONENTS, ComponentDeployment(2, 2, "0.1.0")), "controllers": None}
    assert [
        each.text.code for each in find_installation_problems(replace(WELL, processes=absent, leader=None))
    ] == ["TG9003"]


def schema_of(plural: str) -> dict[str, Any]:
    (found,) = (each for each in KIND_DEFINITIONS if plural == each.resource.PLURAL)
    schema: dict[str, Any] = build_crd(found)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
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
    assert diff_schemas(ours, ours) == ()
    older = without(ours, ("spec", "tier"))
    assert diff_schemas(ours, older) == ("+spec.tier",)
    assert diff_schemas(older, ours) == ("-spec.tier",)
    assert any("[]" in path for path in diff_schemas(schema_of("modelaccesses"), {}))
