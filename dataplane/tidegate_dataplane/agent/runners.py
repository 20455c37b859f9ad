"""Which processes run the pod's model versions, and which of them ended without having been unloaded.

Triton calls such a model ready all along, and answers each of its requests with an error until it is loaded anew.
"""

import time
import uuid
from collections.abc import Callable, Hashable, Mapping

import structlog

from tidegate_dataplane.agent.metrics import Metrics
from tidegate_dataplane.contract import RunnerEnd
from tidegate_dataplane.sampling.frames import Hello

log = structlog.get_logger()

REST_S = 4.0
"""How long the pod takes no requests after an end: so long that the kubelet, which asks twice, notices."""
RECENTLY_S = 15.0
"""How long an end shows in the report."""


class Runners:
    """Hears from the pod's socket who comes and goes; a peer is whatever stands for one connection."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._here: dict[Hashable, Hello] = {}
        self._lost: dict[tuple[str, int], Hello] = {}
        self._lost_s: float | None = None
        self._marks: dict[str, str] = {}
        self._broken: set[str] = set()
        self._end: RunnerEnd | None = None
        self._end_s = 0.0
        self._wake: Callable[[], None] = lambda: None

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever a model breaks."""
        self._wake = wake

    def here(self, peer: Hashable, hello: Hello) -> None:
        """Note a runner; that one of the same server and version was lost before says that it ended by itself."""
        self._here[peer] = hello
        lost = self._lost.pop((hello.model, hello.version), None)
        if lost is None:
            return
        if lost.server != hello.server:
            self._end = None  # the server itself ended, and Kubernetes tells of that
            return
        for_memory = hello.memory_kills > lost.memory_kills
        self._ended(hello, for_memory=for_memory)
        self._metrics.runner_ends.labels("memory" if for_memory else "other").inc()
        log.warning("runner_ended", model=hello.model, version=hello.version, killed_for_memory=for_memory)

    def unloaded(self, peer: Hashable) -> None:
        """Forget a runner that said goodbye."""
        self._here.pop(peer, None)

    def gone(self, peer: Hashable) -> None:
        """Note that a connection ended."""
        hello = self._here.pop(peer, None)
        if hello is None:
            return
        self._lost[hello.model, hello.version] = hello
        self._lost_s = self._clock()
        self._ended(hello, for_memory=False)
        self._broken.add(hello.model)
        self._marks[hello.model] = uuid.uuid4().hex[:8]
        self._wake()

    def loaded(self, model: str) -> None:
        """Note that the server has loaded a model anew."""
        self._broken.discard(model)

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
        return self._lost_s is not None and self._clock() - self._lost_s < REST_S

    def report(self) -> RunnerEnd | None:
        """Return the last end of late."""
        return self._end if self._end is not None and self._clock() - self._end_s < RECENTLY_S else None

    def _ended(self, hello: Hello, *, for_memory: bool) -> None:
        self._end = RunnerEnd(version=hello.version, killed_for_memory=for_memory)
        self._end_s = self._clock()
