"""Signals of near-line Inferences: their agents say what the broker counts, for no broker lets us ask it ourselves."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from tidegate.api.meta import ObjectKey
from tidegate.planning.pods import PodView
from tidegate.planning.signals import Look
from tidegate.planning.stream_demand import Counts, follow, newest, reading
from tidegate_dataplane.contract import AgentReport

NOBODY = "none of its pods says how many messages wait"


class Reports(Protocol):
    """Asks agents; triton.agents.Agents in a cluster."""

    def get_reports(self, pods: Sequence[PodView], *, partly: bool) -> Awaitable[Mapping[str, AgentReport]]:
        """What each reachable pod's agent says, by pod uid; one that does not answer is left out."""
        ...


class StreamTraffic:
    """Asks the agents of near-line pods, and compares with what was counted at the last look; a SignalSource."""

    def __init__(
        self,
        pods: Callable[[], Mapping[ObjectKey, Sequence[PodView]]],
        agents: Reports,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pods` gives those of every near-line Inference, also of one that has none."""
        self._pods = pods
        self._agents = agents
        self._monotonic = monotonic
        self._counts: Counts = {}
        self._looked_at_s: float | None = None

    async def look(self) -> Look:
        """The rates since the last look; of an Inference that is seen for the first time nothing is said."""
        pods = self._pods()
        reports = await self._agents.get_reports([pod for each in pods.values() for pod in each], partly=True)
        now_s = self._monotonic()
        since_s = now_s - (self._looked_at_s if self._looked_at_s is not None else now_s)
        counts = {
            key: follow(self._counts.get(key), count, now_s)
            for key, each in pods.items()
            if (count := newest(reports[pod.uid] for pod in each if pod.uid in reports)) is not None
        }
        # Whoever is silent for a look, or has no pod for a while, had still counted that much then.
        known = {key: counted for key, counted in self._counts.items() if key in pods}
        self._counts = {**known, **counts}
        self._looked_at_s = now_s
        readings = {key: reading(counted) for key, counted in counts.items()}
        return Look(
            "the pods of streams",
            {key: each for key, each in readings.items() if each is not None},
            window=timedelta(seconds=since_s),
            missing=NOBODY,
        )
