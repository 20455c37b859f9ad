"""What the loss of a node costs models that share a spare: a node of a local cluster is lost three times, answers by value.

    python bench/spares_cluster.py [--state-dir DIR] [--losses 3] [--seed 1] [--outage 75] [--spares none] [--output FILE]

On a local cluster of three nodes (started when it does not run, and then ended) with the installed chart, gateways and real Tritons,
two nodes have two real-time models of one replica each, and the third a spare that has all four loaded, beside the control plane.
All four are asked all the time through the gateways, without pauses for failures, and every answer is checked by its value; routes
retry twice. Then one of the two nodes, drawn at random, is lost like one without power: its kubelet and all processes of its pods stop
at once, packets to its pods vanish, and nothing comes back. After the outage its pods' processes are killed and its kubelet goes on,
as after a boot. The next loss comes when all replicas answer again and the spare is left alone.

`answered_by_spare` is by the counter of the spare's own Triton; `first_answer_s` is the longest time, over the lost models, until a
request was answered that was sent after the loss. With `--spares none` the same models have no spare, for comparison.
Prints one JSON document; exits 1 when a request failed or was answered wrongly, or when the spare answered none of a lost model.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from typing import Any, Final

from harness import count_lost

from builders.load import access_client, probe_batches
from builders.waiting import wait_until
from fixtures import installed
from fixtures.cluster import OPTIONS, POOL_TAINT, administrator_of
from fixtures.installed import Space
from fixtures.installed_pool import OwnPool, an_own_pool
from tidegate.planning.pods import is_ready
from tidegate.resources.names import SPARE_LABEL
from tidegate_localcluster.binaries import default_home
from tidegate_localcluster.cluster import LocalCluster
from tidegate_localcluster.demo.load import CheckedLoad, LoadReport
from tidegate_localcluster.node import node_name
from tidegate_localcluster.supplies import find_supplies

SAFE_NODE: Final = node_name(0)
"""The control plane is here, and the gateways."""
LOST_NODES: Final = (node_name(1), node_name(2))
MODELS: Final = {"ctr": 1, "cvr": 2, "rank": 3, "home": 4}
"""The models, and the version of each, from which its answers come; the first two are on the first of LOST_NODES."""
CAPACITY_PER_S: Final = 50
PAUSE_S: Final = 0.1
"""Between two requests of a client: a model gets at most a fifth of its capacity, and two cores have time for the rest."""
TIMEOUT_S: Final = 30.0
READY_S: Final = 240.0
SLICE: Final = {"cpu": {"cpu": "100m", "memory": "1Gi"}}


@dataclass(frozen=True, slots=True)
class SparedModels:
    """The models, their pool and their spare."""

    space: Space
    pool: OwnPool
    has_spare: bool

    def place_models(self) -> None:
        """Create two models on each node, and then let the allocator plan their spare."""
        pool, space, kubectl = self.pool, self.space, self.space.kubectl
        names = list(MODELS)
        for node, placed in zip(LOST_NODES, (names[:2], names[2:]), strict=True):
            others = [other for other in (SAFE_NODE, *LOST_NODES) if other != node]
            kubectl.run("cordon", *others)
            for name in placed:
                space.publish(name, MODELS[name])
                spec = pool.model(name, CAPACITY_PER_S, scaling={"minReplicas": 1, "maxReplicas": 1})
                spec["model"] |= {"name": name, "version": str(MODELS[name])}
                space.apply("Inference", name, spec)
                space.access((name, 100), name=name, timeout=f"{TIMEOUT_S:g}s", retry={"attempts": 2})
            space.ready(*(f"{kind}/{name}" for name in placed for kind in ("inference", "modelaccess")))
            kubectl.run("uncordon", *others)
        mode = "Shared" if self.has_spare else "Priced"
        # The spare's slices, and not one more: without it, these are for its node alone.
        shared = {"nodeLoss": {"mode": mode, "sharedSpares": {"maxModels": len(MODELS), "maxSlices": 1}}}
        pool.apply("Auto", policy={"mode": "Auto", "interval": "2s", **shared}, slice=SLICE)

    def wait_until_whole(self) -> None:
        """Wait until each model has its pod, which answers, and the spare has all loaded."""
        wait_until(self._is_whole, "everything serves", timeout_s=READY_S, evidence=self.describe)

    def _is_whole(self) -> bool:
        pods = [pod for name in MODELS for pod in self.space.pods(name)]
        if len(pods) != len(MODELS) or not all(map(is_ready, pods)):
            return False
        spares = self.list_spares()
        return not self.has_spare or (len(spares) == 1 and not spares[0].get("problem"))

    def list_spares(self) -> Sequence[Mapping[str, Any]]:
        """Return the spares as the pool's status has them."""
        return self.pool.status().get("sharedSpares", {}).get("spares", ())

    def find_places(self) -> Mapping[str, str]:
        """Return the node of each model."""
        return {
            name: pod["spec"].get("nodeName", "")
            for name in MODELS
            for pod in self.space.pods(name)
            if is_ready(pod)
        }

    def count_spare_answers(self) -> Mapping[str, int]:
        """Return the requests for each model that the spare's Triton has answered."""
        counts = dict.fromkeys(MODELS, 0)
        for pod in self.space.installed.pods(self.space.namespace, SPARE_LABEL):
            for metric in self.space.installed.metrics(self.space.namespace, pod["metadata"]["name"], 8002):
                model = metric.labels.get("model", "")
                if metric.name == "nv_inference_request_success" and model in counts:
                    counts[model] += int(metric.value)
        return counts

    def describe(self) -> object:
        """Return what an error shows."""
        pods = [
            (pod["metadata"]["name"], pod["spec"].get("nodeName"), pod["status"].get("phase"), is_ready(pod))
            for pod in self.space.installed.pods(self.space.namespace, "")
        ]
        return self.pool.status(), pods


class LostNode:
    """A node without power, and the same one after a boot."""

    def __init__(self, space: Space, node: str) -> None:
        self._installed, self.node = space.installed, node
        on_node = f"spec.nodeName={node}"
        pods = space.installed.api.list_items(f"/api/v1/pods?fieldSelector={on_node}")
        uids = [pod["metadata"]["uid"] for pod in pods]
        self._addresses = [pod["status"]["podIP"] for pod in pods if pod["status"].get("podIP")]
        self._pods = self._installed.processes(".", uids)
        self._kubelet = self._installed.find(f"--hostname-override={node}")

    def cut_power(self) -> None:
        """Stop everything at once."""
        for address in self._addresses:
            self._change_rule("add", address)
        rules = self._installed.run_inside("ip", "rule", "list")
        assert all(f"to {address} blackhole" in rules for address in self._addresses), rules
        self._installed.signal("STOP", [*self._kubelet, *self._pods])

    def boot(self) -> None:
        """End the pods' processes, and let the kubelet start them again."""
        self._installed.signal("KILL", self._pods)
        for address in self._addresses:
            self._change_rule("del", address)
        self._installed.signal("CONT", self._kubelet)

    def _change_rule(self, change: str, address: str) -> None:
        """Let packets to a pod vanish, or not any more: a rule comes before the route that a pod has."""
        self._installed.run_inside("ip", "rule", change, "to", f"{address}/32", "priority", "1", "blackhole")


def lose_node(
    models: SparedModels, node: str, loads: Mapping[str, CheckedLoad], outage_s: float
) -> dict[str, Any]:
    """Lose a node for some time, and return what that cost."""
    lost = [name for name, place in models.find_places().items() if place == node]
    before = {name: load.report() for name, load in loads.items()}
    spare_before = models.count_spare_answers()
    lost_node = LostNode(models.space, node)
    lost_node.cut_power()
    began_s = time.monotonic()
    first_s: dict[str, float] = {}
    was_reported = False
    try:
        while time.monotonic() < began_s + outage_s:
            for name in lost:
                if name not in first_s and loads[name].last_sent_at(str(MODELS[name])) > began_s:
                    first_s[name] = time.monotonic() - began_s
            was_reported = was_reported or not is_node_ready(models.space, node)
            time.sleep(0.1)
        by_spare = {name: count - spare_before[name] for name, count in models.count_spare_answers().items()}
    finally:
        lost_node.boot()
    models.wait_until_whole()
    reports = {name: load.report().since_report(before[name]) for name, load in loads.items()}
    return {
        "node": node,
        "lost_models": lost,
        "reported_by_kubernetes": was_reported,
        "first_answer_s": round(max(first_s.values()), 1) if len(first_s) == len(lost) else None,
        "answered_by_spare": {name: by_spare[name] for name in lost},
        "of_others_by_spare": sum(by_spare[name] for name in MODELS if name not in lost),
        **sum_reports(reports.values()),
    }


def is_node_ready(space: Space, node: str) -> bool:
    """Return whether Kubernetes takes a node for one that answers."""
    found = space.installed.api.get(f"/api/v1/nodes/{node}") or {}
    conditions = found.get("status", {}).get("conditions", ())
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def sum_reports(reports: Any) -> dict[str, int]:
    """Return the requests of all models, with those that were lost."""
    totals = {"requests": 0, "failed": 0, "wrong": 0}
    for report in reports:
        assert isinstance(report, LoadReport)
        totals["requests"] += report.sent
        for name, count in count_lost(report).items():
            totals[name] += count
    return totals


def start_load(space: Space, name: str) -> CheckedLoad:
    """Return the clients of one model, each with a connection of its own and without retries, which would hide a lost request."""
    gateway, access = space.installed.endpoints.gateway, f"{space.namespace}/{name}"
    options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
    return CheckedLoad(
        lambda: access_client(gateway, access, model=name, timeout_s=2 * TIMEOUT_S, channel_args=options),
        probe_batches([MODELS[name]]),
        threads=1,
        max_seconds=inf,
        pause_s=PAUSE_S,
        say=lambda line: print(f"{name}: {line}", file=sys.stderr, flush=True),
    )


def measure_losses(space: Space, options: argparse.Namespace) -> dict[str, Any]:
    """Lose nodes one after the other."""
    random, losses = Random(options.seed), list[dict[str, Any]]()
    nodes = (SAFE_NODE, *LOST_NODES)
    with ExitStack() as stack:
        recommend = {"policy": {"mode": "RecommendOnly", "interval": "2s"}, "slice": SLICE}
        pool = stack.enter_context(an_own_pool(space, "spares", "RecommendOnly", nodes=nodes, **recommend))
        stack.callback(space.kubectl.run, "uncordon", *nodes)
        models = SparedModels(space, pool, options.spares == "shared")
        models.place_models()
        models.wait_until_whole()
        spares = models.list_spares()
        loads = {name: stack.enter_context(start_load(space, name)) for name in MODELS}
        for name, load in loads.items():
            load.wait_for(str(MODELS[name]), 20, READY_S)
        for _ in range(options.losses):
            places = models.find_places()
            node = random.choice([node for node in LOST_NODES if node in places.values()])
            losses.append(lose_node(models, node, loads, options.outage))
            print(json.dumps(losses[-1]), file=sys.stderr, flush=True)
        reports = [load.finish() for load in loads.values()]
    return {
        "realtime_slices": len(MODELS),
        "spare_slices": sum(spare["slices"] for spare in spares),
        **sum_reports(reports),
        "p99_ms": round(max(report.quantile_ms(0.99) for report in reports)),
        "losses": losses,
    }


def is_met(figures: Mapping[str, Any]) -> bool:
    """Return whether no answer was lost, and the spare answered for each model that was."""
    answered = [count for loss in figures["losses"] for count in loss["answered_by_spare"].values()]
    return not figures["failed"] and not figures["wrong"] and bool(answered) and all(answered)


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--state-dir", type=Path, default=default_home() / "clusters" / "spares")
    parser.add_argument("--losses", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--outage", type=float, default=75.0, help="seconds; Kubernetes reports a node after 50"
    )
    parser.add_argument("--spares", choices=("shared", "none"), default="shared")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    show_step = partial(print, file=sys.stderr, flush=True)
    cluster = LocalCluster(options.state_dir)
    is_ours = cluster.find_supervisor() is None
    try:
        if is_ours:
            wanted = replace(OPTIONS, name="spares", nodes=3, simulated_gpu_nodes=0)
            cluster.bring_up(wanted, find_supplies(default_home(), wanted, None, show_step), show_step)
            with administrator_of(cluster) as api:
                for node in LOST_NODES:
                    api.merge_patch(f"/api/v1/nodes/{node}", {"spec": {"taints": [POOL_TAINT]}})
        with (
            installed.an_installation(cluster, show_step) as installation,
            installed.a_space(installation, "bench-spares") as space,
        ):
            figures = measure_losses(space, options)
    finally:
        if is_ours:
            cluster.tear_down(show_step)
    text = json.dumps(figures, indent=2)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")
    return 0 if is_met(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
