"""Build the scene of three_tier_day: a pool of a few slices, a model of each tier on it, its work, its pods."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import nats.errors
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from builders.nearline import nearline_spec
from builders.slow_models import SlowModel
from builders.waiting import wait_until
from fixtures.claim_reader import make_claim, make_reader
from fixtures.cluster import POOL_TOLERATION
from fixtures.installed import Space
from fixtures.stream import BUCKET, DEAD, STREAM, SUBJECT, Worked, a_message
from harness.background import BackgroundWork
from tidegate.planning.pods import is_ready
from tidegate.resources.names import INFERENCE_LABEL
from tidegate_localcluster.node import node_name

POOL: Final = "bench-day"
LABEL: Final = "bench/day"
RESULTS_CLAIM: Final = "scores"
SLICES: Final = 7
SLICE_CPU_M: Final = 150
REALTIME_S: Final = 0.1
REALTIME_PER_S: Final = 5.0
"""What a replica serves within the SLO: half of its throughput, so that no request waits while another starts."""
SLO_S: Final = 1.0
NEARLINE_S: Final = 0.2
NEARLINE_PER_S: Final = 4.0
MESSAGES_PER_S: Final = 6.0
BACKLOG: Final = 120
"""Messages that wait when the day begins."""
OFFLINE_S: Final = 0.5
ROWS_PER_REQUEST: Final = 64
ROWS_PER_FILE: Final = 640
SHARDS: Final = 12
ROWS: Final = SHARDS * 70_000
OURS: Final = ("tidegate_dataplane.agent", "tritonserver", "triton_python_backend_stub")
"""Command lines of a pod's working processes, without the container that only holds its network."""
READ: Final = """
import glob
import pyarrow.parquet as pq
print(sum(pq.read_metadata(path).num_rows for path in glob.glob('/mnt/pvc/scores/out/*/part-*.parquet')))
"""


@dataclass(frozen=True, slots=True)
class PoolShape:
    """How many slices of what processor request the pool has, and how often its allocator decides.

    On `node` 1 no other pod can be: it has POOL_TAINT, as `fixtures.cluster` starts a cluster.
    """

    slices: int = SLICES
    cpu_m: int = SLICE_CPU_M
    interval: str = "3s"
    dwell: str = "20s"
    node: int = 0

    @property
    def tolerations(self) -> Sequence[Mapping[str, str]]:
        """Return what its pods tolerate."""
        return [POOL_TOLERATION] if self.node == 1 else []


@contextmanager
def create_pool(space: Space, mode: str, shape: PoolShape = PoolShape()) -> Generator[None]:
    """Create the pool of the arm with exactly so many slices, whatever the node's capacity."""
    kubectl = space.kubectl
    kubectl.run("label", "node", node_name(shape.node), f"{LABEL}=here", "--overwrite")
    spec = {
        "nodeSelector": {LABEL: "here"},
        "tolerations": shape.tolerations,
        "slice": {"cpu": {"cpu": f"{shape.cpu_m}m", "memory": "768Mi"}},
        "tiers": {"offline": {"floor": 1}},
        "policy": {"mode": mode, "interval": shape.interval, "dwell": shape.dwell},
    }
    space.apply("ComputePool", POOL, spec)
    try:
        # Pods of an upgrade or an earlier arm use the node until they are gone, and would become slices then.
        wait_until(
            lambda: not _terminating_pods(space),
            "no pod is terminating",
            evidence=lambda: _terminating_pods(space),
        )
        wait_until(
            lambda: _free_slices(space) > 0, "the pool has slices", evidence=lambda: _free_slices(space)
        )
        free = _free_slices(space)
        if free < shape.slices:
            sys.exit(
                f"the node has room for {free} slices of {shape.cpu_m}m and 768Mi; {shape.slices} are needed"
            )
        kubectl.apply(json.dumps(_make_ballast(space, shape, free - shape.slices)), space.namespace)
        wait_until(
            lambda: _free_slices(space) == shape.slices,
            f"{shape.slices} slices are free",
            evidence=lambda: _free_slices(space),
        )
        kubectl.wait("condition=Ready", ("pod/reader",), space.namespace, 60)
        yield
    finally:
        kubectl.run("delete", "computepool", POOL, "--ignore-not-found")
        kubectl.run("label", "node", node_name(shape.node), f"{LABEL}-")


def count_rows(space: Space) -> int:
    """Return the rows in the files of results."""
    return int(space.kubectl.run("exec", "-n", space.namespace, "reader", "--", "python3", "-c", READ))


def _terminating_pods(space: Space) -> Sequence[str]:
    """Return terminating pods, and those in the namespaces of other arms."""
    pods = [pod["metadata"] for pod in space.installed.api.list_items("/api/v1/pods")]
    return [
        metadata["name"]
        for metadata in pods
        if "deletionTimestamp" in metadata
        or (metadata["namespace"].startswith("bench-") and metadata["namespace"] != space.namespace)
    ]


def _free_slices(space: Space) -> int:
    return read_slices(space).get("free", 0)


def read_slices(space: Space) -> Mapping[str, int]:
    """Return the counts of the pool's status: total, healthy, free."""
    pool = space.installed.api.get(f"/apis/tidegate.io/v1alpha1/computepools/{POOL}") or {}
    counts: Mapping[str, int] = pool.get("status", {}).get("slices", {})
    return counts


def _make_ballast(space: Space, shape: PoolShape, slices: int) -> Mapping[str, Any]:
    """Return a pod that occupies so many slices, and reads the results of the batch for us."""
    cpu = {"requests": {"cpu": f"{slices * shape.cpu_m}m"}}
    body = make_reader(space.installed.site.values["images.dataplane"], RESULTS_CLAIM, resources=cpu)
    # With the priority of real-time pods, which would preempt it for room that belongs to no slice.
    placed = {
        "nodeSelector": {LABEL: "here"},
        "tolerations": shape.tolerations,
        "priorityClassName": "tidegate-realtime",
    }
    return {**body, "spec": {**body["spec"], **placed}}


def publish_models(space: Space) -> None:
    """Publish the three models and the offline one's table, and create the claim for its results."""
    for model, delay_s in (("home", REALTIME_S), ("rank", NEARLINE_S), ("embed", OFFLINE_S)):
        shutil.rmtree(space.folder(model), ignore_errors=True)  # of an earlier run
        SlowModel(model, 2.0, delay_s * 1000).write(space.folder(model).parent)
    folder = space.folder("table")
    folder.mkdir(parents=True, exist_ok=True)
    ids = pa.array(range(ROWS), pa.int64())
    table = pa.table({"user_id": ids, "x": pa.array(np.ones(ROWS, np.float32))})
    pq.write_table(table, folder / "users.parquet", row_group_size=3_200)
    space.kubectl.apply(json.dumps(make_claim(RESULTS_CLAIM)), space.namespace)


def make_specs(
    space: Space, url: str, counts: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, Mapping[str, Any]]:
    """Return the specs of the three Inferences; `counts` has spec.scaling or spec.replicas of each."""

    def model(name: str, tier: str, **fields: Any) -> Mapping[str, Any]:
        served = {"name": "probe", "uri": space.uri(name), "version": "1", "format": "Python"}
        return {"model": served, "tier": tier, "placement": {"pool": POOL}, **counts[name], **fields}

    stream = nearline_spec(
        nats={"url": url, "stream": STREAM, "subject": SUBJECT},
        bucket={"bucket": BUCKET},
        deadLetters={"subject": DEAD},
    )
    batch = {
        "input": {"uri": space.uri("table")},
        "output": {"uri": f"pvc://{RESULTS_CLAIM}/out", "keep": ["user_id"], "rowsPerFile": ROWS_PER_FILE},
        "shards": SHARDS,
    }
    return {
        "home": model(
            "home",
            "realtime",
            slo={"latencyP99": f"{SLO_S:g}s"},
            capacity={"requestsPerSecond": f"{REALTIME_PER_S:g}"},
            value={"perRequest": "10"},
        ),
        "rank": model(
            "rank",
            "nearline",
            capacity={"requestsPerSecond": f"{NEARLINE_PER_S:g}"},
            value={"perRequest": "2"},
            nearline=stream,
        ),
        "embed": model("embed", "offline", batching={"maxBatchSize": ROWS_PER_REQUEST}, batch=batch),
    }


class MessagePublisher(BackgroundWork):
    """Publishes messages at a constant rate, in the background."""

    def __init__(self, work: Worked) -> None:
        self._work = work
        super().__init__(self._publish_loop)
        self._due = 0
        self.sent = 0

    def __enter__(self) -> Self:
        self.publish_messages(BACKLOG)
        return super().__enter__()

    def publish_messages(self, count: int) -> None:
        """Publish so many more; a repetition after an error has the same ids, and so one result."""
        self._work.publish([a_message(1, f"job-{self.sent + number}") for number in range(count)])
        self.sent += count

    def finish_publishing(self) -> None:
        """Stop, and publish all that are due. Raises the error of the last attempt."""
        self.end()
        self.publish_messages(self._due)
        self._due = 0

    def _publish_loop(self) -> None:
        began, before = time.monotonic(), self.sent
        while not self._ended.wait(1.0):
            self._due = before + round((time.monotonic() - began) * MESSAGES_PER_S) - self.sent
            try:
                self.publish_messages(self._due)
            except (OSError, TimeoutError, nats.errors.Error) as error:
                print(f"{self._due} messages wait for the next try: {error!r}", file=sys.stderr)
            else:
                self._due = 0


@dataclass(slots=True)
class YieldingPod:
    """A near-line pod that was deleted."""

    deleted_at: float
    gone_at: float | None = None


class PodWatcher(BackgroundWork):
    """Reads the pods of a space four times a second: how many there are, and how long near-line ones take to yield."""

    def __init__(self, space: Space) -> None:
        self._space = space
        super().__init__(self._watch_loop)
        self.max_pods = 0
        self.pod_names: Sequence[str] = ()
        self.slice_seconds: dict[str, float] = {}
        self.yields: dict[str, YieldingPod] = {}

    def _watch_loop(self) -> None:
        read_before, shown = time.monotonic(), ""
        while not self._ended.wait(0.25):
            try:
                pods = self._read_pods()
            except OSError as error:
                print(f"pods were not read: {error}", file=sys.stderr)
                continue
            read_at = time.monotonic()
            for pod in pods:
                if "deletionTimestamp" not in pod["metadata"] and is_ready(pod):
                    name = pod["metadata"]["labels"][INFERENCE_LABEL]
                    self.slice_seconds[name] = self.slice_seconds.get(name, 0.0) + read_at - read_before
            self.max_pods, read_before = max(self.max_pods, len(pods)), read_at
            self.pod_names = [pod["metadata"]["name"] for pod in pods]
            self._record_yields(pods, read_at)
            counts = Counter(pod["metadata"]["labels"][INFERENCE_LABEL] for pod in pods)
            if str(sorted(counts.items())) != shown:
                shown = str(sorted(counts.items()))
                print(f"{time.strftime('%X')} pods: {dict(sorted(counts.items()))}", file=sys.stderr)

    def _read_pods(self) -> Sequence[Mapping[str, Any]]:
        """Return pods on slices that have not ended, terminating ones included."""
        path = f"/api/v1/namespaces/{self._space.namespace}/pods?labelSelector={INFERENCE_LABEL}"
        ended = ("Succeeded", "Failed")
        return [
            pod
            for pod in self._space.installed.api.list_items(path)
            if pod["status"].get("phase") not in ended
        ]

    def _record_yields(self, pods: Sequence[Mapping[str, Any]], time_s: float) -> None:
        for pod in pods:
            metadata = pod["metadata"]
            if metadata["labels"][INFERENCE_LABEL] == "rank" and "deletionTimestamp" in metadata:
                self.yields.setdefault(metadata["uid"], YieldingPod(time_s))
        for uid, yielding in self.yields.items():
            if yielding.gone_at is None and not has_process(uid):
                yielding.gone_at = time.monotonic()


def has_process(uid: str) -> bool:
    """Return whether a process of a pod's containers still runs."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if uid in (folder / "cgroup").read_text().replace("_", "-"):
                command = (folder / "cmdline").read_bytes().decode(errors="replace")
                if any(name in command for name in OURS):
                    return True
        except OSError:
            continue
    return False
