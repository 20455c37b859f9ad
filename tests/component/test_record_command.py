"""`tidegate record` against an API server and a Prometheus on loopback, and `tidegate simulate` on what it wrote."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from typer.testing import CliRunner

from builders.compute_pool import compute_pool_body
from builders.inference import inference_body
from builders.loopback import kubeconfig_of, on_loopback
from tidegate.main import app
from tidegate.telemetry.recording_rules import SIGNAL_DEMAND

BEGIN = datetime(2026, 11, 26, tzinfo=UTC)
API = "/apis/tidegate.io/v1alpha1"
CAPACITY = {"requestsPerSecond": "100"}


def a_placed_inference(name: str, pool: str = "cpu-a", **spec: Any) -> dict[str, Any]:
    return inference_body(
        name, placement={"pool": pool}, scaling={"minReplicas": 1, "maxReplicas": 8}, replicas=None, **spec
    )


def a_decision(name: str, reclaim_s: float, *givers: str) -> dict[str, Any]:
    """A decision that took a replica from each of these and gave one to ads/other."""
    moves = [
        *({"inference": giver, "from": 3, "to": 2} for giver in givers),
        {"inference": "ads/other", "from": 1, "to": 2},
    ]
    move = {"tier": "realtime", "slices": 1, "why": "the demand"}
    return {
        "apiVersion": "tidegate.io/v1alpha1",
        "kind": "AllocationDecision",
        "metadata": {"name": name},
        "spec": {
            "pool": "cpu-a",
            "at": "2026-11-26T01:00:00Z",
            "mode": "Auto",
            "moves": [{**move, **item} for item in moves],
            "moveCount": len(moves),
            "solver": "LP",
            "inputsHash": "0123456789abcdef",
        },
        "status": {"outcome": {"movedSlices": 2, "reclaimSeconds": reclaim_s}},
    }


def a_ready_pod(name: str, load_s: int) -> dict[str, Any]:
    labels = {
        "tidegate.io/inference": "ctr",
        "tidegate.io/pool": "cpu-a",
        "tidegate.io/slices": "1",
        "tidegate.io/tier": "realtime",
    }
    ready_at = (BEGIN + timedelta(seconds=load_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "metadata": {
            "name": name,
            "namespace": "ads",
            "labels": labels,
            "creationTimestamp": "2026-11-26T00:00:00Z",
        },
        "spec": {"nodeName": "node-0"},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": ready_at}],
        },
    }


@dataclass
class Cluster:
    """A pool of eight slices with ads/ctr, and a Prometheus with its rate at each minute; None is a gap."""

    rate: Callable[[int], float | None] = lambda minute: 100.0 + minute
    inferences: list[dict[str, Any]] = field(
        default_factory=lambda: [
            a_placed_inference("ctr", capacity=CAPACITY),
            a_placed_inference("new"),
            a_placed_inference("other", pool="cpu-b"),
        ]
    )
    queries: list[str] = field(default_factory=list)

    async def serve_object(self, request: web.Request) -> web.Response:
        pool = compute_pool_body(
            "cpu-a",
            policy={"mode": "Auto", "dwell": "1m"},
        ) | {"status": {"nodes": 2, "slices": {"total": 8, "healthy": 8, "free": 7}}}
        match request.path:
            case path if path == f"{API}/computepools/cpu-a":
                return web.json_response(pool)
            case path if path == f"{API}/inferences":
                return _answer_list(self.inferences)
            case "/api/v1/pods":
                assert request.query["labelSelector"] == "tidegate.io/pool=cpu-a"
                return _answer_list([a_ready_pod("a", 40), a_ready_pod("b", 44), a_ready_pod("c", 600)])
            case path if path == f"{API}/allocationdecisions":
                assert request.query["labelSelector"] == "tidegate.io/pool=cpu-a"
                return _answer_list(
                    [
                        a_decision("a", 12.0, "ads/ctr"),
                        a_decision("b", 16.0, "ads/ctr"),
                        # It says nothing about one of the two.
                        a_decision("c", 90.0, "ads/ctr", "ads/new"),
                    ]
                )
            case _:
                return web.json_response({"kind": "Status", "code": 404}, status=404)

    async def serve_range(self, request: web.Request) -> web.Response:
        query = {name: str(value) for name, value in (await request.post()).items()}
        self.queries.append(query["query"])
        begin, end, step = (float(query[name]) for name in ("start", "end", "step"))
        values = []
        at_s = begin
        while at_s <= end:
            # The value at a time is that of the minute before it.
            rate = self.rate(round((at_s - BEGIN.timestamp()) / 60) - 1)
            values += [] if rate is None else [(at_s, str(rate))]
            at_s += step
        series = [{"metric": {"namespace": "ads", "inference": "ctr"}, "values": values}]
        recorded = SIGNAL_DEMAND in query["query"] and values
        return web.json_response({"status": "success", "data": {"result": series if recorded else []}})


def _answer_list(items: list[dict[str, Any]]) -> web.Response:
    return web.json_response({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items})


async def run_command(*arguments: str) -> tuple[int, str, str]:
    result = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    return result.exit_code, result.stdout, result.stderr


async def record(cluster: Cluster, folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Record the two hours from BEGIN on, into `folder`/day."""
    application = web.Application()
    application.router.add_post("/api/v1/query_range", cluster.serve_range)
    application.router.add_get("/{path:.*}", cluster.serve_object)
    async with on_loopback(application) as address:
        kubeconfig = kubeconfig_of(folder, address)
        return await run_command(
            *("record", "cpu-a", "--prometheus", f"http://{address}", "--kubeconfig", str(kubeconfig)),
            *("--from", "2026-11-26T00:00:00Z", "--to", "2026-11-26T02:00:00Z", "-d", str(folder / "day")),
            *arguments,
        )


async def test_a_recorded_day_is_simulated_as_it_is(tmp_path: Path) -> None:
    cluster = Cluster(lambda minute: None if 30 <= minute < 40 or minute == 50 else 100.0 + minute)
    status, answer, complaints = await record(cluster, tmp_path, "-o", "json")
    assert status == 0, complaints
    report = json.loads(answer)
    assert (report["slices"], report["nodes"], report["steps"]) == (8, 2, 120)
    assert report["inferences"] == [
        {
            "inference": "ads/ctr",
            "tier": "realtime",
            "loadSeconds": 44.0,
            "drainSeconds": 14.0,
            "missing": 11,
            "gaps": 2,
            "peak": 219.0,
        }
    ]
    assert [item["inference"] for item in report["skipped"]] == ["ads/new"]

    rows = list(csv.reader((tmp_path / "day" / "trace.csv").read_text().splitlines()))
    assert rows[0] == ["time", "ads/ctr"]
    assert rows[1] == ["2026-11-26T00:00:00Z", "100"]
    assert (rows[30][1], rows[31][1], rows[40][1], rows[41][1]) == ("129", "", "", "140")
    assert rows[-1] == ["2026-11-26T01:59:00Z", "219"]
    text = (tmp_path / "day" / "pool.yaml").read_text()
    assert "# ads/ctr: 11 of 120 rates are missing, in 2 gaps." in text
    pool, ctr = yaml.safe_load_all(text)
    assert pool["metadata"]["annotations"] == {
        "tidegate.io/recorded-slices": "8",
        "tidegate.io/recorded-nodes": "2",
    }
    assert (ctr["metadata"]["annotations"], ctr["spec"]["capacity"]) == (
        {"tidegate.io/recorded-load": "44s", "tidegate.io/recorded-drain": "14s"},
        CAPACITY,
    )

    words = report["command"].split()
    assert words[0] == "tidegate"
    status, answer, complaints = await run_command(*words[1:], "--policy", "present", "-o", "json")
    assert status == 0, complaints
    simulated = json.loads(answer)
    assert (simulated["slices"], simulated["hours"], simulated["inferences"]) == (8, 2.0, ["ads/ctr"])
    present = next(policy for policy in simulated["policies"] if policy["policy"] == "present")
    # 100/s and a little more need a second replica, which serves 44 s later.
    assert present["movedSlices"] >= 1


async def test_an_inference_of_several_pools_is_named_and_its_slices_do_not_count(tmp_path: Path) -> None:
    several = inference_body(
        "both",
        placement={"pools": [{"name": "cpu-b"}, {"name": "cpu-a", "slices": 2}]},
        replicas=3,
        capacity=CAPACITY,
    ) | {
        "status": {
            "replicas": 3,
            "pools": [{"name": "cpu-b", "replicas": 2}, {"name": "cpu-a", "replicas": 1}],
        }
    }
    elsewhere = inference_body("elsewhere", placement={"pools": [{"name": "cpu-b"}]}, replicas=1)
    newer = inference_body("newer", placement={"pool": "cpu-a"}, replicas=1, fieldOfLater=True)
    cluster = Cluster(inferences=[a_placed_inference("ctr", capacity=CAPACITY), several, elsewhere, newer])
    status, answer, complaints = await record(cluster, tmp_path, "-o", "json")
    assert status == 0, complaints
    report = json.loads(answer)
    assert report["slices"] == 6
    assert report["skipped"] == [
        {"inference": "ads/both", "reason": "runs in several pools, and a simulation has one"}
    ]
    assert [note.partition(":")[0] for note in report["notes"]] == [
        "Inference ads/newer cannot be read by this version"
    ]


async def test_a_record_is_replaced_only_by_force_and_is_the_same_again(tmp_path: Path) -> None:
    cluster = Cluster()
    assert (await record(cluster, tmp_path))[0] == 0
    folder = tmp_path / "day"
    before = {path.name: path.read_text() for path in folder.iterdir()}
    asked = len(cluster.queries)
    status, _, complaints = await record(cluster, tmp_path)
    assert status == 3
    assert f"{folder}/trace.csv exists: choose another --directory, or replace it with --force" in complaints
    assert len(cluster.queries) == asked
    status, answer, _ = await record(cluster, tmp_path, "--force")
    assert status == 0
    assert {path.name: path.read_text() for path in folder.iterdir()} == before
    assert f"tidegate simulate {folder}/trace.csv -f {folder}/pool.yaml --last 2h --interval 1m" in answer


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        pytest.param(
            Cluster(lambda _: None),
            "has no rate of the Inferences of ComputePool cpu-a between",
            id="no rates",
        ),
        pytest.param(
            Cluster(inferences=[a_placed_inference("new")]),
            "ComputePool cpu-a has no realtime or nearline Inference with spec.capacity",
            id="no capacity",
        ),
    ],
)
async def test_what_cannot_be_simulated_is_not_written(cluster: Cluster, said: str, tmp_path: Path) -> None:
    status, _, complaints = await record(cluster, tmp_path)
    assert status == 3
    assert said in complaints
    assert not (tmp_path / "day").exists()


async def test_a_prometheus_that_does_not_answer_is_named(tmp_path: Path) -> None:
    status, _, complaints = await record(Cluster(), tmp_path, "--prometheus", "http://127.0.0.1:1")
    assert status == 3
    assert "cannot read rates from Prometheus http://127.0.0.1:1: it cannot be asked" in complaints
    assert not (tmp_path / "day").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--prometheus is needed: the address of the Prometheus that scrapes the gateways"),
        (("--prometheus", "http://p", "--step", "2h"), "--step 2h: want 10s to 1h"),
        (("--prometheus", "http://p", "--from", "yesterday"), "--from yesterday: want a time in RFC 3339"),
        (("--prometheus", "http://p", "--to", "2026-11-26T00:00:00"), "has no time zone; add Z for UTC"),
        (("--prometheus", "http://p", "--since", "30s"), "the time has 0 steps of 1m: want 1 to 200000"),
    ],
)
async def test_a_wrong_option_is_a_usage_error(arguments: tuple[str, ...], said: str) -> None:
    status, _, complaints = await run_command("record", "cpu-a", *arguments)
    assert status == 2
    assert said in " ".join(complaints.replace("│", " ").split())
