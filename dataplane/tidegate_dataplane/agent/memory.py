"""Memory that each version takes, as our runner measured it when it was loaded: read from Triton's metrics page."""

import re
from collections.abc import Mapping

import aiohttp

METRIC = "tidegate_model_memory_bytes"
TIMEOUT = aiohttp.ClientTimeout(total=1.0)

_SAMPLE = re.compile(rf"^{METRIC}{{(?P<labels>.*)}} (?P<value>\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')

Memory = Mapping[str, Mapping[int, int]]
"""Bytes by model and version; a version that is not measured is absent."""


async def read_memory(url: str) -> Memory | None:
    """Return what the metrics page at `url` says; None when there is no page."""
    try:
        async with aiohttp.ClientSession(timeout=TIMEOUT) as session, session.get(url) as response:
            response.raise_for_status()
            return parse_memory(await response.text())
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None


def parse_memory(page: str) -> Memory:
    """Return the measured bytes on a page in Prometheus' text format."""
    found: dict[str, dict[int, int]] = {}
    for sample in _SAMPLE.finditer(page):
        labels = dict(_LABEL.findall(sample["labels"]))
        if labels.get("version", "").isdigit():
            versions = found.setdefault(labels.get("model", ""), {})
            versions[int(labels["version"])] = int(float(sample["value"]))
    return found
