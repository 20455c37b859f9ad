"""Memory that each version uses, as our runner measured it at load; read from Triton's metrics page."""

import re
from collections.abc import Iterable, Mapping

import aiohttp

from tidegate_dataplane.contract.answers import make_bounded_session, read_lines

METRIC = "tidegate_model_memory_bytes"
TIMEOUT = aiohttp.ClientTimeout(total=1.0)
MAX_PAGE_BYTES = 64 << 20

METRIC_PREFIX = f"{METRIC}{{".encode()

_SAMPLE = re.compile(rf"^{METRIC}{{(?P<labels>.*)}} (?P<value>\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')

MemoryByVersion = Mapping[str, Mapping[int, int]]
"""Bytes by model and version; a version that is not measured is absent."""


async def read_memory(url: str) -> MemoryByVersion | None:
    """Return the measurements on the metrics page at `url`; None if the page cannot be read."""
    try:
        async with make_bounded_session(TIMEOUT) as session, session.get(url) as response:
            response.raise_for_status()
            # Line by line: Triton counts on for every version that it ever loaded, a megabyte after a thousand.
            return parse_memory(
                [
                    line.decode()
                    async for lines in read_lines(response, MAX_PAGE_BYTES)
                    for line in lines
                    if line.startswith(METRIC_PREFIX)
                ]
            )
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None


def parse_memory(lines: Iterable[str]) -> MemoryByVersion:
    """Return the measured bytes among the lines of a page in Prometheus' text format."""
    bytes_by_model: dict[str, dict[int, int]] = {}
    for sample in filter(None, map(_SAMPLE.match, lines)):
        labels = dict(_LABEL.findall(sample["labels"]))
        if labels.get("version", "").isdigit():
            versions = bytes_by_model.setdefault(labels.get("model", ""), {})
            versions[int(labels["version"])] = int(float(sample["value"]))
    return bytes_by_model
