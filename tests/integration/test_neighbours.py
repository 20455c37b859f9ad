"""A minute of bench/neighbours.py: a tenant that writes whatever it may, and a proxy that lies, trouble nobody else."""

from __future__ import annotations

import json
from pathlib import Path

import neighbours
import pytest
from harness.lying_proxy import Lie

from builders.scenario import not_reached, require_scenario
from tidegate_localcluster.errors import NotReadyError

pytestmark = pytest.mark.integration


@pytest.mark.no_rerun("a neighbour is noticed")
def test_a_hostile_neighbour_and_a_proxy_that_lies_trouble_nobody_else(tmp_path: Path) -> None:
    output, files = tmp_path / "found.json", tmp_path / "files"
    files.mkdir()
    pace = ("--minutes", "1", "--writes-per-s", "5")
    try:
        code = neighbours.main([*pace, "--output", str(output), "--files", str(files)])
    except NotReadyError as error:
        raise not_reached(f"all is there, and can be asked: {error!r}") from error
    found = json.loads(output.read_text())
    assert found["violations"] == []
    assert code == 0
    require_scenario(set(found["lies_met"]) == set(Lie), f"each lie is met: {found['lies_met']}")
    require_scenario(min(found["checks"].values()) >= 1, f"all is checked: {found['checks']}")
    changes = {"create", "delete", "replicas", "weights", "end pods"}
    require_scenario(
        set(found["victim_changes"]) == changes, f"the victim changes everything: {found['victim_changes']}"
    )
