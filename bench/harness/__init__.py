"""What the measurements of a whole cluster share: an installed checkout, a namespace, clients that keep asking, memory."""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tritonclient.utils import InferenceServerException

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from builders import probe_model
from fixtures import installed
from fixtures.installed import Client, Space
from tidegate_localcluster.cluster import Cluster

PAUSE_S = 0.01
"""Between two requests of one client: the machine is to be busy with the change, not with the clients."""


@contextmanager
def a_space(state_dir: Path, name: str) -> Iterator[Space]:
    """This checkout on the cluster of `state_dir` (started when it does not run), and a namespace of one's own."""
    with (
        installed.an_installation(Cluster(state_dir), lambda line: print(line, file=sys.stderr)) as there,
        installed.a_space(there, f"bench-{name}") as space,
    ):
        yield space


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: when it was answered, how long it took, and by which version; None when it failed or its answer is wrong."""

    at: float
    seconds: float
    version: int | None
    wrong: bool = False


class Asking:
    """Clients that ask the gateway all the time, each at most once in 10 ms."""

    def __init__(self, space: Space, clients: int) -> None:
        self._space = space
        self._ended = threading.Event()
        self._of_clients: list[list[Asked]] = [[] for _ in range(clients)]
        self._threads = [
            threading.Thread(target=self._run, args=(asked,), daemon=True) for asked in self._of_clients
        ]

    def __enter__(self) -> Asking:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(30)

    @property
    def asked(self) -> Sequence[Asked]:
        """All that was answered."""
        return self.since(0.0)

    def since(self, start: float) -> Sequence[Asked]:
        """What was answered after `start` (time.monotonic), client by client; costs as much as there is of it."""
        return [
            one
            for asked in self._of_clients
            for one in asked[bisect_left(asked, start, key=lambda each: each.at) :]
        ]

    def _run(self, asked: list[Asked]) -> None:
        space = self._space
        client = Client(space.installed.endpoints.gateway, f"{space.namespace}/probe")
        rows = np.arange(8, dtype=np.float32)[:, None]
        while not self._ended.wait(PAUSE_S):
            began = time.monotonic()
            try:
                answer = client.score({"x": rows})
            except InferenceServerException as error:
                print(f"failed: {error}", file=sys.stderr)
                version, right = None, True
            else:
                right = probe_model.is_answer(answer.scores, rows, answer.version)
                version = int(answer.version) if right else None
                if not right:
                    print(f"wrong: {answer}", file=sys.stderr)
            now = time.monotonic()
            asked.append(Asked(now, now - began, version, wrong=not right))
        client.close()


def quantile_ms(asked: Sequence[Asked], quantile: float) -> float:
    """Latency of the right answers."""
    seconds = [each.seconds for each in asked if each.version is not None]
    return round(float(np.quantile(seconds, quantile)) * 1000, 3) if seconds else 0.0


def lost(asked: Sequence[Asked]) -> dict[str, int]:
    """Requests without a right answer: those that failed, and those whose answer is not exactly the named version's."""
    wrong = sum(each.wrong for each in asked)
    return {"failed": sum(each.version is None for each in asked) - wrong, "wrong": wrong}


def answered_by_servers(space: Space, version: int) -> dict[str, float]:
    """Requests that each replica's own Triton has answered with `version`, by pod."""
    counts: dict[str, float] = {}
    for pod in space.installed.pods(space.namespace, "tidegate.io/inference=probe"):
        name = pod["metadata"]["name"]
        page = space.installed.metrics(space.namespace, name, 8002)
        counts[name] = sum(
            metric.value
            for metric in page
            if metric.name == "nv_inference_request_success" and metric.labels.get("version") == str(version)
        )
    return counts


def resident_bytes(space: Space) -> dict[str, int]:
    """Anonymous memory of the model pods' containers by the kubelet's account, which is about ten seconds old."""
    found: dict[str, int] = {}
    page = space.kubectl.run("get", "--raw", "/api/v1/nodes/node-0/proxy/stats/summary")
    for pod in json.loads(page)["pods"]:
        if pod["podRef"]["namespace"] == space.namespace:
            for container in pod["containers"]:
                name = container["name"]
                found[name] = found.get(name, 0) + int((container.get("memory") or {}).get("rssBytes", 0))
    return found


def growth(values: Sequence[float]) -> float:
    """The median of the last third over that of the first, less one; a tenth at the start is left out."""
    settled = values[len(values) // 10 :]
    third = max(len(settled) // 3, 1)
    first = statistics.median(settled[:third])
    return statistics.median(settled[-third:]) / first - 1 if first else 0.0
