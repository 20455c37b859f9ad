"""Scrape the controllers' own metrics of their pools, and keep them for the charts of pools."""

import asyncio
import re
import time
from collections.abc import Iterator, Mapping
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

RETENTION_S: Final = 3600.0
STALE_S: Final = 300.0
"""Prometheus's own limit for the age of a sample."""
_TIMEOUT: Final = aiohttp.ClientTimeout(total=4)
_PREFIX: Final = "tidegate_pool_"
_LABELS: Final = ("pool", "tier", "state", "outcome")
_QUESTION: Final = re.compile(
    r'max by \(__name__, tier, state, outcome\) \(\{__name__=~"(?P<names>[\w|]+)",pool="(?P<pool>[\w.-]+)"\}\)'
)

Key = tuple[str, ...]
"""Name, and the values of _LABELS; each is empty where a series has none."""


class ScrapedPools:
    """Measured series of pools; all other answers of the simulated Prometheus are generated."""

    def __init__(self) -> None:
        self._pages: list[tuple[float, Mapping[Key, float]]] = []

    def add_page(self, time_s: float, page: str) -> None:
        """Store a page of metrics with its time."""
        values = {
            _series_key(sample.name, sample.labels): sample.value
            for family in text_string_to_metric_families(page)
            if family.name.startswith(_PREFIX)
            for sample in family.samples
            if sample.labels.keys() <= set(_LABELS)
        }
        self._pages.append((time_s, values))
        while self._pages[0][0] < time_s - RETENTION_S:
            self._pages.pop(0)

    @staticmethod
    def knows_query(query: str) -> bool:
        """Return whether this is the query of the charts of a pool."""
        return _QUESTION.fullmatch(query) is not None

    def answer_query(self, query: str, time_s: float) -> Iterator[tuple[Mapping[str, str], float]]:
        """Yield labels and values at a time; nothing if no page was read in the five minutes before."""
        match = _QUESTION.fullmatch(query)
        page = next(
            (values for read_at, values in reversed(self._pages) if time_s - STALE_S <= read_at <= time_s),
            None,
        )
        if match is None or page is None:
            return
        names = set(match["names"].split("|"))
        for (name, pool, *texts), value in page.items():
            if name in names and pool == match["pool"]:
                labels = zip(_LABELS[1:], texts, strict=True)
                yield {"__name__": name, **{label: text for label, text in labels if text}}, value


def _series_key(name: str, labels: Mapping[str, str]) -> Key:
    return name, *(labels.get(label, "") for label in _LABELS)


async def scrape_pools(pools: ScrapedPools, url: str, every_s: float) -> None:
    """Read the page repeatedly; skip it while the controllers do not answer."""
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
        while True:
            try:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        pools.add_page(time.time(), await answer.text())
            except (OSError, aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(every_s)
