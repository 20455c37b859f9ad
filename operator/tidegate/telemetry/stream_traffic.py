"""Read signals of near-line Inferences from their agents, because the controllers have no access to brokers."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.signals import MetricsScrape
from tidegate.planning.allocator.stream_demand import (
    BrokerCounts,
    find_newest_count,
    to_metrics,
    update_count,
)
from tidegate.planning.pods import PodView
from tidegate_dataplane.contract import AgentReport

NO_COUNTS_MESSAGE = "none of its pods says how many messages wait"


class AgentReader(Protocol):
    """Reader of agents' reports; triton.agents.Agents in a cluster."""

    def get_reports(self, pods: Sequence[PodView], *, partly: bool) -> Awaitable[Mapping[str, AgentReport]]:
        """Return the reports of the pods' agents by pod UID, without those of agents that do not respond."""
        ...


class StreamTraffic:
    """SignalSource that compares the counts of near-line pods with those of the previous scrape."""

    def __init__(
        self,
        pods: Callable[[], Mapping[ObjectKey, Sequence[PodView]]],
        agents: AgentReader,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pods` returns the pods of every near-line Inference, including one without pods."""
        self._pods = pods
        self._agents = agents
        self._monotonic = monotonic
        self._counts: BrokerCounts = {}
        self._scraped_at_s: float | None = None

    async def scrape_signals(self) -> MetricsScrape:
        """Return the rates since the previous scrape, without Inferences that are scraped for the first time."""
        pods_by_key = self._pods()
        all_pods = [pod for pods in pods_by_key.values() for pod in pods]
        reports = await self._agents.get_reports(all_pods, partly=True)
        now_s = self._monotonic()
        since_s = now_s - (self._scraped_at_s if self._scraped_at_s is not None else now_s)
        counts = {
            key: update_count(self._counts.get(key), count, now_s)
            for key, pods in pods_by_key.items()
            if (count := find_newest_count(reports[pod.uid] for pod in pods if pod.uid in reports))
            is not None
        }
        # Keep the counts of Inferences without a report in this scrape: the next one compares with them.
        earlier_counts = {key: count for key, count in self._counts.items() if key in pods_by_key}
        self._counts = {**earlier_counts, **counts}
        self._scraped_at_s = now_s
        return MetricsScrape(
            "the pods of streams",
            {key: rates for key, count in counts.items() if (rates := to_metrics(count)) is not None},
            window=timedelta(seconds=since_s),
            missing=NO_COUNTS_MESSAGE,
        )
