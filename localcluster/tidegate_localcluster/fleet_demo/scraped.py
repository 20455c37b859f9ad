"""What the controllers say of their pools, scraped from their own metrics page and kept for the charts of pools."""

import asyncio
import re
import time
from collections.abc import Iterator, Mapping
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

KEPT_S: Final = 3600.0
STALE_S: Final = 300.0
"""As old as Prometheus's own answers may be."""
_TIMEOUT: Final = aiohttp.ClientTimeout(total=4)
_PREFIX: Final = "tidegate_pool_"
_LABELS: Final = ("pool", "tier", "state")
_QUESTION: Final = re.compile(
    r'max by \(__name__, tier, state\) \(\{__name__=~"(?P<names>[\w|]+)",pool="(?P<pool>[\w.-]+)"\}\)'
)

Key = tuple[str, str, str, str]
"""Name, pool, tier and state; each of the last two is empty where a series has none."""


class Scraped:
    """These series are measured, in contrast to all else that the stand-in says."""

    def __init__(self) -> None:
        self._pages: list[tuple[float, Mapping[Key, float]]] = []

    def keep(self, at: float, page: str) -> None:
        """Takes a page as it was at a time."""
        values = {
            _key(each.name, each.labels): each.value
            for family in text_string_to_metric_families(page)
            if family.name.startswith(_PREFIX)
            for each in family.samples
            if each.labels.keys() <= set(_LABELS)
        }
        self._pages.append((at, values))
        while self._pages[0][0] < at - KEPT_S:
            self._pages.pop(0)

    @staticmethod
    def knows(query: str) -> bool:
        """Whether it is the query for the charts of a pool."""
        return _QUESTION.fullmatch(query) is not None

    def answer(self, query: str, at: float) -> Iterator[tuple[Mapping[str, str], float]]:
        """Labels and values as of then; nothing where no page was read in the five minutes before."""
        asked = _QUESTION.fullmatch(query)
        page = next((values for when, values in reversed(self._pages) if at - STALE_S <= when <= at), None)
        if asked is None or page is None:
            return
        names = set(asked["names"].split("|"))
        for (name, pool, tier, state), value in page.items():
            if name in names and pool == asked["pool"]:
                labels = {"tier": tier, "state": state}
                yield {"__name__": name, **{label: said for label, said in labels.items() if said}}, value


def _key(name: str, labels: Mapping[str, str]) -> Key:
    return name, labels.get("pool", ""), labels.get("tier", ""), labels.get("state", "")


async def scrape(into: Scraped, url: str, every_s: float) -> None:
    """Reads the page again and again; while nobody answers there is nothing to keep."""
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
        while True:
            try:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        into.keep(time.time(), await answer.text())
            except (OSError, aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(every_s)
