"""Many Inferences at once, until all are Ready: how long it takes, what it costs, and what a bare client takes for the same objects.

    python bench/scale_ready.py [--inferences 1000] [--nodes 100] [--rounds 3] [--output FILE]
    python bench/scale_ready.py --inferences 10000 --base 1000 --nodes 1000 --rounds 1

A real control plane with simulated nodes, whose pods are ready as soon as they have a node. Each round has two arms in turn: our
controllers, and a bare client that makes the very objects that these made, ten requests at a time, and writes the same statuses.
Requests are counted by the API server's audit log. After the last round the controllers are started again over all that is there.
With `--base`, so many Inferences come first, alone: how many times as many of them become Ready per second as of the larger number.
Prints one JSON document; exits 1 when a figure misses its target.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
from harness.histograms import read_quantile
from harness.simulated_cluster import (
    ApiRequests,
    SimulatedCluster,
    make_namespace,
    process_cpu_s,
    process_memory_mib,
    simulated_cluster,
    wait_leading,
)

from tidegate_localcluster.control_plane import LOOPBACK
from tidegate_localcluster.fleet_demo import objects
from tidegate_localcluster.fleet_demo.api import ApiServerClient, run_concurrently
from tidegate_localcluster.ports import find_unused_port
from tidegate_localcluster.process import ChildProcess

Manifest = Mapping[str, Any]

CHILDREN: Final = {
    "configmaps": "/api/v1",
    "deployments": "/apis/apps/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
}
EVENTS: Final = "create events"
WORKERS: Final = 10
TIMEOUT_S: Final = 1800.0
QUIET_S: Final = 20.0
"""So long nothing is written after a restart, or the controllers have not settled."""
TARGETS: Final[Mapping[str, float]] = {
    "all_ready_s": 45.0,
    "of_bare": 1.6,
    "first_ready_s": 5.0,
    "half_of_all": 0.6,
    "writes_per_object": 5.0,
    "reads_per_object": 0.0,
    "rss_mib": 150.0,
    "controllers_cpu_s": 25.0,
    "api_server_cpu_s": 60.0,
    "restart_writes": 0.0,
}
"""Upper limits for 1,000 Inferences."""
MOST_SLOWDOWN: Final = 1 / 0.9
MIB_PER_THOUSAND: Final = 10.0


@dataclass(slots=True)
class ReadyProgress:
    """Ready objects of a namespace, with the seconds until each was ready."""

    began: float = field(default_factory=time.monotonic)
    ready: dict[str, float] = field(default_factory=dict[str, float])

    def record_ready(self, name: str) -> None:
        """Record that an object is ready, once."""
        self.ready.setdefault(name, time.monotonic() - self.began)

    def summarise_times(self) -> dict[str, float]:
        """Return the times of the first, the median and the last object."""
        times = sorted(self.ready.values())
        return {
            "first_ready_s": round(times[0], 2),
            "half_ready_s": round(times[len(times) // 2], 2),
            "all_ready_s": round(times[-1], 2),
        }


def make_inference(name: str, namespace: str) -> Manifest:
    """Return a small Inference of one replica."""
    spec = {
        "model": {"uri": "file:///models/ranker", "version": "1"},
        "resources": {"cpu": "100m", "memory": "256Mi"},
    }
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "tidegate.io/v1alpha1", "kind": "Inference", "metadata": metadata, "spec": spec}


def is_ready(body: Manifest) -> bool:
    """Return whether the condition Ready is True."""
    conditions = (body.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


async def wait_ready(
    api: ApiServerClient, path: str, count: int, progress: ReadyProgress, holds: Callable[[Manifest], bool]
) -> None:
    """Follow a list until so many of its objects were ready. Raises TimeoutError."""
    printed_at = time.monotonic()
    async with asyncio.timeout(TIMEOUT_S):
        async for kind, body in api.list_and_watch(f"{path}?limit=0"):
            if kind in {"ADDED", "MODIFIED"} and holds(body):
                progress.record_ready(body["metadata"]["name"])
            if time.monotonic() - printed_at > 10:
                printed_at = time.monotonic()
                print(f"{len(progress.ready)} of {count} are ready", file=sys.stderr)
            if len(progress.ready) >= count:
                return


async def measure_ours(cluster: SimulatedCluster, namespace: str, count: int) -> dict[str, Any]:
    """Measure the arm of the controllers: `count` Inferences in their own namespace."""
    probe = find_unused_port(LOOPBACK)
    with cluster.run_controllers({"TIDEGATE_PROBE_PORT": str(probe)}) as process:
        await wait_leading(cluster, process)
        before, api_before = cluster.count_requests(), cluster.component_cpu_s("kube-apiserver")
        cpu_before, progress = process_cpu_s(process_id(process)), ReadyProgress()
        path = f"{objects.API_PATH}/namespaces/{namespace}/inferences"
        names = [f"m{number}" for number in range(count)]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wait_ready(cluster.api, path, count, progress, is_ready))
            tasks.create_task(
                run_concurrently(
                    partial(cluster.api.create, path, make_inference(name, namespace)) for name in names
                )
            )
        await wait_settled(cluster)
        requests = subtract_requests(before, cluster.count_requests())
        current_mib, peak_mib = process_memory_mib(process_id(process))
        return {
            **progress.summarise_times(),
            "writes_per_object": round(
                sum(number for name, number in requests.writes.items() if name != EVENTS) / count, 2
            ),
            "events_per_object": round(requests.writes[EVENTS] / count, 2),
            "reads_per_object": round(
                sum(number for name, number in requests.reads.items() if name.startswith("get ")) / count, 2
            ),
            "requests": {**requests.writes, **requests.reads},
            "refused": dict(requests.refused),
            "controllers_cpu_s": round(process_cpu_s(process_id(process)) - cpu_before, 1),
            "api_server_cpu_s": round(cluster.component_cpu_s("kube-apiserver") - api_before, 1),
            "rss_mib": round(current_mib, 1),
            "rss_most_mib": round(peak_mib, 1),
            **await read_latencies(probe),
        }


async def read_latencies(probe: int) -> dict[str, float]:
    """Return the median and the p99 of a reconcile of Inferences, and of the wait of a key before it, in seconds."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{LOOPBACK}:{probe}/metrics") as answer,
    ):
        page = await answer.text()
    return {
        f"{name}_p{share * 100:.0f}_s": round(
            read_quantile(page, metric, {"queue": "inference"}, share) or 0.0, 3
        )
        for name, metric in (
            ("reconcile", "tidegate_reconcile_seconds"),
            ("wait", "tidegate_queue_wait_seconds"),
        )
        for share in (0.5, 0.99)
    }


async def measure_bare(cluster: SimulatedCluster, namespace: str, pattern: str, count: int) -> dict[str, Any]:
    """Measure the arm of the bare client: copies of what the controllers created for m0 in `pattern`."""
    api = cluster.api
    children = await list_children(api, pattern, "m0")
    owner_path = f"{objects.API_PATH}/namespaces/{namespace}/inferences"
    status = (await api.get(f"{objects.API_PATH}/namespaces/{pattern}/inferences/m0") or {})["status"]
    started = {**status, "conditions": status["conditions"][:1]}
    api_before, progress = cluster.component_cpu_s("kube-apiserver"), ReadyProgress()
    names = [f"b{number}" for number in range(count)]
    gate = asyncio.Semaphore(WORKERS)
    ready: dict[str, asyncio.Event] = {name: asyncio.Event() for name in names}

    async def make_object(name: str) -> None:
        async with gate:
            await api.create(owner_path, make_inference(name, namespace))
            owner = await api.get(f"{owner_path}/{name}") or {}
            for path, body in children:
                await api.create(path.format(namespace), rename_child(body, name, namespace, owner))
            await write_status(api, f"{owner_path}/{name}", started)
        await ready[name].wait()
        async with gate:
            await write_status(api, f"{owner_path}/{name}", status)
            await api.create(f"/api/v1/namespaces/{namespace}/events", make_event(name, namespace, owner))
        progress.record_ready(name)

    def note_ready(body: Manifest) -> bool:
        name = body["metadata"]["labels"].get("tidegate.io/inference", "")
        if is_ready(body) and name in ready:
            ready[name].set()
        return is_ready(body)

    pods = f"/api/v1/namespaces/{namespace}/pods"
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(wait_ready(api, pods, count, ReadyProgress(), note_ready))
        for name in names:
            tasks.create_task(make_object(name))
    return {
        **progress.summarise_times(),
        "api_server_cpu_s": round(cluster.component_cpu_s("kube-apiserver") - api_before, 1),
    }


async def list_children(api: ApiServerClient, namespace: str, name: str) -> Sequence[tuple[str, Manifest]]:
    """Return the children of an Inference: paths with a placeholder for the namespace, and bodies."""
    children: list[tuple[str, Manifest]] = []
    for plural, group in CHILDREN.items():
        listed = await api.call(
            "GET", f"{group}/namespaces/{namespace}/{plural}?labelSelector=tidegate.io/inference%3D{name}"
        )
        assert listed is not None
        kind, version = str(listed["kind"]).removesuffix("List"), listed["apiVersion"]
        children.extend(
            (f"{group}/namespaces/{{}}/{plural}", {"apiVersion": version, "kind": kind, **body})
            for body in listed["items"]
        )
    return children


def rename_child(body: Manifest, name: str, namespace: str, owner: Manifest) -> Manifest:
    """Return a child of m0 as one of another Inference."""
    copy: dict[str, Any] = json.loads(
        json.dumps(body).replace('"m0"', f'"{name}"').replace("inf-m0", f"inf-{name}")
    )
    metadata = copy.pop("metadata")
    copy.pop("status", None)
    (reference,) = deepcopy(metadata["ownerReferences"])
    return {
        **copy,
        "metadata": {
            "name": metadata["name"],
            "namespace": namespace,
            "labels": metadata["labels"],
            "annotations": metadata["annotations"],
            "ownerReferences": [{**reference, "name": name, "uid": owner["metadata"]["uid"]}],
        },
    }


def make_event(name: str, namespace: str, owner: Manifest) -> Manifest:
    """Return an Event that says that the Inference is ready."""
    involved = {
        "apiVersion": "tidegate.io/v1alpha1",
        "kind": "Inference",
        "name": name,
        "namespace": namespace,
        "uid": owner["metadata"]["uid"],
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{name}.", "namespace": namespace},
        "involvedObject": involved,
        "type": "Normal",
        "reason": "Ready",
        "message": "made by a bare client",
    }


async def write_status(api: ApiServerClient, path: str, status: Manifest) -> None:
    """Write the status of an Inference."""
    await api.call("PATCH", f"{path}/status", {"status": status})


async def measure_restart(cluster: SimulatedCluster) -> dict[str, Any]:
    """Measure writes and memory of controllers that start with everything settled."""
    before = cluster.count_requests()
    with cluster.run_controllers() as process:
        await wait_leading(cluster, process)
        cpu = process_cpu_s(process_id(process))
        while True:
            await asyncio.sleep(QUIET_S)
            busy, cpu = process_cpu_s(process_id(process)) - cpu, process_cpu_s(process_id(process))
            if busy < QUIET_S / 4:
                break
        requests = subtract_requests(before, cluster.count_requests())
        current_mib, peak_mib = process_memory_mib(process_id(process))
        return {
            "restart_writes": sum(requests.writes.values()),
            "restart_requests": {**requests.writes, **requests.reads},
            "restart_rss_mib": round(current_mib, 1),
            "restart_rss_most_mib": round(peak_mib, 1),
        }


async def wait_settled(cluster: SimulatedCluster) -> None:
    """Wait until the controllers have sent no request for two seconds."""
    last_count = -1
    while True:
        requests = cluster.count_requests()
        count = sum(requests.writes.values()) + sum(requests.reads.values())
        if count == last_count:
            return
        last_count = count
        await asyncio.sleep(2)


def subtract_requests(before: ApiRequests, after: ApiRequests) -> ApiRequests:
    """Return the requests in between."""
    return ApiRequests(
        after.writes - before.writes, after.reads - before.reads, after.refused - before.refused
    )


def process_id(process: ChildProcess) -> int:
    """Return the id of a running process."""
    assert process.pid is not None
    return process.pid


async def measure_arms(files: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure all arms and the restart."""
    count = options.inferences
    results: dict[str, list[dict[str, Any]]] = {"ours": [], "bare": []}
    base_arm: dict[str, Any] | None = None
    async with simulated_cluster(files, options.nodes) as cluster:
        if options.base is not None:
            await make_namespace(cluster.api, "base")
            base_arm = await measure_ours(cluster, "base", options.base)
            print({"base": base_arm}, file=sys.stderr)
            await delete_namespace(cluster.api, "base")
        for number in range(options.rounds):
            ours_name, bare_name = f"ours-{number}", f"bare-{number}"
            for name in (ours_name, bare_name):
                await make_namespace(cluster.api, name)
            results["ours"].append(await measure_ours(cluster, ours_name, count))
            results["bare"].append(await measure_bare(cluster, bare_name, ours_name, count))
            print({arm: rounds[-1] for arm, rounds in results.items()}, file=sys.stderr)
            await delete_namespace(cluster.api, bare_name)
            if number < options.rounds - 1:
                await delete_namespace(cluster.api, ours_name)
        again = await measure_restart(cluster)
    sizes = {"inferences": count, "base": options.base, "nodes": options.nodes}
    return {**sizes, "base_arm": base_arm, **results, **again}


async def delete_namespace(api: ApiServerClient, namespace: str) -> None:
    """Delete a namespace and wait until it is gone."""
    await api.call("DELETE", f"/api/v1/namespaces/{namespace}")
    async with asyncio.timeout(TIMEOUT_S):
        while await api.get(f"/api/v1/namespaces/{namespace}") is not None:  # noqa: ASYNC110  another process ends it
            await asyncio.sleep(0.5)


def compute_medians(arms: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the median of each figure."""
    names = [name for name, value in arms[0].items() if isinstance(value, int | float)]
    return {name: round(statistics.median(arm[name] for arm in arms), 2) for name in names}


def limit_figures(count: int) -> Mapping[str, float]:
    """Return the upper limits for `count` Inferences: seconds grow with them, and memory by a little."""
    thousands = count / 1_000
    grown = {
        name: limit * thousands if name.endswith("_s") and name != "first_ready_s" else limit
        for name, limit in TARGETS.items()
    }
    memory_mib = TARGETS["rss_mib"] + MIB_PER_THOUSAND * max(thousands - 1, 0)
    return {**grown, "rss_mib": memory_mib}


def judge_figures(results: dict[str, Any]) -> dict[str, Any]:
    """Compare the figures with their targets."""
    ours, bare = compute_medians(results["ours"]), compute_medians(results["bare"])
    limits = limit_figures(results["inferences"])
    figures = {
        **ours,
        "of_bare": round(ours["all_ready_s"] / bare["all_ready_s"], 2),
        "half_of_all": round(ours["half_ready_s"] / ours["all_ready_s"], 2),
        "restart_writes": results["restart_writes"],
    }
    if results["base"] is not None:
        base, seconds = results["base"], results["base_arm"]["all_ready_s"]
        figures["slowdown"] = round(base / seconds / (results["inferences"] / ours["all_ready_s"]), 2)
        limits = {**limits, "slowdown": MOST_SLOWDOWN}
    missed = {
        name: {"is": figures[name], "at_most": round(limit, 2)}
        for name, limit in limits.items()
        if figures[name] > limit
    }
    return {"medians": figures, "bare_medians": bare, "missed": missed, **results}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inferences", type=int, default=1_000)
    parser.add_argument("--base", type=int, help="so many Inferences first, to compare the rate with")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-scale-") as folder:
        results = judge_figures(asyncio.run(measure_arms(Path(folder), options)))
    text = json.dumps(results, indent=2)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")
    return 1 if results["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
