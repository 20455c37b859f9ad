"""`make demo-fleet` in small: a real API server and real controllers decide, kubectl overrules them, and nothing stays behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
import psutil
import pytest

from builders.http_call import read_page
from builders.waiting import wait_until
from fixtures.control_plane import Kubectl
from tidegate_localcluster.cluster import LocalCluster
from tidegate_localcluster.fleet_demo.objects import POOL
from tidegate_localcluster.fleet_demo.simulation import DAY_FILE
from tidegate_localcluster.fleet_demo.site import read_dashboard_address

NODES, INFERENCES = 8, 12
SLICES = 4 * NODES
SPEED = 600.0
"""An hour in six seconds: from seven to the peak at half past eleven takes 27 s."""


@dataclass(frozen=True, slots=True)
class RunningFleet:
    """A fleet whose day stands still until it is told to go on."""

    cluster: LocalCluster
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

    def ready(self) -> int:
        """How many Inferences are ready."""
        found = self.kubectl.json("get", "inferences", "-n", "fleet")["items"]
        conditions = [condition for each in found for condition in each["status"]["conditions"]]
        return sum((each["type"], each["status"]) == ("Ready", "True") for each in conditions)

    def looks(self) -> float:
        """How often the allocator has looked at the pool."""
        url = f"http://127.0.0.1:{self.cluster.read_plan().probes['controllers']}/metrics"
        lines = read_page(url).splitlines()
        name = "tidegate_allocator_tick_seconds_count{"
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def family(self) -> list[psutil.Process]:
        """Every process of the fleet."""
        pid = self.cluster.find_supervisor()
        assert pid is not None
        return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]

    def let_the_day_pass(self) -> None:
        """From seven o'clock on, by a stand-in that is started anew: its supervisor does that when it is killed."""
        files, plan = self.cluster.files, self.cluster.read_plan()
        assert plan.fleet is not None
        fleet = plan.fleet.model_copy(update={"speed": SPEED})
        plan.model_copy(update={"fleet": fleet}).write(files.plan)
        (files.data / DAY_FILE).write_text(json.dumps({"began": datetime.now(UTC).timestamp()}))
        state = self.cluster.read_state()
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


@pytest.fixture
def fleet(control_plane_binaries: Mapping[str, Path], tmp_path: Path) -> Iterator[RunningFleet]:
    folder = tmp_path / "state"
    try:
        done = up(folder)
        assert done.returncode == 0, done.stdout + done.stderr
        cluster = LocalCluster(folder)
        kubectl = Kubectl(control_plane_binaries["kubectl"], cluster.files.kubeconfig, tmp_path / "cache")
        yield RunningFleet(cluster, kubectl, done.stdout)
    finally:
        if folder.exists():
            fleet_command("down", folder)


@pytest.mark.slow(
    "starts a fleet of its own; unit/test_fleet_objects.py, test_fleet_day.py and test_fleet_feed.py check its parts"
)
def test_a_fleet_fills_its_pool_is_reached_from_here_alone_and_leaves_nothing(fleet: RunningFleet) -> None:
    assert sum(fleet.slices().values()) == SLICES
    status = fleet.cluster.read_status()
    for said in (
        str(status["dashboard"]),
        str(status["kubeconfig"]),
        "a stand-in for Prometheus",
        "pods and requests are not",
        f"tidegate plan fleet --address 127.0.0.1:{fleet.cluster.read_plan().probes['controllers']}",
        "tidegate override fleet/",
    ):
        assert said in fleet.said
    assert fleet.ready() == INFERENCES
    # The dashboard shows every node, and that it is full.
    address = read_dashboard_address(fleet.cluster.files)
    assert address is not None
    path = f"{address.partition('/enter')[0]}/api/v1/computepools/{POOL}/power"
    with httpx.Client(follow_redirects=True, timeout=30, trust_env=False) as browser:
        assert browser.get(address).status_code == 200

        def nodes() -> Sequence[tuple[int, int, int]]:
            found = browser.get(path).json()["nodes"]
            return [(each["total"], each["used"], each["free"]) for each in found]

        wait_until(lambda: nodes() == [(4, 4, 0)] * NODES, what="every node is shown, and full")

    family = fleet.family()
    assert {"etcd", "kube-apiserver"} <= {process.name() for process in family}
    addresses = {
        each.laddr.ip
        for process in family
        for each in process.net_connections(kind="inet")
        if each.status == psutil.CONN_LISTEN
    }
    assert addresses
    assert all(address.startswith("127.") for address in addresses), addresses

    done = fleet.command("down")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [each for each in family if each.is_running() and each.status() != psutil.STATUS_ZOMBIE] == []
    assert not fleet.cluster.files.path.exists()
    again = fleet.command("down")
    assert again.returncode == 0
    assert "there is no fleet" in again.stdout


@pytest.mark.slow("waits for simulated hours")
def test_compute_moves_from_offline_work_to_realtime_as_the_load_rises_and_not_before(
    fleet: RunningFleet,
) -> None:
    before, decisions, goal = fleet.slices(), fleet.decisions(), fleet.looks() + 3
    wait_until(lambda: fleet.looks() >= goal, what="the allocator looks three times")
    assert (fleet.slices(), fleet.decisions()) == (before, decisions)
    fleet.let_the_day_pass()

    def moved() -> bool:
        now = fleet.slices()
        return now["realtime"] >= before["realtime"] + 3 and now["offline"] < before["offline"]

    wait_until(moved, what=f"real-time models have more slices than {before}")
    new = set(fleet.decisions()) - set(decisions)
    whys = [
        move["why"]
        for name in new
        for move in fleet.kubectl.json("get", "allocationdecision", name)["spec"]["moves"]
        if move["tier"] == "realtime" and move["to"] > move["from"]
    ]
    assert whys
    assert all("/s" in why for why in whys), whys
    state = fleet.cluster.read_state()
    assert state is not None
    assert state.parts["simulation"].restarts >= 1
