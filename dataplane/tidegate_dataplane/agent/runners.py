"""Processes that run the pod's model versions, and those that ended without being unloaded.

Triton still reports such a model as ready, and answers each of its requests with an error until it is reloaded.
"""

import math
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, replace

import structlog

from tidegate_dataplane.agent.metrics import AgentMetrics
from tidegate_dataplane.contract import RunnerEnd
from tidegate_dataplane.runner_interface import JoinLimit
from tidegate_dataplane.sampling.frames import HelloFrame

log = structlog.get_logger()

REST_S = 4.0
"""How long a model is not ready after one of its runners has ended: long enough for two failed probes of the kubelet.

It doubles with each end of the last REMEMBERED_S, since a request that ends the process is likely to come again.
"""
MAX_REST_S = 32.0
REMEMBERED_S = 300.0
RECENTLY_S = 15.0
"""How long the report shows an end."""
RECONNECT_S = 5.0
"""How long a runner may be missing, for example after a start of the agent; it tries to connect twice a second."""


@dataclass(frozen=True, slots=True)
class _Loss:
    """A runner whose connection ended without notice."""

    hello: HelloFrame
    until_s: float = math.inf
    """When the next runner of its version no longer is the one that replaces it."""


class RunnerRegistry:
    """Tracks the runners that connect to the pod's socket; a peer stands for one connection."""

    def __init__(self, metrics: AgentMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._connected: dict[Hashable, HelloFrame] = {}
        self._losses: dict[tuple[str, int], _Loss] = {}
        self._ends_s: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=8))
        """When runners of a model ended."""
        self._missing_since: dict[str, float] = {}
        self._never_connected: set[str] = set()
        self._listening = False
        self._marks: dict[str, str] = {}
        self._broken: set[str] = set()
        self._end: RunnerEnd | None = None
        self._end_s = 0.0
        self._wakes: list[Callable[[], None]] = []

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever a model breaks."""
        self._wakes.append(wake)

    def unsubscribe(self, wake: Callable[[], None]) -> None:
        """Stop calling `wake`."""
        self._wakes.remove(wake)

    @property
    def subscriber_count(self) -> int:
        """Return how many callables are woken."""
        return len(self._wakes)

    def start_listening(self) -> None:
        """Treat runners that are not connected as missing from now on."""
        self._listening = True

    def add_runner(self, peer: Hashable, hello: HelloFrame) -> None:
        """Add a connected runner; if it replaces one that disconnected from the same server, report that one as crashed."""
        was_connected = peer in self._connected
        self._connected[peer] = hello
        if was_connected:  # it reports a change of itself
            return
        if self._is_complete(hello.model, hello.version):
            self._clear_missing(hello.model)
        loss = self._losses.pop((hello.model, hello.version), None)
        if loss is None or loss.until_s < self._clock():
            return
        lost = loss.hello
        if lost.server != hello.server:
            # The server itself ended, which Kubernetes reports.
            self._end = None
            self._ends_s.clear()
            return
        for_memory = hello.memory_kills > lost.memory_kills
        self._record_end(hello, for_memory=for_memory)
        self._metrics.runner_ends.labels("memory" if for_memory else "other").inc()
        log.warning("runner_ended", model=hello.model, version=hello.version, killed_for_memory=for_memory)

    def remove_runner(self, peer: Hashable) -> None:
        """Remove a runner that announced its end."""
        self._connected.pop(peer, None)

    def record_disconnect(self, peer: Hashable) -> None:
        """Record that a connection ended without notice, and mark its model as broken."""
        hello = self._connected.pop(peer, None)
        if hello is None:
            return
        self._losses[hello.model, hello.version] = _Loss(hello)
        self._ends_s[hello.model].append(self._clock())
        self._record_end(hello, for_memory=False)
        self._mark_broken(hello.model)
        for wake in self._wakes:
            wake()

    def find_join_limit(self, model: str, version: int) -> JoinLimit | None:
        """Return the strictest limit among the processes of a version; None if none of them checks joined answers."""
        limits = {
            hello.join_limit
            for hello in self._connected.values()
            if (hello.model, hello.version) == (model, version)
        }
        return next((limit for limit in reversed(JoinLimit) if limit.value in limits), None)

    def reset_model(self, model: str) -> None:
        """Clear the losses of a model that the server has just reloaded; its new runners may still have to connect."""
        self._broken.discard(model)
        now_s = self._clock()
        self._losses = {
            (name, version): replace(loss, until_s=min(loss.until_s, now_s + RECONNECT_S))
            if name == model
            else loss
            for (name, version), loss in self._losses.items()
            if loss.until_s >= now_s
        }

    def check_versions(self, model: str, versions: Collection[int]) -> None:
        """Compare the connected runners with the versions that the server reports as ready.

        A process that ended while no agent listened has left no notice; live ones reconnect soon after the agent starts.
        Triton spreads the requests of a version over all of its processes, so one that is missing breaks the version.
        A model whose runners never reconnected is reloaded once, and not again before one has connected.
        """
        if not self._listening or all(self._is_complete(model, version) for version in versions):
            self._clear_missing(model)
            return
        missing_s = self._clock() - self._missing_since.setdefault(model, self._clock())
        if missing_s >= RECONNECT_S and model not in self._broken | self._never_connected:
            log.warning("runner_missing", model=model, versions=sorted(versions))
            self._never_connected.add(model)
            self._mark_broken(model)

    def _is_complete(self, model: str, version: int) -> bool:
        """Return whether every process of a version is connected."""
        hellos = [
            hello for hello in self._connected.values() if (hello.model, hello.version) == (model, version)
        ]
        return bool(hellos) and len(hellos) >= max(hello.instances for hello in hellos)

    def _clear_missing(self, model: str) -> None:
        self._missing_since.pop(model, None)
        self._never_connected.discard(model)

    def _mark_broken(self, model: str) -> None:
        self._broken.add(model)
        self._marks[model] = uuid.uuid4().hex[:8]

    @property
    def broken_models(self) -> frozenset[str]:
        """Return the models that have lost a process since they were loaded."""
        return frozenset(self._broken)

    @property
    def reload_marks(self) -> Mapping[str, str]:
        """Return a mark for each model that ever lost a process; it changes with each loss.

        The server reloads a model only if its configuration has changed.
        """
        return dict(self._marks)

    @property
    def resting_models(self) -> frozenset[str]:
        """Return the models that have lost a runner so recently that a pod of theirs alone must not get requests yet."""
        return frozenset(model for model in self._ends_s if self._is_resting(model))

    def _is_resting(self, model: str) -> bool:
        now = self._clock()
        recent_ends_s = [end_s for end_s in self._ends_s[model] if now - end_s < REMEMBERED_S]
        return bool(recent_ends_s) and now - recent_ends_s[-1] < min(
            REST_S * 2 ** (len(recent_ends_s) - 1), MAX_REST_S
        )

    def report(self) -> RunnerEnd | None:
        """Return the last end of a runner if it is recent."""
        return self._end if self._end is not None and self._clock() - self._end_s < RECENTLY_S else None

    def _record_end(self, hello: HelloFrame, *, for_memory: bool) -> None:
        self._end = RunnerEnd(version=hello.version, killed_for_memory=for_memory)
        self._end_s = self._clock()
