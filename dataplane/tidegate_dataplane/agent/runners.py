"""Which processes run the pod's model versions, and which of them ended without having been unloaded.

Triton calls such a model ready all along, and answers each of its requests with an error until it is loaded anew.
"""

import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping

import structlog

from tidegate_dataplane.agent.metrics import Metrics
from tidegate_dataplane.contract import RunnerEnd
from tidegate_dataplane.sampling.frames import Hello

log = structlog.get_logger()

REST_S = 4.0
"""How long the pod takes no requests after an end: so long that the kubelet, which asks twice, notices.

It doubles with each end of the last REMEMBERED_S, for a request that ends the process will come again.
"""
LONGEST_REST_S = 32.0
REMEMBERED_S = 300.0
RECENTLY_S = 15.0
"""How long an end shows in the report."""
COME_BACK_S = 5.0
"""How long a runner may be missing, after an agent has begun say; it tries to connect twice a second."""


class Runners:
    """Hears from the pod's socket who comes and goes; a peer is whatever stands for one connection."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._connected: dict[Hashable, Hello] = {}
        self._disconnected: dict[tuple[str, int], Hello] = {}
        self._ends_s: deque[float] = deque(maxlen=8)
        self._missing_since: dict[str, float] = {}
        self._never_connected: set[str] = set()
        self._listening = False
        self._marks: dict[str, str] = {}
        self._broken: set[str] = set()
        self._end: RunnerEnd | None = None
        self._end_s = 0.0
        self._wake: Callable[[], None] = lambda: None

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever a model breaks."""
        self._wake = wake

    def listen(self) -> None:
        """From now on, who says nothing is not there."""
        self._listening = True

    def here(self, peer: Hashable, hello: Hello) -> None:
        """Note a runner; that one of the same server and version was lost before says that it ended by itself."""
        self._connected[peer] = hello
        if self._complete(hello.model, hello.version):
            self._is_back(hello.model)
        lost = self._disconnected.pop((hello.model, hello.version), None)
        if lost is None:
            return
        if lost.server != hello.server:
            # The server itself ended, and Kubernetes tells of that.
            self._end = None
            self._ends_s.clear()
            return
        for_memory = hello.memory_kills > lost.memory_kills
        self._ended(hello, for_memory=for_memory)
        self._metrics.runner_ends.labels("memory" if for_memory else "other").inc()
        log.warning("runner_ended", model=hello.model, version=hello.version, killed_for_memory=for_memory)

    def unloaded(self, peer: Hashable) -> None:
        """Forget a runner that said goodbye."""
        self._connected.pop(peer, None)

    def gone(self, peer: Hashable) -> None:
        """Note that a connection ended."""
        hello = self._connected.pop(peer, None)
        if hello is None:
            return
        self._disconnected[hello.model, hello.version] = hello
        self._ends_s.append(self._clock())
        self._ended(hello, for_memory=False)
        self._breaks(hello.model)
        self._wake()

    def loaded(self, model: str) -> None:
        """Note that the server has loaded a model anew, and what ended before is no matter of the processes to come."""
        self._broken.discard(model)
        self._disconnected = {key: hello for key, hello in self._disconnected.items() if key[0] != model}

    def look(self, model: str, versions: Collection[int]) -> None:
        """Compare with the versions that the server calls ready, of a model that our runner runs.

        A process that ended while no agent listened has left no word; those that live come back soon after the agent.
        A version may have several, and Triton hands requests to each: one that is missing is as bad as all.
        A model whose runners never came back is loaded anew once, and not again before one has.
        """
        if not self._listening or all(self._complete(model, version) for version in versions):
            self._is_back(model)
            return
        missing_s = self._clock() - self._missing_since.setdefault(model, self._clock())
        if missing_s >= COME_BACK_S and model not in self._broken | self._never_connected:
            log.warning("runner_missing", model=model, versions=sorted(versions))
            self._never_connected.add(model)
            self._breaks(model)

    def _complete(self, model: str, version: int) -> bool:
        """Whether every process of a version has said that it is there."""
        hellos = [
            hello for hello in self._connected.values() if (hello.model, hello.version) == (model, version)
        ]
        return bool(hellos) and len(hellos) >= max(hello.instances for hello in hellos)

    def _is_back(self, model: str) -> None:
        self._missing_since.pop(model, None)
        self._never_connected.discard(model)

    def _breaks(self, model: str) -> None:
        self._broken.add(model)
        self._marks[model] = uuid.uuid4().hex[:8]

    @property
    def broken(self) -> frozenset[str]:
        """Models that have lost a process since they were loaded."""
        return frozenset(self._broken)

    @property
    def marks(self) -> Mapping[str, str]:
        """A word for each model that ever lost a process, and another one after each loss.

        The server loads a model anew only where its configuration has changed.
        """
        return dict(self._marks)

    @property
    def resting(self) -> bool:
        """Whether a runner was lost a moment ago."""
        now = self._clock()
        recent_ends_s = [end_s for end_s in self._ends_s if now - end_s < REMEMBERED_S]
        return bool(recent_ends_s) and now - recent_ends_s[-1] < min(
            REST_S * 2 ** (len(recent_ends_s) - 1), LONGEST_REST_S
        )

    def report(self) -> RunnerEnd | None:
        """Return the last end of late."""
        return self._end if self._end is not None and self._clock() - self._end_s < RECENTLY_S else None

    def _ended(self, hello: Hello, *, for_memory: bool) -> None:
        self._end = RunnerEnd(version=hello.version, killed_for_memory=for_memory)
        self._end_s = self._clock()
