"""What-ifs over a day: asked by options, they answer what a simulation of the changed manifests answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tidegate.main import app
from tidegate.reports.simulation import SimulationReport

HEAD = "apiVersion: tidegate.io/v1alpha1\n"
SLICES, NODES = "tidegate.io/recorded-slices", "tidegate.io/recorded-nodes"
POOL = f"""{HEAD}kind: ComputePool
metadata: {{name: cpu-a, annotations: {{{SLICES}: "12", {NODES}: "4"}}}}
spec:
  nodeSelector: {{pool: cpu-a}}
  slice: {{cpu: {{cpu: "2", memory: 4Gi}}}}
  tiers: {{realtime: {{floor: 0}}, nearline: {{}}, offline: {{floor: 0}}}}
  policy:
    dwell: 5m
    nodeLoss: {{mode: Strict}}
    events: [{{name: sale, at: "2026-11-27T20:00:00Z", duration: 10m, factor: "2"}}]
---
"""
CTR = f"""{HEAD}kind: Inference
metadata: {{name: ctr, namespace: ads}}
spec:
  model: {{uri: s3://models/ctr, version: "3"}}
  placement: {{pool: cpu-a}}
  scaling: {{minReplicas: 2, maxReplicas: 10}}
  slo: {{latencyP99: 30ms}}
  capacity: {{requestsPerSecond: "100"}}
  value: {{perRequest: "1"}}
---
"""
EMBED = f"""{HEAD}kind: Inference
metadata: {{name: embed, namespace: ads}}
spec:
  tier: offline
  model: {{uri: s3://models/embed, version: "3"}}
  placement: {{pool: cpu-a}}
  scaling: {{minReplicas: 0, maxReplicas: 8}}
  value: {{perRequest: "50"}}
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """The demand doubles with the sale at 20:00, and falls after a quarter of an hour."""
    rates = [*[300] * 60, *[600] * 15, *[200] * 45]
    rows = [
        f"2026-11-27T{19 + minute // 60}:{minute % 60:02}:00Z,{rate}" for minute, rate in enumerate(rates)
    ]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["time,ads/ctr", *rows]) + "\n")
    return path


def simulate(trace: Path, manifests: str, *arguments: str) -> dict[str, Any]:
    manifest = trace.with_name("pool.yaml")
    manifest.write_text(manifests)
    result = CliRunner().invoke(
        app,
        ["simulate", str(trace), "-f", str(manifest), "--last", "80m", "--load", "90s", "--policy", "present",
         "--policy", "static", "-o", "json", *arguments],
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    SimulationReport.model_validate(report)
    return report


CHANGES = {
    "slices": (("--slices", "8"), ('recorded-slices: "12"', 'recorded-slices: "8"')),
    "nodes": (("--nodes", "2"), ('recorded-nodes: "4"', 'recorded-nodes: "2"')),
    "dwell": (("--dwell", "30m"), ("dwell: 5m", "dwell: 30m")),
    "node loss": (("--node-loss", "Priced"), ("mode: Strict", "mode: Priced")),
    "event": (("--event", "sale=3"), ('factor: "2"', 'factor: "3"')),
    "maximum": (
        ("--max", "ads/ctr=4"),
        ("minReplicas: 2, maxReplicas: 10", "minReplicas: 2, maxReplicas: 4"),
    ),
    "minimum": (
        ("--min", "ads/ctr=7"),
        ("minReplicas: 2, maxReplicas: 10", "minReplicas: 7, maxReplicas: 10"),
    ),
    "value": (("--value", "ads/ctr=0.25"), ('perRequest: "1"', 'perRequest: "0.25"')),
    "floor": (("--floor", "offline=7"), ("offline: {floor: 0}", "offline: {floor: 7}")),
}


@pytest.mark.parametrize(("options", "change"), CHANGES.values(), ids=CHANGES)
def test_a_what_if_answers_what_the_changed_manifests_answer(
    trace: Path, options: tuple[str, str], change: tuple[str, str]
) -> None:
    manifests = POOL + CTR + EMBED
    before = simulate(trace, manifests)
    asked = simulate(trace, manifests, *options)
    assert manifests.count(change[0]) == 1
    changed = simulate(trace, manifests.replace(*change))

    assert asked.pop("whatIf") != changed.pop("whatIf") == before.pop("whatIf")
    assert asked == changed
    assert changed != before


def test_demand_can_be_another(trace: Path) -> None:
    text = trace.read_text()
    twice = simulate(trace, POOL + CTR + EMBED, "--demand", "ads/ctr=x2")
    everything = simulate(trace, POOL + CTR + EMBED, "--factor", "2")
    doubled = {",300\n": ",6e2\n", ",600\n": ",1200\n", ",200\n": ",400\n"}
    for rate, twice_rate in doubled.items():
        text = text.replace(rate, twice_rate)
    trace.write_text(text)
    changed = simulate(trace, POOL + CTR + EMBED)

    assert twice["policies"] == everything["policies"] == changed["policies"]


def test_lost_nodes_take_their_replicas_until_they_are_back(trace: Path) -> None:
    report = simulate(trace, POOL + CTR + EMBED, "--lose-nodes", "2@10m/20m")
    points = {point["seconds"]: point for point in report["policies"][0]["points"]}

    assert [mark["label"] for mark in report["marks"]] == ["2 nodes lost", "sale: 2 x for 10m"]
    assert [mark["seconds"] for mark in report["marks"]] == [600, 1200]
    assert sum(points[900.0]["slices"].values()) <= 6 < sum(points[2400.0]["slices"].values())


def test_two_models_share_a_spare_where_each_would_hold_its_own_reserve(trace: Path) -> None:
    lines = [
        f"{line},{'ads/cvr' if number == 0 else 150}" for number, line in enumerate(trace.read_text().split())
    ]
    trace.write_text("\n".join(line.replace(",300,", ",150,") for line in lines) + "\n")

    def count_slices(mode: str) -> float:
        models = POOL + CTR + CTR.replace("ctr", "cvr") + EMBED
        first, *_ = simulate(trace, models, "--node-loss", mode)["policies"]
        return sum(point["slices"]["realtime"] for point in first["points"][:20])

    assert count_slices("Shared") < count_slices("Strict")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (
            ("--max", "ads/rank=4"),
            3,
            "inferences: there is no ads/rank in the pool; there are: ads/ctr, ads/embed",
        ),
        (("--event", "lunch=2"), 3, "events: there is no lunch in the pool; there are: sale"),
        (("--min", "ads/ctr=11"), 3, "Inference ctr with these changes: spec.scaling.minReplicas: "),
        (("--dwell", "soon"), 2, "dwell: "),
        (("--node-loss", "Never"), 2, "nodeLoss: "),
        (("--event", "sale=1"), 2, "events.0.factor: "),
        (("--lose-nodes", "2"), 2, "--lose-nodes 2: want number@after/lasting, like 1@2h/30m"),
        (
            ("--lose-nodes", "3@1m/1m", "--lose-nodes", "2@1m/1m"),
            3,
            "lostNodes: takes 5 nodes, the pool has 4",
        ),
        (("--value", "ads/ctr=nan"), 2, "inferences.0.value: "),
    ],
)
def test_a_change_that_does_not_fit_is_named(
    trace: Path, arguments: tuple[str, ...], status: int, message: str
) -> None:
    manifest = trace.with_name("pool.yaml")
    manifest.write_text(POOL + CTR + EMBED)
    result = CliRunner(env={"COLUMNS": "300"}).invoke(
        app, ["simulate", str(trace), "-f", str(manifest), "--last", "10m", *arguments]
    )
    assert result.exit_code == status
    assert message in " ".join(result.stderr.split())
