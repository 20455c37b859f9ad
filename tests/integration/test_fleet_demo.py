"""`make demo-fleet` in small: a real API server and real controllers decide, kubectl overrules them, and nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from builders.waiting import wait_until
from fixtures.control_plane import Kubectl
from tidegate.telemetry.pool_series import PoolSeries
from tidegate.telemetry.prometheus import Prometheus
from tidegate_localcluster.cluster import Cluster
from tidegate_localcluster.fleet_demo.objects import POOL
from tidegate_localcluster.fleet_demo.simulation import DAY_FILE
from tidegate_localcluster.fleet_demo.site import entrance
from tidegate_localcluster.state import Forward

NODES, INFERENCES = 8, 12
SLICES = 4 * NODES
SPEED = 600.0
"""An hour in six seconds: from seven to the peak at half past eleven takes 27 s."""


@dataclass(frozen=True, slots=True)
class RunningFleet:
    """A fleet whose day stands still until it is told to go on."""

    cluster: Cluster
    kubectl: Kubectl
    said: str

    def command(self, name: str, *options: str) -> subprocess.CompletedProcess[str]:
        return fleet_command(name, self.cluster.files.path, *options)

    def decisions(self) -> Sequence[str]:
        found = self.kubectl.json("get", "allocationdecisions")["items"]
        return sorted(each["metadata"]["name"] for each in found)

    def slices(self) -> Mapping[str, int]:
        """Pods by tier, those on their way out included; a pod has one slice."""
        pods = self.kubectl.json("get", "pods", "-n", "fleet")["items"]
        assert len(pods) <= SLICES
        return Counter(each["metadata"]["labels"]["tidegate.io/tier"] for each in pods)

    def inference(self, name: str) -> Mapping[str, Any]:
        return dict(self.kubectl.json("get", "inference", name, "-n", "fleet"))

    def looks(self) -> float:
        """How often the allocator has looked at the pool."""
        url = f"http://127.0.0.1:{self.cluster.plan().probes['controllers']}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        name = "tidegate_allocator_tick_seconds_count{"
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def family(self) -> list[psutil.Process]:
        """Every process of the fleet."""
        pid = self.cluster.supervisor()
        assert pid is not None
        return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]

    def let_the_day_pass(self) -> None:
        """From seven o'clock on, by a stand-in that is started anew: its supervisor does that when it is killed."""
        files, plan = self.cluster.files, self.cluster.plan()
        assert plan.fleet is not None
        fleet = plan.fleet.model_copy(update={"speed": SPEED})
        plan.model_copy(update={"fleet": fleet}).write(files.plan)
        (files.data / DAY_FILE).write_text(json.dumps({"began": datetime.now(UTC).timestamp()}))
        state = self.cluster.state()
        assert state is not None
        pid = state.parts["simulation"].pid
        assert pid is not None
        psutil.Process(pid).kill()


def fleet_command(name: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    module = [sys.executable, "-m", "tidegate_localcluster.fleet_demo", name, f"--state-dir={folder}"]
    return subprocess.run([*module, *options], capture_output=True, text=True, timeout=280, check=False)


def up(folder: Path) -> subprocess.CompletedProcess[str]:
    sizes = (f"--nodes={NODES}", f"--inferences={INFERENCES}")
    return fleet_command("up", folder, *sizes, "--speed=0", "--fresh")


@pytest.fixture(scope="module")
def fleet(
    control_plane_binaries: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningFleet]:
    folder = tmp_path_factory.mktemp("fleet") / "state"
    try:
        done = up(folder)
        assert done.returncode == 0, done.stdout + done.stderr
        cluster = Cluster(folder)
        cache = tmp_path_factory.mktemp("fleet-kubectl")
        kubectl = Kubectl(control_plane_binaries["kubectl"], cluster.files.kubeconfig, cache)
        yield RunningFleet(cluster, kubectl, done.stdout)
    finally:
        fleet_command("down", folder)


def test_the_pool_is_filled_and_it_says_what_is_real_and_where_to_look(fleet: RunningFleet) -> None:
    assert sum(fleet.slices().values()) == SLICES
    status = fleet.cluster.status()
    for said in (
        str(status["dashboard"]),
        str(status["kubeconfig"]),
        "a stand-in for Prometheus",
        "pods and requests are not",
        f"tidegate plan fleet --address 127.0.0.1:{fleet.cluster.plan().probes['controllers']}",
        "tidegate override fleet/",
    ):
        assert said in fleet.said
    ready = [
        each
        for each in fleet.kubectl.json("get", "inferences", "-n", "fleet")["items"]
        if {"type": "Ready", "status": "True"}.items()
        <= next(one for one in each["status"]["conditions"] if one["type"] == "Ready").items()
    ]
    assert len(ready) == INFERENCES
    with urllib.request.urlopen(f"{status['dashboard']}/sign-in", timeout=5) as answer:
        assert answer.status == 200


def test_nobody_else_on_the_network_reaches_any_of_it(fleet: RunningFleet) -> None:
    addresses = {
        each.laddr.ip
        for process in fleet.family()
        for each in process.net_connections(kind="inet")
        if each.status == psutil.CONN_LISTEN
    }
    assert addresses
    assert all(address.startswith("127.") for address in addresses), addresses


def test_the_dashboard_has_every_node_and_a_past_and_asks_nothing_that_has_no_answer(
    fleet: RunningFleet,
) -> None:
    files = fleet.cluster.files
    address = entrance(files)
    assert address is not None
    path = f"{address.partition('/enter')[0]}/api/v1/computepools/{POOL}/power"
    with httpx.Client(follow_redirects=True, timeout=30, trust_env=False) as browser:
        assert browser.get(address).status_code == 200

        def nodes() -> Sequence[tuple[int, int, int]]:
            found = browser.get(path).json()["nodes"]
            return [(each["total"], each["used"], each["free"]) for each in found]

        wait_until(lambda: nodes() == [(4, 4, 0)] * NODES, what="every node is shown, and full", timeout_s=60)
    prometheus = Prometheus(f"http://127.0.0.1:{fleet.cluster.plan().ports[Forward.PROMETHEUS]}")

    def newest_sample_counts_every_slice() -> bool:
        now = datetime.now(UTC)
        past = asyncio.run(prometheus.pool_past(POOL, now - timedelta(seconds=30), now, timedelta(seconds=5)))
        if not past:
            return False
        newest = past[-1]
        assert (newest.of(PoolSeries.DEMAND, "realtime") or 0) > 0
        return newest.of(PoolSeries.COUNTED, "healthy") == newest.of(PoolSeries.SHARED_OUT) == SLICES

    wait_until(newest_sample_counts_every_slice, what="Prometheus has every slice shared out", timeout_s=60)
    assert "tidegate_pool_" not in (files.logs / "simulation.log").read_text()


def test_up_again_says_that_it_runs_and_other_sizes_are_refused(fleet: RunningFleet) -> None:
    before = {process.pid for process in fleet.family()}
    again = up(fleet.cluster.files.path)
    assert again.returncode == 0
    assert "runs already" in again.stdout
    other = fleet.command("up", "--nodes=9")
    assert other.returncode == 1
    assert "runs with other options" in other.stderr
    assert before <= {process.pid for process in fleet.family()}


@pytest.mark.slow("waits for simulated hours")
def test_nothing_moves_while_the_day_stands_still(fleet: RunningFleet) -> None:
    decisions, slices, goal = fleet.decisions(), fleet.slices(), fleet.looks() + 3
    wait_until(lambda: fleet.looks() >= goal, what="the allocator looks three times", timeout_s=40.0)
    assert fleet.decisions() == decisions
    assert fleet.slices() == slices


def test_an_override_by_kubectl_takes_effect_and_says_who_made_it(fleet: RunningFleet) -> None:
    most = fleet.inference("ctr-000")["spec"]["scaling"]["maxReplicas"]
    assert fleet.inference("ctr-000")["status"]["replicas"] < most
    override = {
        "apiVersion": "tidegate.io/v1alpha1",
        "kind": "ComputeOverride",
        "metadata": {"name": "sale"},
        "spec": {
            "target": {"kind": "Inference", "namespace": "fleet", "name": "ctr-000"},
            "floor": {"replicas": most},
            "reason": "a sale",
            "expiresAt": (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        },
    }
    fleet.kubectl.apply(override)
    wait_until(
        lambda: fleet.inference("ctr-000")["status"]["readyReplicas"] == most,
        what=f"ctr-000 has {most} replicas",
        timeout_s=40.0,
    )
    made = fleet.kubectl.json("get", "computeoverride", "sale")
    assert made["metadata"]["annotations"]["tidegate.io/author"] == "tidegate-admin"
    fleet.kubectl("delete", "computeoverride", "sale")


@pytest.mark.slow("waits for simulated hours")
def test_compute_moves_from_offline_work_to_realtime_as_the_load_rises(fleet: RunningFleet) -> None:
    before, decisions = fleet.slices(), fleet.decisions()
    fleet.let_the_day_pass()

    def moved() -> bool:
        now = fleet.slices()
        return now["realtime"] >= before["realtime"] + 3 and now["offline"] < before["offline"]

    wait_until(moved, what=f"real-time models have more slices than {before}", timeout_s=60.0)
    new = set(fleet.decisions()) - set(decisions)
    whys = [
        move["why"]
        for name in new
        for move in fleet.kubectl.json("get", "allocationdecision", name)["spec"]["moves"]
        if move["tier"] == "realtime" and move["to"] > move["from"]
    ]
    assert whys
    assert all("/s" in why for why in whys), whys
    state = fleet.cluster.state()
    assert state is not None
    assert state.parts["simulation"].restarts >= 1


def test_down_leaves_no_process_and_no_folder(fleet: RunningFleet) -> None:
    family = fleet.family()
    assert {"etcd", "kube-apiserver"} <= {process.name() for process in family}
    done = fleet.command("down")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [each for each in family if each.is_running() and each.status() != psutil.STATUS_ZOMBIE] == []
    assert not fleet.cluster.files.path.exists()
    again = fleet.command("down")
    assert again.returncode == 0
    assert "there is no fleet" in again.stdout
