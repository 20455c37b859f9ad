"""`--selector` of commands that list: only objects with the labels count, on the real API server."""

from __future__ import annotations

import json

import pytest

from builders.allocator import a_decision
from builders.compute_pool import compute_pool_body
from builders.inference import inference_body
from builders.model_access import a_route, model_access_body
from fixtures.command_line import CommandLine
from fixtures.control_plane import Kubectl

pytestmark = pytest.mark.usefixtures("crds")


@pytest.fixture
def teams(kubectl: Kubectl, namespace: str) -> str:
    """ctr and its ModelAccess belong to the team ads, cvr to the team shop; the namespace."""
    access = model_access_body("ctr", routes=[a_route("all", "ctr")])
    for name, team, body in (
        ("ctr", "ads", inference_body("ctr")),
        ("ctr", "ads", access),
        ("cvr", "shop", inference_body("cvr")),
    ):
        kubectl.apply({**body, "metadata": {"name": name, "labels": {"team": team}}}, namespace=namespace)
    return namespace


def test_the_fleet_of_a_team(teams: str, command_line: CommandLine) -> None:
    def totals(*selector: str) -> dict[str, int]:
        done = command_line.run("status", "-n", teams, *selector, "-o", "json")
        kinds = json.loads(done.stdout)["kinds"]
        return {kind["kind"]: kind["total"] for kind in kinds if kind["kind"] in {"Inference", "ModelAccess"}}

    assert totals() == {"Inference": 2, "ModelAccess": 1}
    assert totals("-l", "team=ads") == {"Inference": 1, "ModelAccess": 1}
    assert totals("-l", "team=shop") == {"Inference": 1, "ModelAccess": 0}
    assert totals("--selector", "team in (ads,shop)") == {"Inference": 2, "ModelAccess": 1}
    # Without this a broken selector would select nothing, and nothing is healthy.
    assert "unable to parse" in command_line.refused("status", "-l", "team in (ads")


def test_the_busiest_inferences_and_pools_with_labels(
    teams: str, kubectl: Kubectl, command_line: CommandLine
) -> None:
    # Nothing listens there: the gateways are silent, and the rows have no rates.
    silent = ("--window", "1", "--gateway", "127.0.0.1:1", "--system-namespace", "tidegate-system")

    def names(*arguments: str) -> list[str]:
        rows = command_line("top", *arguments, *silent)["items"]
        return [row.get("inference") or row["pool"] for row in rows]

    assert names("inferences", "-n", teams, "-l", "team=shop") == [f"{teams}/cvr"]
    assert names("inferences", "-n", teams, "-l", "team=none") == []
    pool = f"{teams}-pool"
    kubectl.apply({**compute_pool_body(pool), "metadata": {"name": pool, "labels": {"team": teams}}})
    assert names("pools", "-l", f"team={teams}") == [pool]


def test_decisions_that_move_inferences_with_labels(
    teams: str, kubectl: Kubectl, command_line: CommandLine
) -> None:
    for name, moved in (("of-ads", "ctr"), ("of-shop", "cvr")):
        spec = a_decision((moved, 1, 2)).spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        for move in spec["moves"]:
            move["inference"] = f"{teams}/{moved}"
        body = {"apiVersion": "tidegate.io/v1alpha1", "kind": "AllocationDecision", "spec": spec}
        kubectl.apply({**body, "metadata": {"name": f"{teams}-{name}"}})

    def decided(selector: str) -> list[str]:
        decisions = command_line("history", "-n", teams, "-l", selector)["decisions"]
        return [decision["name"] for decision in decisions]

    assert decided("team=ads") == [f"{teams}-of-ads"]
    assert decided("team=none") == []
    assert sorted(decided("team")) == [f"{teams}-of-ads", f"{teams}-of-shop"]


@pytest.mark.parametrize("command", ["status", "history"])
def test_a_selector_and_a_name_are_refused(command: str, command_line: CommandLine) -> None:
    done = command_line.run(command, "ads/ctr", "-l", "team=ads")
    assert done.exit_code == 2
    assert "leave one of them out" in " ".join(done.stderr.replace("│", " ").split())
